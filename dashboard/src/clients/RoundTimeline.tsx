import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import type { Round } from "../api/types";
import { ChartFrame } from "../charts/ChartFrame";
import { toCsv } from "../charts/csv";
import { count, UNKNOWN } from "../format/number";
import { visible } from "../format/text";
import { capital, type Unit } from "../format/unit";
import { Link, nodePath, useText } from "../router";
import { roundQuery } from "./queries";
import { write } from "./quantity";
import { PHASES, timeline, type Bar } from "./timeline";
import { Unanswered } from "../ui/Unanswered";

interface Props {
  job: string;
  /** The newest version; the round after it may be under way. */
  newest: number;
  live: boolean;
  unit: Unit;
}

const WORDS = { wait: "waiting", download: "download", train: "training", upload: "upload", fold: "checking and folding" };

/** One round: what each client did when, and when it could have closed. */
export function RoundTimeline({ job, newest, live, unit }: Props) {
  const [text, setText] = useText("round");
  const asked = Number.parseInt(text, 10);
  const last = live ? newest + 1 : newest;
  const number = Number.isInteger(asked) && asked >= 1 ? Math.min(asked, last) : Math.max(1, newest);
  const { data: round, error, refetch } = useQuery(roundQuery(job, number, live));
  const choose = (value: number) => setText(value === newest ? "" : String(value));
  return (
    <>
      <div className="toolbar">
        <h2>One {unit}, client by client</h2>
        <div className="stepper">
          <button type="button" className="quiet-button" disabled={number <= 1} onClick={() => choose(number - 1)}>
            Earlier
          </button>
          <label>
            {capital(unit)}{" "}
            <input
              type="number"
              min={1}
              max={last}
              value={number}
              data-testid="round-number"
              onChange={(event) => event.target.value !== "" && setText(event.target.value)}
            />
          </label>
          <button type="button" className="quiet-button" disabled={number >= last} onClick={() => choose(number + 1)}>
            Later
          </button>
        </div>
      </div>
      <div className="panel">
        {round !== undefined ? (
          <Chart round={round} unit={unit} />
        ) : newest === 0 && !live ? (
          <p className="nothing">No {unit} has closed.</p>
        ) : (
          <Unanswered question={{ error, refetch }} />
        )}
      </div>
    </>
  );
}

function Chart({ round, unit }: { round: Round; unit: Unit }) {
  const found = useMemo(() => timeline(round), [round]);
  const height = Math.max(96, found.bars.length * 24);
  return (
    <ChartFrame
      title={`${capital(unit)} ${count(round.round)}${round.state === "open" ? ", under way" : ""}`}
      testId="round"
      label={null}
      height={Math.min(height, 420)}
      empty={found.bars.length === 0 ? `Nobody has worked on this ${unit}, as far as is known.` : null}
      readout={
        <>
          {PHASES.map((phase) => (
            <span key={phase} className="readout-item">
              <i className={`swatch block phase-${phase}`} /> {WORDS[phase]}
            </span>
          ))}
          <span className="readout-place">{summary(round)}</span>
        </>
      }
      plot={
        <div className="timeline">
          <ol>
            {found.bars.map((bar) => (
              <Row key={bar.order + bar.node} bar={bar} quorum={found.quorum} deadline={found.deadline} />
            ))}
          </ol>
          <p className="timeline-axis">
            <span>{found.from === 0 ? "0 s" : write("seconds", found.from)}</span>
            {found.quorum !== null && <span className="timeline-quorum">┊ quorum of {round.quorum} at {write("seconds", round.quorum_s)}</span>}
            {round.deadline_s !== null && (
              <span className="timeline-deadline">
                ┃ deadline {found.deadline === null && "later, "}at {write("seconds", round.deadline_s)}
              </span>
            )}
            <span>{write("seconds", found.to)}</span>
          </p>
          {round.next !== null && <p className="faint">The first {count(found.bars.length)} clients of this {unit}.</p>}
        </div>
      }
      table={() => <PhaseTable round={round} />}
      csv={() =>
        toCsv(
          ["client", "order", "start_s", "end_s", "staleness", ...PHASES.map((phase) => `${phase}_s`)],
          round.clients.map(({ node, order, start_s, end_s, staleness, phases: of }) => [
            node,
            order,
            start_s,
            end_s,
            staleness,
            of.wait_s,
            of.download_s,
            of.train_s,
            of.upload_s,
            of.fold_s,
          ]),
        )
      }
    />
  );
}

function summary({ state, clients, asked, seconds, why }: Round): string {
  const reported = clients.filter(({ end_s }) => end_s !== null).length;
  const took = `${state === "open" ? "for" : "in"} ${write("seconds", seconds)}`;
  return `${count(reported)} of ${count(asked)} ${took}${why && ` · ${why}`}`;
}

function Row({ bar, quorum, deadline }: { bar: Bar; quorum: number | null; deadline: number | null }) {
  const said = bar.segments.map(({ phase, seconds }) => `${WORDS[phase]} ${write("seconds", seconds)}`).join(", ");
  const late = bar.staleness > 0 ? `, ${count(bar.staleness)} behind` : "";
  const end = bar.end === null ? "has not reported" : `reported at ${write("seconds", bar.end)}`;
  return (
    <li>
      <Link href={nodePath(bar.node)} className="timeline-name">
        <bdi>{visible(bar.node)}</bdi>
      </Link>
      <div className="timeline-track" role="img" aria-label={`${end}${late}: ${said || "its phases are not known"}`} title={`${end}${late}: ${said}`}>
        {bar.segments.map(({ phase, from, width }) => (
          <i key={phase} className={`phase-${phase}`} style={{ left: `${100 * from}%`, width: `max(2px, ${100 * width}%)` }} />
        ))}
        {quorum !== null && <i className="mark-quorum" style={{ left: `${100 * quorum}%` }} />}
        {deadline !== null && <i className="mark-deadline" style={{ left: `calc(${100 * deadline}% - 2px)` }} />}
      </div>
      <span className="timeline-end">{bar.end === null ? "…" : write("seconds", bar.end)}</span>
    </li>
  );
}

function PhaseTable({ round }: { round: Round }) {
  return (
    <table className="data-table">
      <thead>
        <tr>
          <th scope="col">Client</th>
          {[...PHASES.map((phase) => WORDS[phase]), "reported at", "staleness"].map((name) => (
            <th key={name} scope="col" className="num">
              {name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {round.clients.map(({ node, order, phases, end_s, staleness }) => (
          <tr key={order + node}>
            <th scope="row">
              <bdi>{visible(node)}</bdi>
            </th>
            {[phases.wait_s, phases.download_s, phases.train_s, phases.upload_s, phases.fold_s, end_s].map((value, index) => (
              <td key={index} className="num">
                {value === null ? UNKNOWN : write("seconds", value)}
              </td>
            ))}
            <td className="num">{count(staleness)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
