import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import type { ClientInRound, Round } from "../api/types";
import { ChartFrame } from "../charts/ChartFrame";
import { toCsv } from "../charts/csv";
import { formatReportMetric } from "../domain/reportMetrics";
import type { Unit } from "../domain/unit";
import { formatCount, UNKNOWN } from "../format/number";
import { capitalize, escapeHidden } from "../format/text";
import { Link, nodePath, useTextParam } from "../router/router";
import { QueryStatus } from "../ui/QueryStatus";
import { Table, type Column } from "../ui/Table";
import { roundQuery } from "./queries";
import { layOutRound, PHASES, type Bar, type Phase } from "./timeline";
import { Term } from "../ui/Term";

interface Props {
  job: string;
  /** The newest version; the round after it may be open. */
  newest: number;
  live: boolean;
  unit: Unit;
}

const PHASE_LABELS: Record<Phase, string> = {
  wait: "waiting",
  download: "download",
  train: "training",
  upload: "upload",
  fold: "aggregation",
};

const formatSeconds = (seconds: number | null): string => formatReportMetric("seconds", seconds);

/** Timeline of one round: the phases of each client, the quorum and the deadline. */
export function RoundTimeline({ job, newest, live, unit }: Props) {
  const [param, setParam] = useTextParam("round");
  const wanted = Number.parseInt(param, 10);
  const last = live ? newest + 1 : newest;
  const number = Number.isInteger(wanted) && wanted >= 1 ? Math.min(wanted, last) : Math.max(1, newest);
  const { data: round, error, refetch } = useQuery(roundQuery(job, number, live));
  const choose = (value: number) => setParam(value === newest ? "" : String(value));
  return (
    <>
      <div className="toolbar">
        <h2>{capitalize(unit)} timeline</h2>
        <div className="stepper">
          <button type="button" className="quiet-button" disabled={number <= 1} onClick={() => choose(number - 1)}>
            Previous
          </button>
          <label>
            {capitalize(unit)}{" "}
            <input
              type="number"
              min={1}
              max={last}
              value={number}
              data-testid="round-number"
              onChange={(event) => event.target.value !== "" && setParam(event.target.value)}
            />
          </label>
          <button type="button" className="quiet-button" disabled={number >= last} onClick={() => choose(number + 1)}>
            Next
          </button>
        </div>
      </div>
      <div className="panel">
        {round !== undefined ? (
          <Chart round={round} unit={unit} />
        ) : newest === 0 && !live ? (
          <p className="nothing">No {unit} has closed.</p>
        ) : (
          <QueryStatus query={{ error, refetch }} />
        )}
      </div>
    </>
  );
}

function Chart({ round, unit }: { round: Round; unit: Unit }) {
  const layout = useMemo(() => layOutRound(round), [round]);
  const height = Math.max(96, layout.bars.length * 24);
  return (
    <ChartFrame
      title={`Phases of each node in ${unit} ${formatCount(round.round)} (s)${round.state === "open" ? ", in progress" : ""}`}
      testId="round"
      label={null}
      height={Math.min(height, 420)}
      empty={layout.bars.length === 0 ? `No reports for this ${unit} yet` : null}
      legend={
        <>
          {PHASES.map((phase) => (
            <span key={phase} className="readout-item">
              <i className={`swatch block phase-${phase}`} /> {PHASE_LABELS[phase]}
            </span>
          ))}
          <span className="readout-place">{summarize(round)}</span>
        </>
      }
      plot={
        <div className="timeline">
          <ol>
            {layout.bars.map((bar) => (
              <Row key={bar.task + bar.node} bar={bar} quorum={layout.quorum} deadline={layout.deadline} />
            ))}
          </ol>
          <p className="timeline-axis">
            <span>{layout.from === 0 ? "0 s" : formatSeconds(layout.from)}</span>
            {layout.quorum !== null && (
              <span className="timeline-quorum">
                ┊ <Term of="quorum">quorum</Term> of {round.quorum} at {formatSeconds(round.quorum_s)}
              </span>
            )}
            {round.deadline_s !== null && (
              <span className="timeline-deadline">
                ┃ deadline {layout.deadline === null && "later, "}at {formatSeconds(round.deadline_s)}
              </span>
            )}
            <span>{formatSeconds(layout.to)}</span>
          </p>
          {round.next !== null && (
            <p className="faint">
              The first {formatCount(layout.bars.length)} nodes of this {unit}.
            </p>
          )}
        </div>
      }
      table={() => <Table columns={COLUMNS} rows={round.clients} rowKey={({ task, node }) => task + node} />}
      csv={() =>
        toCsv(
          ["node", "task", "start_s", "end_s", "staleness", ...PHASES.map((phase) => `${phase}_s`)],
          round.clients.map(({ node, task, start_s, end_s, staleness, phases }) => [
            node,
            task,
            start_s,
            end_s,
            staleness,
            ...PHASES.map((phase) => phases[`${phase}_s`]),
          ]),
        )
      }
    />
  );
}

function summarize({ state, clients, asked, seconds, why }: Round): string {
  const reported = clients.filter(({ end_s }) => end_s !== null).length;
  const duration = `${state === "open" ? "for" : "in"} ${formatSeconds(seconds)}`;
  return `${formatCount(reported)} of ${formatCount(asked)} ${duration}${why && ` · ${why}`}`;
}

function Row({ bar, quorum, deadline }: { bar: Bar; quorum: number | null; deadline: number | null }) {
  const phases = bar.segments.map(({ phase, seconds }) => `${PHASE_LABELS[phase]} ${formatSeconds(seconds)}`).join(", ");
  const staleness = bar.staleness > 0 ? `, staleness ${formatCount(bar.staleness)}` : "";
  const end = bar.end === null ? "no report yet" : `reported at ${formatSeconds(bar.end)}`;
  return (
    <li>
      <Link href={nodePath(bar.node)} className="timeline-name">
        <bdi>{escapeHidden(bar.node)}</bdi>
      </Link>
      <div
        className="timeline-track"
        role="img"
        aria-label={`${end}${staleness}: ${phases || "phases unknown"}`}
        title={`${end}${staleness}: ${phases}`}
      >
        {bar.segments.map(({ phase, from, width }) => (
          <i key={phase} className={`phase-${phase}`} style={{ left: `${100 * from}%`, width: `max(2px, ${100 * width}%)` }} />
        ))}
        {quorum !== null && <i className="mark-quorum" style={{ left: `${100 * quorum}%` }} />}
        {deadline !== null && <i className="mark-deadline" style={{ left: `calc(${100 * deadline}% - 2px)` }} />}
      </div>
      <span className="timeline-end">{bar.end === null ? "…" : formatSeconds(bar.end)}</span>
    </li>
  );
}

const secondsOrUnknown = (seconds: number | null): string => (seconds === null ? UNKNOWN : formatSeconds(seconds));

const COLUMNS: Column<ClientInRound>[] = [
  { title: "Node", cell: ({ node }) => <bdi>{escapeHidden(node)}</bdi> },
  ...PHASES.map((phase): Column<ClientInRound> => ({
    title: capitalize(PHASE_LABELS[phase]),
    numeric: true,
    cell: ({ phases }) => secondsOrUnknown(phases[`${phase}_s`]),
  })),
  { title: "Reported at", numeric: true, cell: ({ end_s }) => secondsOrUnknown(end_s) },
  { title: "Staleness", term: "staleness", numeric: true, cell: ({ staleness }) => formatCount(staleness) },
];
