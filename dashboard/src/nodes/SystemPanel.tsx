import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { clock } from "../format/time";
import { Unanswered } from "../ui/Unanswered";
import { systemQuery } from "./queries";
import { linePath, newest, systemCharts, type SystemChart } from "./system";

const WIDTH = 220;
const HEIGHT = 48;

const SPANS = [
  { seconds: 3600, text: "1 hour" },
  { seconds: 6 * 3600, text: "6 hours" },
  { seconds: 86400, text: "24 hours" },
] as const;

/** How the node's machine does: processor, memory, GPU, network, disk, battery, over the last hours. */
export function SystemPanel({ node }: { node: string }) {
  const [seconds, setSeconds] = useState<number>(SPANS[0].seconds);
  const question = useQuery(systemQuery(node, seconds));
  const { data } = question;
  const at = data?.at.map((time) => Date.parse(time)) ?? [];
  const charts = data === undefined ? [] : systemCharts(data);
  return (
    <section aria-label="System metrics" data-testid="node-system">
      <header className="section-head">
        <h2>System</h2>
        <label className="pick">
          Last{" "}
          <select value={seconds} onChange={(event) => setSeconds(Number(event.target.value))} data-testid="system-span">
            {SPANS.map((span) => (
              <option key={span.seconds} value={span.seconds}>
                {span.text}
              </option>
            ))}
          </select>
        </label>
      </header>
      {data === undefined ? (
        <Unanswered question={question} />
      ) : charts.length === 0 ? (
        <p className="panel nothing">Nothing was measured in this time: a node measures once a minute while it runs.</p>
      ) : (
        <div className="panel system-charts">
          {charts.map((chart) => (
            <Chart key={chart.name} chart={chart} at={at} />
          ))}
        </div>
      )}
    </section>
  );
}

function Chart({ chart, at }: { chart: SystemChart; at: number[] }) {
  const value = newest(chart.values);
  const said = value === null ? "–" : chart.write(value);
  const since = at[0] === undefined ? "" : clock(at[0], Date.now());
  return (
    <figure className="system-chart" data-testid={`system-${chart.name}`}>
      <figcaption>
        {chart.title} <b>{said}</b> <small className="faint">{chart.of}</small>
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`${chart.title}: ${said} now, since ${since}`}>
        <path d={`M0 ${HEIGHT}H${WIDTH}`} className="system-floor" />
        <path d={linePath(at, chart.values, chart.top, WIDTH, HEIGHT - 2)} className="system-line" />
      </svg>
      <small className="faint system-ends">
        <span>{since}</span>
        <span>{`0 – ${chart.write(chart.top)}`}</span>
      </small>
    </figure>
  );
}
