import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useId, type FormEvent } from "react";
import { newToken } from "../api/commands";
import { fleetQuery, keys, sessionQuery } from "../api/queries";
import type { FleetNode } from "../api/types";
import { visible } from "../format/text";
import { clock } from "../format/time";
import { useFollow } from "../live/LiveProvider";
import { useNow } from "../live/useNow";
import { Link, nodePath, useText } from "../router";
import { Copy } from "../ui/Copy";
import { Icon } from "../ui/Icon";
import { Problem } from "../ui/Problem";
import { State } from "../ui/State";
import { arrived } from "./arrivals";
import { Tokens } from "./Tokens";
import { dockerLines, isLoopback, NAME, pipLines } from "./lines";
import "../styles/join.css";

const AGAIN_MS = 1000;
/** Whoever names none yet sees where it goes. */
const LEARNER = "mine.py:learner";

/** A token that lets a node in, the lines that a machine runs with it, and then the node. */
export function JoinPage() {
  useFollow(null);
  const { data: role } = useQuery(sessionQuery);
  useEffect(() => void (document.title = "Join a node · shoal"), []);
  return (
    <section className="join">
      <nav className="crumbs" aria-label="Where you are">
        <Link href="/nodes">Nodes</Link>
      </nav>
      <header className="page-head">
        <h1>Join a node</h1>
      </header>
      <p className="sub join-lead">
        A token lets one machine in, once. It is shown with the lines that the machine runs; the node appears here as soon as it
        connects, and takes part in every job that asks for it.
      </p>
      {role === "operator" ? (
        <Joining />
      ) : (
        <p className="panel nothing">Operators let nodes in. Sign in with an operator's token to make one for a node.</p>
      )}
    </section>
  );
}

interface Made {
  token: string;
  expires_at: string | null;
  name: string;
  /** Who was there before. */
  before: FleetNode[];
  /** Whether the coordinator can be reached from its own machine alone. */
  loopback: boolean;
}

function Joining() {
  const [name, setName] = useText("name");
  const [given, setLearner] = useText("learner");
  const learner = given || LEARNER;
  const client = useQueryClient();
  const { data: fleet } = useQuery(fleetQuery);
  const [nameField, learnerField] = [useId(), useId()];
  const made = useMutation({
    mutationFn: async (): Promise<Made> => ({ ...(await newToken(name)), name, before: fleet ?? [] }),
    onSuccess: () => client.invalidateQueries({ queryKey: keys.tokens }),
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
            Name <span className="faint">(empty: the machine's own)</span>
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
            Learner <span className="faint">(its model and data)</span>
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
          data-testid="make-token"
        >
          <Icon name="key" /> {made.data === undefined ? "Make a token" : "Make another"}
        </button>
        {isWrong && <p className="join-wrong">Small letters, digits, dots and dashes, beginning with a letter or digit.</p>}
      </form>
      {made.error && <Problem error={made.error} />}
      {made.data && <Lines key={made.data.token} made={made.data} learner={learner} />}
      <Tokens />
    </>
  );
}

function Lines({ made, learner }: { made: Made; learner: string }) {
  const { data: fleet = made.before } = useQuery({ ...fleetQuery, refetchInterval: AGAIN_MS });
  const now = useNow();
  const come = arrived(made.before, fleet).filter(({ name }) => made.name === "" || name === made.name);
  const ask = { address: location.origin, token: made.token, name: made.name, learner };
  const isOver = made.expires_at !== null && Date.parse(made.expires_at) < now;
  return (
    <>
      <p className="sub">
        The token is shown this once, and lets one node in
        {made.expires_at !== null && ` until ${clock(Date.parse(made.expires_at), now)}`}. The node keeps a credential of
        its own from then on.
        {isLoopback(location.hostname) &&
          (made.loopback
            ? " Other machines cannot reach this coordinator yet: start it with --host 0.0.0.0."
            : ` For another machine put this one's name in the place of ${location.hostname}.`)}
      </p>
      <Snippet title="With pip" what="the pip lines" text={pipLines(ask)} testId="pip-lines" />
      <Snippet title="With Docker" what="the Docker lines" text={dockerLines(ask)} testId="docker-lines" />
      <div className="panel join-wait" role="status" data-testid="arrivals">
        {come.length > 0 ? (
          <ul>
            {come.map((node) => (
              <li key={node.name}>
                <State state={node.state} />
                <Link href={nodePath(node.name)}>
                  <bdi>{visible(node.name)}</bdi>
                </Link>
                <span>{" has joined."}</span>
              </li>
            ))}
          </ul>
        ) : isOver ? (
          "Nobody came, and the token has expired. Make another."
        ) : (
          "Waiting for the node: it appears here when it connects."
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
        <Copy text={text} what={what} />
      </header>
      <pre tabIndex={0} data-testid={testId}>
        {text}
      </pre>
    </section>
  );
}
