import { memo, useMemo, useRef, type CSSProperties, type KeyboardEvent } from "react";
import type { Job } from "../api/types";
import { IconPath, type IconName } from "../ui/Icon";
import { useWidth } from "../ui/useWidth";
import { curvedPath, type EllipsePoint } from "./ellipse";
import { isUnreachable, STATUS_STYLES } from "./peerStatus";
import { lineWidth, maxBytes, SERVER, type GraphEdge, type GraphNode, type TopologyGraph } from "./topologyGraph";
import { layOutTopology, type Label, type TopologyLayout } from "./topologyLayout";

interface Props {
  graph: TopologyGraph;
  mode: Job["mode"];
  active: ReadonlySet<string>;
  /** The node under the pointer or with the focus; null: none. */
  pointed: string | null;
  onPoint: (name: string | null) => void;
  label: string;
  describe: (node: GraphNode) => string;
}

/** Drawing of the topology, as wide as its container. */
export function TopologyDrawing(props: Props) {
  const container = useRef<HTMLDivElement>(null);
  const width = useWidth(container);
  const names = props.graph.nodes.map(({ name }) => name).join("\n");
  const layout = useMemo(() => layOutTopology(names.split("\n"), width), [names, width]);
  return <div ref={container}>{width > 0 && <Drawing {...props} layout={layout} width={width} />}</div>;
}

interface DrawingProps extends Props {
  layout: TopologyLayout;
  width: number;
}

/** Nodes on an ellipse around the server. The drawing is one tab stop; arrow keys move between nodes. */
function Drawing({ graph, layout, width, mode, active, pointed, onPoint, label, describe }: DrawingProps) {
  const drawing = useRef<SVGSVGElement>(null);
  const names = graph.nodes.map(({ name }) => name);
  const stop = pointed !== null && names.includes(pointed) ? pointed : names[0];
  const step = (event: KeyboardEvent) => {
    const next = nextNode(event.key, names, stop);
    if (next === undefined) return;
    event.preventDefault();
    drawing.current?.querySelector<SVGGElement>(`[data-index="${names.indexOf(next)}"]`)?.focus();
  };
  return (
    <svg
      ref={drawing}
      className="topology"
      width={width}
      height={layout.height}
      viewBox={`0 0 ${width} ${layout.height}`}
      role="listbox"
      aria-label={label}
      onKeyDown={step}
      onPointerLeave={() => onPoint(null)}
    >
      <Lines graph={graph} layout={layout} active={active} pointed={pointed} />
      <Server layout={layout} mode={mode} alone={graph.edges.every(({ to }) => to !== SERVER)} />
      {graph.nodes.map((node, index) => (
        <Node
          key={node.name}
          index={index}
          node={node}
          point={layout.points.get(node.name) as EllipsePoint}
          label={layout.labels.get(node.name) as Label}
          layout={layout}
          pointed={pointed}
          tabbed={node.name === stop}
          describe={describe}
          onPoint={onPoint}
        />
      ))}
    </svg>
  );
}

function nextNode(key: string, names: string[], current: string | undefined): string | undefined {
  const index = current === undefined ? -1 : names.indexOf(current);
  const forward = key === "ArrowRight" || key === "ArrowDown";
  if (forward || key === "ArrowLeft" || key === "ArrowUp") {
    return names[(index + (forward ? 1 : -1) + names.length) % names.length];
  }
  return key === "Home" ? names[0] : key === "End" ? names.at(-1) : undefined;
}

type LinesProps = Pick<DrawingProps, "graph" | "layout" | "active" | "pointed">;

const Lines = memo(function Lines({ graph, layout, active, pointed }: LinesProps) {
  const max = maxBytes(graph.edges);
  const [thin, thick] = layout.lines;
  return (
    <g aria-hidden="true" className="topology-lines" data-dense={graph.edges.length > 60 || undefined}>
      {graph.edges.map((edge) => {
        const toServer = edge.to === SERVER;
        const full = toServer ? max.server : max.peers;
        const chosen = pointed === edge.from || pointed === edge.to;
        return (
          <path
            key={edge.id}
            d={edgePath(edge, layout)}
            strokeWidth={lineWidth(edge.bytes, full, thin, thick).toFixed(2)}
            style={{ "--share": (edge.bytes / Math.max(1, full)).toFixed(3) } as CSSProperties}
            data-to={toServer ? "server" : "peer"}
            data-unreachable={edge.unreachable || undefined}
            data-active={active.has(edge.id) || undefined}
            data-faded={(pointed !== null && !chosen) || undefined}
            data-chosen={chosen || undefined}
          />
        );
      })}
    </g>
  );
});

function edgePath({ from, to }: GraphEdge, { points, ellipse }: TopologyLayout): string {
  const p = points.get(from) as EllipsePoint;
  if (to === SERVER) return `M${p.x.toFixed(1)} ${p.y.toFixed(1)}L${ellipse.x} ${ellipse.y}`;
  return curvedPath(p, points.get(to) as EllipsePoint, ellipse);
}

const SERVER_LABELS: Record<Job["mode"], string> = {
  server: "coordinator",
  gossip: "coordinator (gossip)",
  returning: "coordinator (returning)",
};

function Server({ layout, mode, alone }: { layout: TopologyLayout; mode: Job["mode"]; alone: boolean }) {
  const { x, y } = layout.ellipse;
  const half = 3.1 * SERVER_LABELS[mode].length + 4; // lines pass behind the label
  return (
    <g aria-hidden="true" className="topology-server" data-mode={mode} data-alone={alone || undefined}>
      <circle cx={x} cy={y} r={layout.center} />
      <Glyph icon="server" x={x} y={y} size={layout.center * 1.05} />
      <rect x={x - half} y={y + layout.center + 3} width={2 * half} height={17} rx={5} />
      <text x={x} y={y + layout.center + 15} textAnchor="middle">
        {SERVER_LABELS[mode]}
      </text>
    </g>
  );
}

interface NodeProps {
  index: number;
  node: GraphNode;
  point: EllipsePoint;
  label: Label;
  layout: TopologyLayout;
  pointed: string | null;
  tabbed: boolean;
  describe: (node: GraphNode) => string;
  onPoint: (name: string | null) => void;
}

function Node({ index, node, point, label, layout, pointed, tabbed, describe, onPoint }: NodeProps) {
  const { name, status } = node;
  const transform = label.turn === 0 ? undefined : `rotate(${label.turn.toFixed(1)} ${label.x} ${label.y})`;
  return (
    <g
      role="presentation"
      className={`topology-node ${status}`}
      data-testid={`topology-${name}`}
      data-status={status}
      data-unreachable={isUnreachable(status) || undefined}
      data-chosen={pointed === name || undefined}
      data-faded={(pointed !== null && pointed !== name) || undefined}
      onPointerEnter={() => onPoint(name)}
    >
      <g
        role="option"
        aria-selected={pointed === name}
        aria-label={describe(node)}
        tabIndex={tabbed ? 0 : -1}
        data-index={index}
        onFocus={() => onPoint(name)}
        onBlur={() => onPoint(null)}
      >
        <circle cx={point.x} cy={point.y} r={layout.radius} />
        <Glyph icon={STATUS_STYLES[status].icon} x={point.x} y={point.y} size={layout.radius * 1.2} />
      </g>
      <text
        aria-hidden="true"
        x={label.x}
        y={label.y}
        textAnchor={label.anchor}
        fontSize={layout.fontSize}
        transform={transform}
        dominantBaseline={transform === undefined ? undefined : "central"}
      >
        {label.text}
      </text>
    </g>
  );
}

function Glyph({ icon, x, y, size }: { icon: IconName; x: number; y: number; size: number }) {
  const scale = size / 16;
  return (
    <g className="topology-glyph" transform={`translate(${x - size / 2} ${y - size / 2}) scale(${scale})`}>
      <IconPath name={icon} />
    </g>
  );
}
