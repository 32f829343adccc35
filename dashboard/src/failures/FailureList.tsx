import { memo, useMemo, useState, type ReactNode } from "react";
import type { Failure } from "../api/types";
import { formatCount } from "../format/number";
import { escapeHidden } from "../format/text";
import { useTextParam } from "../router/router";
import { Icon } from "../ui/Icon";
import { filterFailures, countBy, OUTCOMES, PHASES } from "./failures";
import { Timestamp } from "../ui/Timestamp";
import "../styles/observe.css";

const PAGE = 50;

interface Props {
  failures: Failure[];
  /** The field by which the list can be filtered: failures of a job have nodes, those of a node have jobs. */
  by?: "node" | "job";
}

/** List of failures, newest first, with filters. */
export function FailureList({ failures, by = "node" }: Props) {
  const [one, setOne] = useTextParam(by);
  const [phase, setPhase] = useTextParam("phase");
  const [shown, setShown] = useState(PAGE);
  const found = useMemo(() => filterFailures(failures, { [by]: one, phase }), [failures, by, one, phase]);
  return (
    <section className="failures" aria-label="Failures" data-testid="failures">
      <header className="section-head">
        <h2>Failures</h2>
        <p className="summary" role="status">
          {failures.length === 0 ? "" : `${formatCount(found.length)} of ${formatCount(failures.length)}`}
        </p>
        {failures.length > 0 && (
          <div className="filters">
            <Choice label={by === "node" ? "Node" : "Job"} value={one} onChoose={setOne} options={countBy(failures, by)} />
            <Choice
              label="Phase"
              value={phase}
              onChoose={setPhase}
              options={countBy(failures, "phase")}
              format={(one) => PHASES[one as keyof typeof PHASES] ?? one}
            />
          </div>
        )}
      </header>
      <div className="panel">
        {found.length === 0 ? (
          <p className="nothing">{failures.length === 0 ? "No failures" : "No matching failures"}</p>
        ) : (
          <ol className="failure-list">
            {found.slice(0, shown).map((failure) => (
              <Entry key={failure.id} failure={failure} subject={failure[by]} />
            ))}
          </ol>
        )}
        {found.length > shown && (
          <button type="button" className="quiet-button" onClick={() => setShown(shown + PAGE)}>
            Show {formatCount(Math.min(PAGE, found.length - shown))} older
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
  format?: (option: string) => string;
}

/** Filter by one of the values that occur. A value from the address is listed even if it does not occur. */
function Choice({ label, value, onChoose, options, format = escapeHidden }: ChoiceProps) {
  const missing = value !== "" && !options.some(([option]) => option === value);
  return (
    <label className="choice">
      <span>{label}</span>
      <select value={value} onChange={(event) => onChoose(event.target.value)}>
        <option value="">all</option>
        {missing && <option value={value}>{format(value)} (none)</option>}
        {options.map(([option, times]) => (
          <option key={option} value={option}>
            {format(option)} ({formatCount(times)})
          </option>
        ))}
      </select>
    </label>
  );
}

const Entry = memo(function Entry({ failure, subject }: { failure: Failure; subject: string }) {
  const outcome = OUTCOMES[failure.outcome];
  const head: ReactNode = (
    <>
      <span className="failure-who">
        <bdi>{escapeHidden(subject)}</bdi>
        <small>
          {PHASES[failure.phase]} · task {failure.task} · version {failure.version}
        </small>
      </span>
      <span className="failure-error">
        <bdi>{escapeHidden(failure.error)}</bdi>
      </span>
      <span className="failure-done" data-tone={outcome.tone}>
        <span>
          <Icon name={outcome.icon} /> {outcome.text}
        </span>
        {failure.outcome_why && (
          <small>
            <bdi>{escapeHidden(failure.outcome_why)}</bdi>
          </small>
        )}
      </span>
      <Timestamp at={failure.at} />
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
            {escapeHidden(failure.traceback)}
          </pre>
        </details>
      )}
    </li>
  );
});
