import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo } from "react";
import { AXES } from "../charts/axis";
import { AxisChoice } from "../charts/AxisChoice";
import { SYNC } from "../charts/lineOptions";
import { ChartChoices } from "../charts/ChartChoices";
import { useLook } from "../charts/look";
import { ShowAll } from "../charts/ShowAll";
import { useZoom } from "../charts/zoom";
import { count } from "../format/number";
import { isDynamic, type Unit } from "../format/unit";
import { useFollow } from "../live/LiveProvider";
import { Link, useParam, useText } from "../router";
import { Problem } from "../ui/Problem";
import { Differing } from "./Differing";
import { NodePrices, Prices } from "./Prices";
import { compareQuery } from "./queries";
import { RunsChart } from "./RunsChart";
import type { Comparison } from "./runs";
import { Loading } from "../ui/Unanswered";
import "../styles/job.css";
import "../styles/compare.css";

const NAMED = 6;

/** Up to a hundred jobs over each other: /compare?runs=a,b&target=0.95 */
export function ComparePage() {
  useFollow(null);
  const given = useParam("runs");
  const names = useMemo(() => [...new Set(given.split(",").filter((name) => name !== ""))], [given]);
  const [wanted] = useText("target");
  const target = wanted !== "" && Number.isFinite(Number(wanted)) ? Number(wanted) : undefined;
  const { data, error } = useQuery(compareQuery(names, target));
  const title = names.length <= NAMED ? names.join(" · ") : `${count(names.length)} runs`;
  useEffect(() => void (document.title = `${title} · Compare · shoal`), [title]);
  return (
    <section className="compare">
      <nav className="crumbs" aria-label="Where you are">
        <Link href="/">Jobs</Link>
      </nav>
      <header className="page-head">
        <h1>Compare</h1>
        {names.length > 0 && <p className="summary">{title}</p>}
      </header>
      {names.length === 0 && (
        <p className="panel nothing">
          Nothing is compared yet. Tick two jobs or more in the <Link href="/">list of jobs</Link>.
        </p>
      )}
      {error && <Problem error={error} />}
      {!error && names.length > 0 && data === undefined && <Loading />}
      {data !== undefined && names.length > 0 && <Runs comparison={data} />}
    </section>
  );
}

function Runs({ comparison }: { comparison: Comparison }) {
  const { look, setAxis, ...choices } = useLook(AXES);
  const [alone, setAlone] = useText("run");
  const zoom = useZoom("zoom", SYNC);
  const { rows, metrics } = comparison;
  const runs = useMemo(() => rows.map(({ run }) => run), [rows]);
  // Rounds and versions of a dynamic job side by side are both versions.
  const unit: Unit = runs.some(({ job }) => isDynamic(job)) ? "version" : "round";
  const shared = { runs, alone, look, unit, zoom };
  return (
    <>
      <div className="toolbar">
        <h2>Learning</h2>
        <ShowAll zoom={zoom} />
        <ChartChoices look={look} {...choices} onScale={zoom.showAll} />
        <AxisChoice
          axis={look.axis}
          axes={AXES}
          fromStart
          unit={unit}
          onChange={(chosen) => {
            zoom.showAll();
            setAxis(chosen);
          }}
        />
      </div>
      <div className="pair">
        <div className="panel">
          <RunsChart what="accuracy" common={metrics.accuracy} {...shared} />
        </div>
        <div className="panel">
          <RunsChart what="loss" common={metrics.loss} {...shared} />
        </div>
      </div>
      <Prices comparison={comparison} alone={alone} onAlone={setAlone} />
      <Differing runs={runs} />
      <NodePrices comparison={comparison} alone={alone} />
    </>
  );
}
