import { memo } from "react";
import type { JobNode } from "../api/types";
import { Spark } from "../charts/Sparkline";
import { pick } from "../format/metric";
import { bytes, count, figure, percent, plural, UNKNOWN } from "../format/number";
import { visible } from "../format/text";
import { ago, duration } from "../format/time";
import { NodeName } from "../nodes/NodeName";
import { Progress } from "../ui/Progress";
import { State } from "../ui/State";

interface Props {
  node: JobNode;
  dynamic: boolean;
  /** Seconds since it was last heard; null if it was not. */
  silent: number | null;
}

export const NodeRow = memo(function NodeRow({ node, dynamic, silent }: Props) {
  const { device, torch } = node.info;
  // Where the data change, the newest batches tell more than data that were held back.
  const loss = (dynamic ? node.metrics["train/loss"] : undefined) ?? pick("loss", node.metrics);
  return (
    <tr role="row" data-testid={`node-row-${node.name}`} data-state={node.state}>
      <NodeName name={node.name}>
        {node.left_out !== ""
          ? `takes no part: ${visible(node.left_out)}`
          : [device, torch && `torch ${String(torch)}`].filter(Boolean).map(String).map(visible).join(" · ")}
      </NodeName>
      <td role="cell" className="node-cell-state">
        <State state={node.state} />
        {node.away && (
          <span className="badge away" title="It carries on with the other nodes, without the coordinator">
            Away
          </span>
        )}
        {node.resting && (
          <span className="badge" title="It alone caused synchronisation after synchronisation, so it is left out for a while">
            Resting
          </span>
        )}
      </td>
      <td role="cell" className="node-cell-progress" data-label="Local training">
        {node.progress === null ? (
          <span className="faint">{UNKNOWN}</span>
        ) : (
          <span className="progress-pair">
            <Progress value={node.progress} label={`${node.name}: local training`} tone="running" />
            <span>{percent(node.progress, 0)}</span>
          </span>
        )}
      </td>
      <td role="cell" className="num" data-label="Reports">
        {count(node.reports)}
      </td>
      <td role="cell" className={isBad(loss) ? "num bad" : "num"} data-label="Loss">
        <span className="spark-pair">
          {node.losses.length > 2 && <Spark values={node.losses} width={52} height={18} />}
          {figure(loss)}
        </span>
      </td>
      <Figure label="Accuracy" value={pick("accuracy", node.metrics)} write={percent} />
      {dynamic ? (
        <Figure label="Gap" value={node.metrics["train/gap"]} write={figure} />
      ) : (
        <td role="cell" className="num" data-label="Took">
          {duration(node.seconds)}
        </td>
      )}
      <td role="cell" className="num" data-label="Up">
        {bytes(node.up_bytes)}
      </td>
      <td role="cell" className="num" data-label="Down">
        {bytes(node.down_bytes)}
      </td>
      <td role="cell" className="num" data-label="Last seen">
        {silent === null ? UNKNOWN : ago(silent)}
      </td>
      <td role="cell" className="node-cell-error" data-label="Last error">
        {node.last_error === null ? (
          <span className="faint">{UNKNOWN}</span>
        ) : (
          <span className="error-text" title={visible(node.last_error)}>
            {node.failures > 0 && <b>{plural(node.failures, "failure")}: </b>}
            <bdi>{visible(node.last_error)}</bdi>
          </span>
        )}
      </td>
    </tr>
  );
});

const isBad = (value: number | undefined) => value !== undefined && !Number.isFinite(value);

function Figure({
  label,
  value,
  write,
}: {
  label: string;
  value: number | undefined;
  write: (value: number | undefined) => string;
}) {
  return (
    <td role="cell" className={isBad(value) ? "num bad" : "num"} data-label={label}>
      {write(value)}
    </td>
  );
}
