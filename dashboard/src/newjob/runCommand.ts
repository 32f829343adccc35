/** What to type in a terminal to submit the same file: one text, to be pasted as it is. */
import type { Values } from "./values";

const NAME = /^[a-z0-9][a-z0-9._-]{0,62}$/;

export function runCommand(values: Values, toml: string, url: string): string {
  const file = `${typeof values.name === "string" && NAME.test(values.name) ? values.name : "job"}.toml`;
  const lines = toml.replace(/\n+$/, "").split("\n");
  // The shell takes everything as it stands up to a line that only says this.
  let end = "JOB";
  while (lines.includes(end)) end += "_";
  return [`cat > ${file} <<'${end}'`, ...lines, end, `shoal run ${file} --url ${url}`].join("\n");
}
