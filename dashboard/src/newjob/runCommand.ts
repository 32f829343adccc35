/** Return the shell command that writes the job file and submits it. */
import type { Values } from "./values";

const NAME = /^[a-z0-9][a-z0-9._-]{0,62}$/;

export function runCommand(values: Values, toml: string, url: string): string {
  const file = `${typeof values.name === "string" && NAME.test(values.name) ? values.name : "job"}.toml`;
  const lines = toml.replace(/\n+$/, "").split("\n");
  // The here-document ends at a line that contains only this word.
  let end = "JOB";
  while (lines.includes(end)) end += "_";
  return [`cat > ${file} <<'${end}'`, ...lines, end, `shoal run ${file} --url ${url}`].join("\n");
}
