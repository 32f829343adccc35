import { formatNumber, formatPercent, plural } from "../format/number";
import { escapeHidden } from "../format/text";
import type { ReferenceDistance } from "./divergence";

const NODES_MAX = 8;
const SCALE_MIN = 1.5;
const SCALE_MAX = 4;

interface Props {
  distances: ReferenceDistance[];
  /** The threshold. */
  delta: number;
}

/** Bars of the nodes' distances from the reference model at their last reports; a line marks the threshold. */
export function ReferenceDistances({ distances, delta }: Props) {
  const scale = Math.min(SCALE_MAX, Math.max(SCALE_MIN, ...distances.map(({ share }) => share)));
  const percentOf = (share: number) => `${(Math.min(scale, share) / scale) * 100}%`;
  return (
    <div className="panel distances" data-testid="reference-distances">
      <header>
        <h3>Divergence of each node</h3>
        <p className="sub">squared distance from the reference model at the last report; the line is the threshold, {formatNumber(delta)}</p>
      </header>
      <ul>
        {distances.slice(0, NODES_MAX).map(({ node, distance, share }) => (
          <li key={node} className={share > 1 ? "beyond" : undefined}>
            <bdi title={escapeHidden(node)}>{escapeHidden(node)}</bdi>
            <span className="bar" aria-hidden="true">
              <i style={{ width: percentOf(share) }} />
              <b style={{ insetInlineStart: percentOf(1) }} />
            </span>
            <span className="num">
              {formatNumber(distance)} <small>{formatPercent(share, 0)}</small>
            </span>
          </li>
        ))}
      </ul>
      {distances.length > NODES_MAX && (
        <p className="sub">and {plural(distances.length - NODES_MAX, "closer node")}, in the table below</p>
      )}
    </div>
  );
}
