import { useQuery } from "@tanstack/react-query";
import { formatReportMetric, reportMetricTitle } from "../domain/reportMetrics";
import { escapeHidden } from "../format/text";
import { QueryStatus } from "../ui/QueryStatus";
import { fairnessQuery } from "./queries";
import { useThrottledRefetch } from "./useThrottledRefetch";

interface Props {
  job: string;
  metric: string;
  /** Changes when there may be new data. */
  trigger: string;
}

/** Differences of a metric between nodes. */
export function FairnessPanel({ job, metric, trigger }: Props) {
  const { data, error, refetch } = useQuery(fairnessQuery(job, metric));
  useThrottledRefetch(trigger, refetch);
  const figures =
    data === undefined || data.mean === null || data.worst === null || data.best === null
      ? []
      : [
          { title: "Mean over nodes", value: data.mean, node: "" },
          { title: "Worst node", value: data.worst.value, node: data.worst.node },
          { title: "Worst 10 %", value: data.decile, node: "" },
          { title: "Best node", value: data.best.value, node: data.best.node },
          { title: "Standard deviation", value: data.spread, node: "" },
        ];
  return (
    <section aria-label="Fairness" data-testid="fairness">
      <header className="section-head">
        <h2>Fairness</h2>
        <p className="faint">{reportMetricTitle(metric)}: the last report of each node.</p>
      </header>
      {data === undefined ? (
        <QueryStatus query={{ error, refetch }} />
      ) : figures.length === 0 ? (
        <p className="panel nothing">No node has reported this metric yet.</p>
      ) : (
        <dl className="panel fairness">
          {figures.map(({ title, value, node }) => (
            <div key={title}>
              <dt>{title}</dt>
              <dd>
                {formatReportMetric(metric, value)}{" "}
                {node !== "" && (
                  <small className="faint">
                    <bdi>{escapeHidden(node)}</bdi>
                  </small>
                )}
              </dd>
            </div>
          ))}
        </dl>
      )}
    </section>
  );
}
