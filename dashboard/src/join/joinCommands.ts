/** Commands with which a machine joins as a node. */

export interface JoinOptions {
  /** The coordinator's address. */
  address: string;
  token: string;
  /** Empty: the machine's own name. */
  name: string;
  /** FILE.py:NAME of the model and data. */
  learner: string;
}

/** No package index has shoal. */
const INSTALL = "pip install '.[torch]'    # in a clone of shoal; with its wheel: pip install 'shoal-….whl[torch]'";

/** Valid node names. */
export const NAME = /^[a-z0-9][a-z0-9._-]{0,62}$/;

const nameOption = ({ name }: JoinOptions) => (name === "" ? "" : ` --name ${name}`);

/** Quote a word for a POSIX shell. */
const shellQuote = (text: string): string => (/^[\w./:@%+,=-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

const joinCommand = (ask: JoinOptions): string =>
  `shoal join ${shellQuote(ask.address)} --token ${shellQuote(ask.token)} --learner ${shellQuote(ask.learner)}${nameOption(ask)}`;

export const pipCommands = (ask: JoinOptions): string => `${INSTALL}\n${joinCommand(ask)}`;

/** Return the lines with which a training script becomes a node. Python reads JSON texts as its own. */
export function scriptLines({ address, token, name }: JoinOptions): string {
  const named = name === "" ? "" : `, name=${JSON.stringify(name)}`;
  return [
    "import shoal",
    "",
    `with shoal.join(${JSON.stringify(address)}, token=${JSON.stringify(token)}${named}) as node:`,
    "    for task in node.tasks(model):",
    "        metrics = train(model, epochs=task.epochs)",
    "        task.report(model, examples=len(data), metrics=metrics)",
  ].join("\n");
}

/**
 * Return the commands with Docker. A volume keeps the node's credential and unsent reports; the learner's file is
 * mounted.
 */
export function dockerCommands({ address, token, name, learner }: JoinOptions): string {
  const variables = [
    `SHOAL_EDGE__URL=${address}`,
    `SHOAL_EDGE__TOKEN=${token}`,
    `SHOAL_EDGE__LEARNER=${containerPath(learner)}`,
    ...(name === "" ? [] : [`SHOAL_EDGE__NAME=${name}`]),
  ];
  return [
    "docker build -f edge_client/Dockerfile -t shoal-edge-client .",
    "docker run -d --restart unless-stopped --read-only --tmpfs /tmp --cap-drop ALL \\",
    `  -v shoal${name === "" ? "" : `-${name}`}:/data -v "$PWD":/model:ro \\`,
    ...variables.map((one) => `  -e ${shellQuote(one)} \\`),
    "  shoal-edge-client",
  ].join("\n");
}

/** Return the learner's path inside the container; modules of packages are found by name. */
const containerPath = (learner: string): string =>
  /^[^/].*\.py:/.test(learner) ? `/model/${learner.replace(/^\.\//, "")}` : learner;

/** Return whether a host name is a loopback address. */
export const isLoopback = (host: string): boolean => /^(localhost|127\.|\[?::1\]?$)/.test(host);
