import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { count, percent } from "../format/number";
import { visible } from "../format/text";
import { Icon } from "../ui/Icon";
import { Unanswered } from "../ui/Unanswered";
import { fairnessQuery, influenceQuery } from "./queries";
import { titleOf, write } from "./quantity";
import { useLatest } from "./useLatest";

const SHOWN = 12;

interface Props {
  job: string;
  /** Changes when there may be something new. */
  mark: string;
}

/** How evenly nodes make the model, and what the job's limits kept out. */
export function InfluencePanel({ job, mark }: Props) {
  const { data, error, refetch } = useQuery(influenceQuery(job));
  const [all, setAll] = useState(false);
  useLatest(mark, refetch);
  const nodes = data?.nodes ?? [];
  const shown = all ? nodes : nodes.slice(0, SHOWN);
  return (
    <section aria-label="Robustness" data-testid="influence">
      <header className="section-head">
        <h2>Robustness</h2>
        {data && (
          <p className="faint">
            {data.norm_factor === 0 ? "Updates of any length count" : `Updates up to ${count(data.norm_factor)} times the typical length count`}
            {data.share_max < 1 && `; one node has at most ${percent(data.share_max, 0)} of a version's weight`}.
          </p>
        )}
      </header>
      {data === undefined ? (
        <Unanswered question={{ error, refetch }} />
      ) : nodes.length === 0 ? (
        <p className="panel nothing">No update has counted or been refused yet.</p>
      ) : (
        <div className="panel table-scroll">
          <table className="data-table wide">
            <caption className="visually-hidden">Influence of each node over the newest {count(data.versions)} versions</caption>
            <thead>
              <tr>
                <th scope="col">Node</th>
                <th scope="col">Influence</th>
                {["Greatest", "Versions", "Length", "Refused"].map((title) => (
                  <th key={title} scope="col" className="num">
                    {title}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {shown.map((node) => (
                <tr key={node.node}>
                  <th scope="row">
                    <bdi>{visible(node.node)}</bdi>
                    {node.limited !== "" && (
                      <small className="bad block">
                        <Icon name="warning" /> {visible(node.limited)}
                      </small>
                    )}
                  </th>
                  <td>
                    <span className="share-bar" style={{ "--share": node.share } as React.CSSProperties} /> {percent(node.share)}
                  </td>
                  <td className="num">{percent(node.share_most)}</td>
                  <td className="num">{count(node.versions)}</td>
                  <td className="num">{node.norm_ratio === null ? "–" : `${node.norm_ratio.toFixed(2)} ×`}</td>
                  <td className={node.refused > 0 ? "num bad" : "num"}>{count(node.refused)}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {nodes.length > SHOWN && (
            <button type="button" className="quiet-button" onClick={() => setAll(!all)}>
              {all ? "Fewer" : `All ${count(nodes.length)} nodes`}
            </button>
          )}
        </div>
      )}
    </section>
  );
}

/** How a metric differs between nodes: the mean says nothing of the worst. */
export function FairnessPanel({ job, metric, mark }: Props & { metric: string }) {
  const { data, error, refetch } = useQuery(fairnessQuery(job, metric));
  useLatest(mark, refetch);
  const figures =
    data === undefined || data.mean === null || data.worst === null || data.best === null
      ? []
      : [
          { title: "Mean over nodes", value: data.mean, node: "" },
          { title: "Worst node", value: data.worst.value, node: data.worst.node },
          { title: "Worst tenth", value: data.decile, node: "" },
          { title: "Best node", value: data.best.value, node: data.best.node },
          { title: "Standard deviation", value: data.spread, node: "" },
        ];
  return (
    <section aria-label="Fairness" data-testid="fairness">
      <header className="section-head">
        <h2>Fairness</h2>
        <p className="faint">
          {titleOf(metric)}: each node counts once, with its last report.
        </p>
      </header>
      {data === undefined ? (
        <Unanswered question={{ error, refetch }} />
      ) : figures.length === 0 ? (
        <p className="panel nothing">No node has measured this yet.</p>
      ) : (
        <dl className="panel fairness">
          {figures.map(({ title, value, node }) => (
            <div key={title}>
              <dt>{title}</dt>
              <dd>
                {write(metric, value)} {node !== "" && <small className="faint"><bdi>{visible(node)}</bdi></small>}
              </dd>
            </div>
          ))}
        </dl>
      )}
    </section>
  );
}
