import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { formatTime } from "../format/time";
import { QueryStatus } from "../ui/QueryStatus";
import { systemQuery } from "./queries";
import { linePath, latestValue, systemCharts, type SystemChart } from "./systemCharts";

const WIDTH = 220;
const HEIGHT = 48;

const TIME_RANGES = [
  { seconds: 3600, text: "1 hour" },
  { seconds: 6 * 3600, text: "6 hours" },
  { seconds: 86400, text: "24 hours" },
] as const;

/** Charts of the machine's CPU, memory, GPU, network, disk and battery. */
export function SystemPanel({ node }: { node: string }) {
  const [seconds, setSeconds] = useState<number>(TIME_RANGES[0].seconds);
  const query = useQuery(systemQuery(node, seconds));
  const { data } = query;
  const at = data?.at.map((time) => Date.parse(time)) ?? [];
  const charts = data === undefined ? [] : systemCharts(data);
  return (
    <section aria-label="System metrics" data-testid="node-system">
      <header className="section-head">
        <h2>System</h2>
        <label className="pick">
          Last{" "}
          <select value={seconds} onChange={(event) => setSeconds(Number(event.target.value))} data-testid="system-span">
            {TIME_RANGES.map((range) => (
              <option key={range.seconds} value={range.seconds}>
                {range.text}
              </option>
            ))}
          </select>
        </label>
      </header>
      {data === undefined ? (
        <QueryStatus query={query} />
      ) : charts.length === 0 ? (
        <p className="panel nothing">No data in this time range. Nodes report once a minute while they run.</p>
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
  const value = latestValue(chart.values);
  const text = value === null ? "–" : chart.write(value);
  const since = at[0] === undefined ? "" : formatTime(at[0], Date.now());
  return (
    <figure className="system-chart" data-testid={`system-${chart.name}`}>
      <figcaption>
        {chart.title} <b>{text}</b> <small className="faint">{chart.of}</small>
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`${chart.title}: ${text} now, since ${since}`}>
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
