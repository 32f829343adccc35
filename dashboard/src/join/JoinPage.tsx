import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useId, type FormEvent } from "react";
import { createNodeToken } from "../api/commands";
import { sessionQuery } from "../queries/session";
import { fleetQuery } from "../queries/fleet";
import { queryKeys } from "../api/queryKeys";
import type { FleetNode } from "../api/types";
import { escapeHidden } from "../format/text";
import { formatTime } from "../format/time";
import { useFollow } from "../live/LiveProvider";
import { useNow } from "../live/useNow";
import { Link, nodePath, useTextParam } from "../router/router";
import { CopyButton } from "../ui/CopyButton";
import { Icon } from "../ui/Icon";
import { ErrorMessage } from "../ui/ErrorMessage";
import { StateBadge } from "../ui/StateBadge";
import { Term } from "../ui/Term";
import { newNodes } from "./newNodes";
import { TokensTable } from "./TokensTable";
import { dockerCommands, isLoopback, NAME, pipCommands, scriptLines } from "./joinCommands";
import "../styles/join.css";

const AGAIN_MS = 1000;
/** Placeholder of the learner. */
const LEARNER = "mine.py:learner";

/** Page that creates a token and shows the commands with which a node joins. */
export function JoinPage() {
  useFollow(null);
  const { data: role } = useQuery(sessionQuery);
  useEffect(() => void (document.title = "Add a node · shoal"), []);
  return (
    <section className="join">
      <nav className="crumbs" aria-label="Breadcrumb">
        <Link href="/nodes">Nodes</Link>
      </nav>
      <header className="page-head">
        <h1>Add a node</h1>
      </header>
      <p className="sub join-lead">
        Create a token for the <Term of="enrolment">enrolment</Term> of one node, and run the commands on the node's machine. The
        node appears here as soon as it connects.
      </p>
      {role === "operator" ? (
        <TokenForm />
      ) : (
        <p className="panel nothing">Only operators can add nodes. Sign in with an operator's token.</p>
      )}
    </section>
  );
}

interface CreatedToken {
  token: string;
  expires_at: string | null;
  name: string;
  /** The nodes before the token was created. */
  before: FleetNode[];
  /** True if the coordinator listens on a loopback address only. */
  loopback: boolean;
}

function TokenForm() {
  const [name, setName] = useTextParam("name");
  const [given, setLearner] = useTextParam("learner");
  const learner = given || LEARNER;
  const client = useQueryClient();
  const { data: fleet } = useQuery(fleetQuery);
  const [nameField, learnerField] = [useId(), useId()];
  const made = useMutation({
    mutationFn: async (): Promise<CreatedToken> => ({ ...(await createNodeToken(name)), name, before: fleet ?? [] }),
    onSuccess: () => client.invalidateQueries({ queryKey: queryKeys.tokens }),
  });
  const isWrong = name !== "" && !NAME.test(name);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!isWrong) made.mutate();
  };
  return (
    <>
      <form className="panel form join-form" onSubmit={submit}>
        <div>
          <label htmlFor={nameField}>
            Name <span className="faint">(default: the host name)</span>
          </label>
          <input
            id={nameField}
            type="text"
            maxLength={63}
            autoComplete="off"
            placeholder="clinic-a"
            aria-invalid={isWrong}
            value={name}
            onChange={(event) => setName(event.target.value)}
          />
        </div>
        <div>
          <label htmlFor={learnerField}>
            Learner <span className="faint">(model and data)</span>
          </label>
          <input
            id={learnerField}
            type="text"
            autoComplete="off"
            placeholder={LEARNER}
            value={given}
            onChange={(event) => setLearner(event.target.value)}
          />
        </div>
        <button
          type="submit"
          className="button primary"
          disabled={isWrong || made.isPending || fleet === undefined}
          data-testid="create-token"
        >
          <Icon name="key" /> {made.data === undefined ? "Create token" : "Create another"}
        </button>
        {isWrong && <p className="join-wrong">Use lower-case letters, digits, dots and dashes; start with a letter or digit.</p>}
      </form>
      {made.error && <ErrorMessage error={made.error} />}
      {made.data && <JoinCommands key={made.data.token} made={made.data} learner={learner} />}
      <TokensTable />
    </>
  );
}

function JoinCommands({ made, learner }: { made: CreatedToken; learner: string }) {
  const { data: fleet = made.before } = useQuery({ ...fleetQuery, refetchInterval: AGAIN_MS });
  const now = useNow();
  const joined = newNodes(made.before, fleet).filter(({ name }) => made.name === "" || name === made.name);
  const ask = { address: location.origin, token: made.token, name: made.name, learner };
  const isOver = made.expires_at !== null && Date.parse(made.expires_at) < now;
  return (
    <>
      <p className="sub">
        The token is shown only once. One node can join with it
        {made.expires_at !== null && ` until ${formatTime(Date.parse(made.expires_at), now)}`}; afterwards the
        node has its own credential.
        {isLoopback(location.hostname) &&
          (made.loopback
            ? " Other machines cannot reach this coordinator: start it with --host 0.0.0.0."
            : ` On another machine, replace ${location.hostname} by this machine's name.`)}
      </p>
      <Snippet title="With pip" what="the pip commands" text={pipCommands(ask)} testId="pip-commands" />
      <Snippet title="With Docker" what="the Docker commands" text={dockerCommands(ask)} testId="docker-commands" />
      <Snippet title="In a training script" what="the lines of a script" text={scriptLines(ask)} testId="script-lines" />
      <div className="panel join-wait" role="status" data-testid="new-nodes">
        {joined.length > 0 ? (
          <ul>
            {joined.map((node) => (
              <li key={node.name}>
                <StateBadge state={node.state} />
                <Link href={nodePath(node.name)}>
                  <bdi>{escapeHidden(node.name)}</bdi>
                </Link>
                <span>{" has joined."}</span>
              </li>
            ))}
          </ul>
        ) : isOver ? (
          "The token has expired. Create another."
        ) : (
          "Waiting for the node…"
        )}
      </div>
    </>
  );
}

function Snippet({ title, what, text, testId }: { title: string; what: string; text: string; testId: string }) {
  return (
    <section className="panel join-lines" aria-label={title}>
      <header>
        <h2>{title}</h2>
        <CopyButton text={text} what={what} />
      </header>
      <pre tabIndex={0} data-testid={testId}>
        {text}
      </pre>
    </section>
  );
}
