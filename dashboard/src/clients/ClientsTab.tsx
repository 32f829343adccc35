import { useQuery, useQueryClient } from "@tanstack/react-query";
import type { Job, Version } from "../api/types";
import { hasEnded } from "../domain/job";
import { defaultMetric, reportMetricTitle } from "../domain/reportMetrics";
import { isCurvePoint } from "../domain/metrics";
import { unitOf } from "../domain/unit";
import { escapeHidden } from "../format/text";
import { useTextParam } from "../router/router";
import { Icon } from "../ui/Icon";
import { QueryStatus } from "../ui/QueryStatus";
import { ClientsChart } from "./ClientsChart";
import { FairnessPanel } from "./FairnessPanel";
import { HeatMap } from "./HeatMap";
import { bandsQuery, heatMapQuery } from "./queries";
import { RobustnessPanel } from "./RobustnessPanel";
import { RoundTimeline } from "./RoundTimeline";
import { useThrottledRefetch } from "./useThrottledRefetch";
import { Term } from "../ui/Term";
import "../styles/clients.css";

const METRIC = /^[a-z0-9_]+([./-][a-z0-9_]+){0,7}$/;

/** Tab of the clients' reports by round. */
export function ClientsTab({ job, versions }: { job: Job; versions: Version[] }) {
  const client = useQueryClient();
  const [param, setMetric] = useTextParam("metric");
  const [selected, setSelected] = useTextParam("client");
  const chosen = METRIC.test(param) && param.length <= 64 ? param : "";
  // Every answer lists the metrics that exist: the first request is for the one that nearly all jobs have.
  const first = useQuery(heatMapQuery(client, job.name, chosen || "train/loss"));
  const metric = chosen || defaultMetric(first.data?.metrics ?? []);
  const { data, error, refetch } = useQuery(heatMapQuery(client, job.name, metric));
  const { data: bands, refetch: refetchBands } = useQuery(bandsQuery(client, job.name, metric));
  const newest = versions.at(-1)?.number ?? 0;
  const trigger = `${newest} ${job.state}`;
  useThrottledRefetch(trigger, () => Promise.all([refetch(), refetchBands()]));
  const unit = unitOf(job);
  if (data === undefined) return <QueryStatus query={{ error, refetch }} lines={6} />;
  const metrics = data.metrics.includes(metric) ? data.metrics : [metric, ...data.metrics];
  const fairnessMetric = chosen === "" && data.metrics.includes("eval/accuracy") ? "eval/accuracy" : metric;
  const shared = { data, metric, unit, selected, onSelect: setSelected };
  return (
    <div className="clients">
      <div className="toolbar">
        <h2>
          Node <Term of="report">reports</Term>
        </h2>
        {selected !== "" && (
          <button type="button" className="quiet-button" onClick={() => setSelected("")} data-testid="selected-client">
            <Icon name="cross" /> <bdi>{escapeHidden(selected)}</bdi>
            <span className="visually-hidden">: clear selection</span>
          </button>
        )}
        <label className="pick">
          Metric{" "}
          <select value={metric} onChange={(event) => setMetric(event.target.value)} data-testid="metric">
            {metrics.filter((name) => !isCurvePoint(name)).map((name) => (
              <option key={name} value={name}>
                {reportMetricTitle(name)}
              </option>
            ))}
          </select>
        </label>
      </div>
      <div className="panel">
        <HeatMap {...shared} />
      </div>
      <div className="panel">
        <ClientsChart {...shared} bands={bands} />
      </div>
      <FairnessPanel job={job.name} metric={fairnessMetric} trigger={trigger} />
      <RobustnessPanel job={job.name} trigger={trigger} />
      <RoundTimeline job={job.name} newest={newest} live={!hasEnded(job) && job.state !== "waiting"} unit={unit} />
    </div>
  );
}
