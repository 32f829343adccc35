import { useQuery, useQueryClient } from "@tanstack/react-query";
import { unitOf } from "../format/unit";
import type { ViewProps } from "../job/tabs";
import { hasEnded } from "../jobs/order";
import { useText } from "../router";
import { Icon } from "../ui/Icon";
import { visible } from "../format/text";
import { ClientLines } from "./ClientLines";
import { HeatMap } from "./HeatMap";
import { FairnessPanel, InfluencePanel } from "./InfluencePanel";
import { bandsQuery, heatQuery } from "./queries";
import { firstOf, titleOf } from "./quantity";
import { RoundTimeline } from "./RoundTimeline";
import { useLatest } from "./useLatest";
import { Unanswered } from "../ui/Unanswered";
import "../styles/clients.css";

const METRIC = /^[a-z0-9_]+([./-][a-z0-9_]+){0,7}$/;

/** What each client reported, round by round. */
export function ClientsTab({ job, versions }: ViewProps) {
  const client = useQueryClient();
  const [given, setMetric] = useText("metric");
  const [isolated, setIsolated] = useText("client");
  const named = METRIC.test(given) && given.length <= 64 ? given : "";
  // Which metrics there are is part of every answer: the first question is on the one that nearly all jobs have.
  const first = useQuery(heatQuery(client, job.name, named || "train/loss"));
  const metric = named || firstOf(first.data?.metrics ?? []);
  const { data: heat, error, refetch } = useQuery(heatQuery(client, job.name, metric));
  const { data: bands, refetch: refetchBands } = useQuery(bandsQuery(client, job.name, metric));
  const newest = versions.at(-1)?.number ?? 0;
  const mark = `${newest} ${job.state}`;
  useLatest(mark, () => Promise.all([refetch(), refetchBands()]));
  const unit = unitOf(job);
  if (heat === undefined) return <Unanswered question={{ error, refetch }} lines={6} />;
  const metrics = heat.metrics.includes(metric) ? heat.metrics : [metric, ...heat.metrics];
  const fair = named === "" && heat.metrics.includes("eval/accuracy") ? "eval/accuracy" : metric;
  return (
    <div className="clients">
      <div className="toolbar">
        <h2>Clients</h2>
        {isolated !== "" && (
          <button type="button" className="quiet-button" onClick={() => setIsolated("")} data-testid="isolated">
            <Icon name="cross" /> <bdi>{visible(isolated)}</bdi> alone
          </button>
        )}
        <label className="pick">
          Show{" "}
          <select value={metric} onChange={(event) => setMetric(event.target.value)} data-testid="metric">
            {metrics.map((name) => (
              <option key={name} value={name}>
                {titleOf(name)}
              </option>
            ))}
          </select>
        </label>
      </div>
      <div className="panel">
        <HeatMap heat={heat} metric={metric} unit={unit} isolated={isolated} onIsolate={setIsolated} />
      </div>
      <div className="panel">
        <ClientLines heat={heat} bands={bands} metric={metric} unit={unit} isolated={isolated} onIsolate={setIsolated} />
      </div>
      <FairnessPanel job={job.name} metric={fair} mark={mark} />
      <InfluencePanel job={job.name} mark={mark} />
      <RoundTimeline job={job.name} newest={newest} live={!hasEnded(job) && job.state !== "waiting"} unit={unit} />
    </div>
  );
}
