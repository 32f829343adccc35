/** What a machine that is to be a node runs, ready to be copied. */

export interface Ask {
  /** Where the coordinator is, as the other machine sees it. */
  address: string;
  token: string;
  /** Empty: the machine's own name. */
  name: string;
  /** FILE.py:NAME of the model and data. */
  learner: string;
}

/** Names that the coordinator takes. */
export const NAME = /^[a-z0-9][a-z0-9._-]{0,62}$/;

const named = ({ name }: Ask) => (name === "" ? "" : ` --name ${name}`);

/** As a word of a shell: nothing in it is more than text. */
const word = (text: string): string => (/^[\w./:@%+,=-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

const join = (ask: Ask): string =>
  `shoal join ${word(ask.address)} --token ${word(ask.token)} --learner ${word(ask.learner)}${named(ask)}`;

export const pipLines = (ask: Ask): string => `pip install 'shoal[torch]'\n${join(ask)}`;

/** The node's credential and unsent reports outlive the container on a volume; the learner's file is mounted beside. */
export function dockerLines({ address, token, name, learner }: Ask): string {
  const variables = [
    `SHOAL_EDGE__URL=${address}`,
    `SHOAL_EDGE__TOKEN=${token}`,
    `SHOAL_EDGE__LEARNER=${inside(learner)}`,
    ...(name === "" ? [] : [`SHOAL_EDGE__NAME=${name}`]),
  ];
  return [
    "docker build -f edge_client/Dockerfile -t shoal-edge-client .",
    "docker run -d --restart unless-stopped --read-only --tmpfs /tmp --cap-drop ALL \\",
    `  -v shoal${name === "" ? "" : `-${name}`}:/data -v "$PWD":/model:ro \\`,
    ...variables.map((one) => `  -e ${word(one)} \\`),
    "  shoal-edge-client",
  ].join("\n");
}

/** A file of this folder, where the container has it; a module of a package is found there by its name. */
const inside = (learner: string): string =>
  /^[^/].*\.py:/.test(learner) ? `/model/${learner.replace(/^\.\//, "")}` : learner;

/** Whether others cannot reach what this browser calls so. */
export const isLoopback = (host: string): boolean => /^(localhost|127\.|\[?::1\]?$)/.test(host);
