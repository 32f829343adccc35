/** Layout of the topology for any width and number of nodes. */
import { escapeHidden } from "../format/text";
import { pointsOnEllipse, spacing, type Ellipse, type EllipsePoint } from "./ellipse";

export interface Label {
  text: string;
  x: number;
  y: number;
  anchor: "start" | "middle" | "end";
  /** Degrees; 0 if labels are horizontal. */
  turn: number;
}

export interface TopologyLayout {
  height: number;
  ellipse: Ellipse;
  /** Radii of the discs of nodes and of the server. */
  radius: number;
  center: number;
  points: Map<string, EllipsePoint>;
  labels: Map<string, Label>;
  fontSize: number;
  /** Minimum and maximum line width. */
  lines: [thin: number, thick: number];
}

/** With more nodes, horizontal labels would overlap. */
const FLAT_MAX = 12;
/** With more nodes, they are drawn as dots and not all are labeled. */
const MANY = 60;
const NARROW = 520;
/** Approximate ratio of a character's width to its height. */
const CHAR_ASPECT = 0.56;

export function layOutTopology(names: readonly string[], width: number): TopologyLayout {
  const count = names.length;
  const narrow = width < NARROW;
  const flat = count <= FLAT_MAX;
  const fontSize = flat ? 12.5 : narrow ? 10 : 11;
  const texts = names.map((name) => truncate(escapeHidden(name), flat ? (narrow ? 10 : 18) : narrow ? 8 : 12));
  const room = 22 + fontSize * CHAR_ASPECT * Math.max(3, ...texts.map((text) => text.length));
  const height = Math.round(narrow ? clamp(250 + count * 7, 300, 540) : clamp(240 + count * 6, 300, count > MANY ? 680 : 500));
  const ellipse: Ellipse = {
    x: width / 2,
    y: height / 2,
    a: Math.max(40, width / 2 - room),
    b: Math.max(40, height / 2 - (flat ? 46 : room)),
  };
  const radius = clamp(spacing(ellipse, count) * 0.38, count > MANY ? 1.5 : 4.5, 15);
  // With many nodes, only as many labels are drawn as can be read.
  const named = flat ? 1 : Math.max(1, Math.ceil((fontSize * 1.15) / spacing(ellipse, count)));
  const points = new Map(pointsOnEllipse(ellipse, count).map((place, index) => [names[index] as string, place]));
  const labels = new Map(
    names.map((name, index) => [name, layOutLabel(index % named === 0 ? (texts[index] as string) : "", points.get(name) as EllipsePoint, radius, flat, fontSize)]),
  );
  const lines: [number, number] = count > 24 ? [0.5, 4] : count > FLAT_MAX ? [0.75, 6] : [1, 8];
  return { height, ellipse, radius, center: flat ? 23 : 18, points, labels, fontSize, lines };
}

function layOutLabel(text: string, { x, y, out }: EllipsePoint, radius: number, flat: boolean, size: number): Label {
  const [cos, sin] = [Math.cos(out), Math.sin(out)];
  if (flat) {
    const anchor = cos > 0.35 ? "start" : cos < -0.35 ? "end" : "middle";
    const beside = anchor !== "middle";
    const drop = beside ? sin * 8 + size * 0.35 : sin > 0 ? radius + size + 3 : -radius - 6;
    return { text, x: x + (beside ? Math.sign(cos) * (radius + 6) : 0), y: y + drop, anchor, turn: 0 };
  }
  // Labels on the left are rotated by 180°, so that they are not upside down.
  const left = cos < -1e-9;
  const degrees = (out * 180) / Math.PI;
  const reach = radius + 5;
  return {
    text,
    x: x + cos * reach,
    y: y + sin * reach,
    anchor: left ? "end" : "start",
    turn: left ? degrees + 180 : degrees,
  };
}

const clamp = (value: number, low: number, high: number): number => Math.min(high, Math.max(low, value));

/** Truncate a text with an ellipsis, counting code points. */
export function truncate(text: string, most: number): string {
  const letters = [...text];
  return letters.length <= most ? text : `${letters.slice(0, most - 1).join("")}…`;
}
