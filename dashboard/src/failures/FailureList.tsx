import { memo, useMemo, useState, type ReactNode } from "react";
import type { Failure } from "../api/types";
import { count } from "../format/number";
import { visible } from "../format/text";
import { useText } from "../router";
import { Icon } from "../ui/Icon";
import { chosen, counts, OUTCOMES, PHASES } from "./failures";
import { Moment } from "../ui/Moment";
import "../styles/observe.css";

const PAGE = 50;

interface Props {
  failures: Failure[];
  /** What sets them apart: those of a job have nodes, those of a node have jobs. */
  by?: "node" | "job";
}

/** Failures, newest first, of one node (or job) or one phase if that is chosen. */
export function FailureList({ failures, by = "node" }: Props) {
  const [one, setOne] = useText(by);
  const [phase, setPhase] = useText("phase");
  const [shown, setShown] = useState(PAGE);
  const found = useMemo(() => chosen(failures, { [by]: one, phase }), [failures, by, one, phase]);
  return (
    <section className="failures" aria-label="Failures" data-testid="failures">
      <header className="section-head">
        <h2>Failures</h2>
        <p className="summary" role="status">
          {failures.length === 0 ? "" : `${count(found.length)} of ${count(failures.length)}`}
        </p>
        {failures.length > 0 && (
          <div className="filters">
            <Choice label={by === "node" ? "Node" : "Job"} value={one} onChoose={setOne} options={counts(failures, by)} />
            <Choice
              label="Phase"
              value={phase}
              onChoose={setPhase}
              options={counts(failures, "phase")}
              word={(one) => PHASES[one as keyof typeof PHASES] ?? one}
            />
          </div>
        )}
      </header>
      <div className="panel">
        {found.length === 0 ? (
          <p className="nothing">{failures.length === 0 ? "Nothing has failed." : "Nothing of this kind has failed."}</p>
        ) : (
          <ol className="failure-list">
            {found.slice(0, shown).map((failure) => (
              <Entry key={failure.id} failure={failure} who={failure[by]} />
            ))}
          </ol>
        )}
        {found.length > shown && (
          <button type="button" className="quiet-button" onClick={() => setShown(shown + PAGE)}>
            Show {count(Math.min(PAGE, found.length - shown))} older
          </button>
        )}
      </div>
    </section>
  );
}

interface ChoiceProps {
  label: string;
  value: string;
  onChoose: (value: string) => void;
  options: [string, number][];
  word?: (option: string) => string;
}

/** One of what there is, or all. What the address names stays to be seen, even where there is none of it. */
function Choice({ label, value, onChoose, options, word = visible }: ChoiceProps) {
  const missing = value !== "" && !options.some(([option]) => option === value);
  return (
    <label className="choice">
      <span>{label}</span>
      <select value={value} onChange={(event) => onChoose(event.target.value)}>
        <option value="">all</option>
        {missing && <option value={value}>{word(value)} (none)</option>}
        {options.map(([option, times]) => (
          <option key={option} value={option}>
            {word(option)} ({count(times)})
          </option>
        ))}
      </select>
    </label>
  );
}

const Entry = memo(function Entry({ failure, who }: { failure: Failure; who: string }) {
  const outcome = OUTCOMES[failure.outcome];
  const head: ReactNode = (
    <>
      <span className="failure-who">
        <bdi>{visible(who)}</bdi>
        <small>
          {PHASES[failure.phase]} · order {failure.order} · version {failure.version}
        </small>
      </span>
      <span className="failure-error">
        <bdi>{visible(failure.error)}</bdi>
      </span>
      <span className="failure-done" data-tone={outcome.tone}>
        <span>
          <Icon name={outcome.icon} /> {outcome.text}
        </span>
        {failure.outcome_why && (
          <small>
            <bdi>{visible(failure.outcome_why)}</bdi>
          </small>
        )}
      </span>
      <Moment at={failure.at} />
    </>
  );
  return (
    <li className="failure" data-phase={failure.phase}>
      {failure.traceback === "" ? (
        <div className="failure-head">{head}</div>
      ) : (
        <details>
          <summary className="failure-head">{head}</summary>
          <pre tabIndex={0} aria-label="Traceback">
            {visible(failure.traceback)}
          </pre>
        </details>
      )}
    </li>
  );
});
