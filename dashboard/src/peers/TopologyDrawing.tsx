import { memo, useMemo, useRef, type CSSProperties, type KeyboardEvent } from "react";
import type { Job } from "../api/types";
import { IconPath, type IconName } from "../ui/Icon";
import { useWidth } from "../ui/useWidth";
import { most, SERVER, width, type Graph, type GraphEdge, type GraphNode } from "./graph";
import { bend, type Place } from "./layout";
import { scene, type Label, type Scene } from "./scene";
import { isGhost, LOOKS } from "./standing";

interface Props {
  graph: Graph;
  mode: Job["mode"];
  busy: ReadonlySet<string>;
  /** The node that is looked at; null: none. */
  pointed: string | null;
  onPoint: (name: string | null) => void;
  label: string;
  describe: (node: GraphNode) => string;
}

/** The drawing, as wide as its place. */
export function TopologyDrawing(props: Props) {
  const place = useRef<HTMLDivElement>(null);
  const across = useWidth(place);
  const names = props.graph.nodes.map(({ name }) => name).join("\n");
  const laid = useMemo(() => scene(names.split("\n"), across), [names, across]);
  return <div ref={place}>{across > 0 && <Drawing {...props} scene={laid} across={across} />}</div>;
}

interface DrawingProps extends Props {
  scene: Scene;
  across: number;
}

/** Nodes on a rim around the server; one Tab stop, arrows go from node to node. */
function Drawing({ graph, scene, across, mode, busy, pointed, onPoint, label, describe }: DrawingProps) {
  const drawing = useRef<SVGSVGElement>(null);
  const names = graph.nodes.map(({ name }) => name);
  const stop = pointed !== null && names.includes(pointed) ? pointed : names[0];
  const step = (event: KeyboardEvent) => {
    const next = after(event.key, names, stop);
    if (next === undefined) return;
    event.preventDefault();
    drawing.current?.querySelector<SVGGElement>(`[data-index="${names.indexOf(next)}"]`)?.focus();
  };
  return (
    <svg
      ref={drawing}
      className="topology"
      width={across}
      height={scene.height}
      viewBox={`0 0 ${across} ${scene.height}`}
      role="listbox"
      aria-label={label}
      onKeyDown={step}
      onPointerLeave={() => onPoint(null)}
    >
      <Lines graph={graph} scene={scene} busy={busy} pointed={pointed} />
      <Server scene={scene} mode={mode} alone={graph.edges.every(({ to }) => to !== SERVER)} />
      {graph.nodes.map((node, index) => (
        <Node
          key={node.name}
          index={index}
          node={node}
          place={scene.places.get(node.name) as Place}
          label={scene.labels.get(node.name) as Label}
          scene={scene}
          pointed={pointed}
          tabbed={node.name === stop}
          describe={describe}
          onPoint={onPoint}
        />
      ))}
    </svg>
  );
}

function after(key: string, names: string[], current: string | undefined): string | undefined {
  const index = current === undefined ? -1 : names.indexOf(current);
  const forward = key === "ArrowRight" || key === "ArrowDown";
  if (forward || key === "ArrowLeft" || key === "ArrowUp") {
    return names[(index + (forward ? 1 : -1) + names.length) % names.length];
  }
  return key === "Home" ? names[0] : key === "End" ? names.at(-1) : undefined;
}

type LinesProps = Pick<DrawingProps, "graph" | "scene" | "busy" | "pointed">;

const Lines = memo(function Lines({ graph, scene, busy, pointed }: LinesProps) {
  const widest = most(graph.edges);
  const [thin, thick] = scene.lines;
  return (
    <g aria-hidden="true" className="topology-lines" data-dense={graph.edges.length > 60 || undefined}>
      {graph.edges.map((edge) => {
        const toServer = edge.to === SERVER;
        const full = toServer ? widest.server : widest.peers;
        const chosen = pointed === edge.from || pointed === edge.to;
        return (
          <path
            key={edge.id}
            d={course(edge, scene)}
            strokeWidth={width(edge.bytes, full, thin, thick).toFixed(2)}
            style={{ "--share": (edge.bytes / Math.max(1, full)).toFixed(3) } as CSSProperties}
            data-to={toServer ? "server" : "peer"}
            data-ghost={edge.ghost || undefined}
            data-busy={busy.has(edge.id) || undefined}
            data-faded={(pointed !== null && !chosen) || undefined}
            data-chosen={chosen || undefined}
          />
        );
      })}
    </g>
  );
});

function course({ from, to }: GraphEdge, { places, oval }: Scene): string {
  const p = places.get(from) as Place;
  if (to === SERVER) return `M${p.x.toFixed(1)} ${p.y.toFixed(1)}L${oval.x} ${oval.y}`;
  return bend(p, places.get(to) as Place, oval);
}

const AT_THE_SERVER: Record<Job["mode"], string> = {
  server: "coordinator",
  away: "coordinator, looking on",
  returning: "coordinator, taking back",
};

function Server({ scene, mode, alone }: { scene: Scene; mode: Job["mode"]; alone: boolean }) {
  const { x, y } = scene.oval;
  const half = 3.1 * AT_THE_SERVER[mode].length + 4; // lines pass behind the words
  return (
    <g aria-hidden="true" className="topology-server" data-mode={mode} data-alone={alone || undefined}>
      <circle cx={x} cy={y} r={scene.centre} />
      <Glyph icon="server" x={x} y={y} size={scene.centre * 1.05} />
      <rect x={x - half} y={y + scene.centre + 3} width={2 * half} height={17} rx={5} />
      <text x={x} y={y + scene.centre + 15} textAnchor="middle">
        {AT_THE_SERVER[mode]}
      </text>
    </g>
  );
}

interface NodeProps {
  index: number;
  node: GraphNode;
  place: Place;
  label: Label;
  scene: Scene;
  pointed: string | null;
  tabbed: boolean;
  describe: (node: GraphNode) => string;
  onPoint: (name: string | null) => void;
}

function Node({ index, node, place, label, scene, pointed, tabbed, describe, onPoint }: NodeProps) {
  const { name, standing } = node;
  const turned = label.turn === 0 ? undefined : `rotate(${label.turn.toFixed(1)} ${label.x} ${label.y})`;
  return (
    <g
      role="presentation"
      className={`topology-node ${standing}`}
      data-testid={`topology-${name}`}
      data-standing={standing}
      data-ghost={isGhost(standing) || undefined}
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
        <circle cx={place.x} cy={place.y} r={scene.radius} />
        <Glyph icon={LOOKS[standing].icon} x={place.x} y={place.y} size={scene.radius * 1.2} />
      </g>
      <text
        aria-hidden="true"
        x={label.x}
        y={label.y}
        textAnchor={label.anchor}
        fontSize={scene.fontSize}
        transform={turned}
        dominantBaseline={turned === undefined ? undefined : "central"}
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
