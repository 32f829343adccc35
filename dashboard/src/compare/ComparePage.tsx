import { useQueries } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { chartVersionsQuery, jobQuery, trafficQuery } from "../api/queries";
import { AXES } from "../charts/axis";
import { AxisChoice } from "../charts/AxisChoice";
import { SYNC } from "../charts/lineOptions";
import { resetZoom, type Zoom } from "../charts/options";
import type { What } from "../format/metric";
import { bytes, count, figure, percent, UNKNOWN } from "../format/number";
import { visible } from "../format/text";
import { duration } from "../format/time";
import { isDynamic, type Unit } from "../format/unit";
import { useFollow } from "../live/LiveProvider";
import { jobPath, Link, useChoice, useParam } from "../router";
import { Problem } from "../ui/Problem";
import { RunsChart, Swatch } from "./RunsChart";
import { nodePrices } from "./nodes";
import { commonMetric, compareRuns, type Row, type Run } from "./runs";
import "../styles/job.css";
import "../styles/compare.css";

/** Several jobs over each other: /compare?runs=a,b&target=0.95 */
export function ComparePage() {
  useFollow(null);
  const given = useParam("runs");
  const names = useMemo(() => [...new Set(given.split(",").filter((name) => name !== ""))], [given]);
  const jobs = useQueries({ queries: names.map(jobQuery) });
  const versions = useQueries({ queries: names.map(chartVersionsQuery) });
  useEffect(() => void (document.title = `${names.join(", ")} · Compare · shoal`), [names]);
  const error = [...jobs, ...versions].find((query) => query.error)?.error;
  const runs = jobs.flatMap(({ data: job }, index): Run[] => {
    const found = versions[index]?.data;
    return job && found ? [{ job, versions: found }] : [];
  });
  return (
    <section className="compare">
      <nav className="crumbs" aria-label="Where you are">
        <Link href="/">Jobs</Link>
      </nav>
      <header className="page-head">
        <h1>Compare</h1>
        <p className="summary">{names.length === 0 ? "Tick jobs in the list to compare them." : names.join(" · ")}</p>
      </header>
      {error && <Problem error={error} />}
      {!error && runs.length < names.length && <p className="loading">Asking the coordinator …</p>}
      {!error && names.length > 0 && runs.length === names.length && <Charts runs={runs} />}
    </section>
  );
}

function Charts({ runs }: { runs: Run[] }) {
  const [axis, setAxis] = useChoice("x", AXES);
  const [zoom] = useState<Zoom>(() => ({ current: null }));
  // Rounds and versions of a dynamic job side by side are both versions.
  const unit: Unit = runs.some(({ job }) => isDynamic(job)) ? "version" : "round";
  const what: What = commonMetric("accuracy", runs) === undefined ? "loss" : "accuracy";
  return (
    <>
      <div className="toolbar">
        <h2>Learning</h2>
        <AxisChoice
          axis={axis}
          unit={unit}
          onChange={(chosen) => {
            resetZoom(zoom, SYNC);
            setAxis(chosen);
          }}
        />
      </div>
      <div className="pair">
        <div className="panel">
          <RunsChart what="accuracy" runs={runs} axis={axis} unit={unit} zoom={zoom} />
        </div>
        <div className="panel">
          <RunsChart what="loss" runs={runs} axis={axis} unit={unit} zoom={zoom} />
        </div>
      </div>
      <Prices runs={runs} what={what} />
    </>
  );
}

/** What a byte bought, as `shoal compare` prints it. */
function Prices({ runs, what }: { runs: Run[]; what: What }) {
  const wanted = Number(useParam("target") || NaN);
  const metric = commonMetric(what, runs);
  if (metric === undefined) return null;
  const { target, baseline, rows } = compareRuns(runs, what, metric, Number.isFinite(wanted) ? wanted : undefined);
  const write = what === "accuracy" ? (value: number | undefined) => percent(value) : figure;
  const goal = write(target);
  const columns = ["Final", "Best", "Synchronisations", "Up", "Down", `Bytes to ${goal}`, `Time to ${goal}`, "Of baseline"];
  return (
    <>
      <div className="panel prices">
        <table className="data-table" data-testid="compare-table">
          <caption className="sub">
            {metric}; the bytes of {baseline} are the baseline
          </caption>
          <thead>
            <tr>
              <th scope="col">Run</th>
              {columns.map((column) => (
                <th key={column} scope="col" className="num">
                  {column}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map(({ run: { job }, ...row }, index) => (
              <tr key={job.name}>
                <th scope="row">
                  <Swatch run={index} />
                  <Link href={jobPath(job.name)}>{job.name}</Link>{" "}
                  <span className="sub">
                    {visible(job.algorithm)} · {visible(job.schedule)}
                  </span>
                </th>
                <td className="num">{write(row.final)}</td>
                <td className="num">{write(row.best)}</td>
                <td className="num">{count(row.syncs)}</td>
                <td className="num">{bytes(job.up_bytes)}</td>
                <td className="num">{bytes(job.down_bytes)}</td>
                <td className="num">{row.reached ? bytes(row.reached.total_bytes) : UNKNOWN}</td>
                <td className="num">{duration(row.reached?.elapsed_s)}</td>
                <td className="num">{percent(row.ratio)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <NodePrices rows={rows} goal={goal} />
    </>
  );
}

/** What each node sent and got until its run reached the target. */
function NodePrices({ rows, goal }: { rows: Row[]; goal: string }) {
  const traffic = useQueries({ queries: rows.map(({ run }) => trafficQuery(run.job)) });
  const columns = ["Up", "Down", `Up to ${goal}`, `Down to ${goal}`, `Bytes to ${goal}`];
  return (
    <div className="panel prices">
      <table className="data-table" data-testid="compare-nodes">
        <caption className="sub">By node: heads, polls and models</caption>
        <thead>
          <tr>
            <th scope="col">Run</th>
            <th scope="col">Node</th>
            {columns.map((column) => (
              <th key={column} scope="col" className="num">
                {column}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.flatMap(({ run: { job }, reached }, index) =>
            nodePrices(traffic[index]?.data ?? [], reached?.number).map(({ node, up, down, price }) => (
              <tr key={`${job.name} ${node}`}>
                <th scope="row">
                  <Swatch run={index} />
                  {job.name}
                </th>
                <td>{node === "" ? "(no node)" : node}</td>
                <td className="num">{bytes(up)}</td>
                <td className="num">{bytes(down)}</td>
                <td className="num">{price ? bytes(price.up) : UNKNOWN}</td>
                <td className="num">{price ? bytes(price.down) : UNKNOWN}</td>
                <td className="num">{price ? bytes(price.up + price.down) : UNKNOWN}</td>
              </tr>
            )),
          )}
        </tbody>
      </table>
    </div>
  );
}
