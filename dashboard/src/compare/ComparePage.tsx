import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo } from "react";
import { AXES } from "../charts/axis";
import { AxisSelect } from "../charts/AxisSelect";
import { METRICS_SYNC } from "../charts/lineOptions";
import { ResetZoomButton } from "../charts/ResetZoomButton";
import { ScaleControls } from "../charts/ScaleControls";
import { useChartSettings } from "../charts/useChartSettings";
import { useZoom } from "../charts/useZoom";
import { isDynamic, type Unit } from "../domain/unit";
import { formatCount } from "../format/number";
import { useFollow } from "../live/LiveProvider";
import { Link, useParam, useTextParam } from "../router/router";
import { ErrorMessage } from "../ui/ErrorMessage";
import { Loading } from "../ui/QueryStatus";
import type { Comparison } from "./comparison";
import { ConfigDiff } from "./ConfigDiff";
import { CostTable } from "./CostTable";
import { NodeCostTable } from "./NodeCostTable";
import { compareQuery } from "./queries";
import { RunsChart } from "./RunsChart";
import "../styles/job.css";
import "../styles/compare.css";

/** With more runs, the title shows their number instead of their names. */
const NAMES_MAX = 6;

/** Page that compares up to a hundred jobs: /compare?runs=a,b&target=0.95 */
export function ComparePage() {
  useFollow(null);
  const param = useParam("runs");
  const names = useMemo(() => [...new Set(param.split(",").filter((name) => name !== ""))], [param]);
  const [targetParam] = useTextParam("target");
  const target = targetParam !== "" && Number.isFinite(Number(targetParam)) ? Number(targetParam) : undefined;
  const { data, error } = useQuery(compareQuery(names, target));
  const title = names.length <= NAMES_MAX ? names.join(" · ") : `${formatCount(names.length)} runs`;
  useEffect(() => void (document.title = `${title} · Compare · shoal`), [title]);
  return (
    <section className="compare">
      <nav className="crumbs" aria-label="Breadcrumb">
        <Link href="/">Jobs</Link>
      </nav>
      <header className="page-head">
        <h1>Compare</h1>
        {names.length > 0 && <p className="summary">{title}</p>}
      </header>
      {names.length === 0 && (
        <p className="panel nothing">
          No jobs selected. Select two or more in the <Link href="/">list of jobs</Link>.
        </p>
      )}
      {error && <ErrorMessage error={error} />}
      {!error && names.length > 0 && data === undefined && <Loading />}
      {data !== undefined && names.length > 0 && <Runs comparison={data} />}
    </section>
  );
}

function Runs({ comparison }: { comparison: Comparison }) {
  const { settings, setAxis, ...setters } = useChartSettings(AXES);
  const [highlighted, setHighlighted] = useTextParam("run");
  const zoom = useZoom("zoom", METRICS_SYNC);
  const { rows, metrics } = comparison;
  const runs = useMemo(() => rows.map(({ run }) => run), [rows]);
  // Beside the versions of a dynamic job, rounds are called versions too.
  const unit: Unit = runs.some(({ job }) => isDynamic(job)) ? "version" : "round";
  const shared = { runs, highlighted, settings, unit, zoom };
  return (
    <>
      <div className="toolbar">
        <h2>Metrics</h2>
        <ResetZoomButton zoom={zoom} />
        <ScaleControls settings={settings} {...setters} onScaleChange={zoom.reset} />
        <AxisSelect
          axis={settings.axis}
          axes={AXES}
          fromStart
          unit={unit}
          onChange={(axis) => {
            zoom.reset();
            setAxis(axis);
          }}
        />
      </div>
      <div className="pair">
        <div className="panel">
          <RunsChart kind="accuracy" metric={metrics.accuracy} {...shared} />
        </div>
        <div className="panel">
          <RunsChart kind="loss" metric={metrics.loss} {...shared} />
        </div>
      </div>
      <CostTable comparison={comparison} highlighted={highlighted} onHighlight={setHighlighted} />
      <ConfigDiff runs={runs} />
      <NodeCostTable comparison={comparison} highlighted={highlighted} />
    </>
  );
}
