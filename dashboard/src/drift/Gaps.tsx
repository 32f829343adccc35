import { figure, percent, plural } from "../format/number";
import { visible } from "../format/text";
import type { Gap } from "./drift";

const SHOWN = 8;
const SCALE_MIN = 1.5;
const SCALE_MAX = 4;

/** How far from the reference each node was at its last report; the line is the threshold. */
export function Gaps({ gaps, delta }: { gaps: Gap[]; delta: number }) {
  const scale = Math.min(SCALE_MAX, Math.max(SCALE_MIN, ...gaps.map(({ share }) => share)));
  const across = (share: number) => `${(Math.min(scale, share) / scale) * 100}%`;
  return (
    <div className="panel gaps" data-testid="drift-gaps">
      <header>
        <h3>Distance from the reference</h3>
        <p className="sub">‖w − r‖² at each node's last report; the line is the threshold, {figure(delta)}</p>
      </header>
      <ul>
        {gaps.slice(0, SHOWN).map(({ node, gap, share }) => (
          <li key={node} className={share > 1 ? "beyond" : undefined}>
            <bdi title={visible(node)}>{visible(node)}</bdi>
            <span className="gap-bar" aria-hidden="true">
              <i style={{ width: across(share) }} />
              <b style={{ insetInlineStart: across(1) }} />
            </span>
            <span className="num">
              {figure(gap)} <small>{percent(share, 0)}</small>
            </span>
          </li>
        ))}
      </ul>
      {gaps.length > SHOWN && <p className="sub">and {plural(gaps.length - SHOWN, "node")} nearer, in the table below</p>}
    </div>
  );
}
