/** Where everything stands in the drawing of who talks to whom, for any width and number of nodes. */
import { visible } from "../format/text";
import { around, spacing, type Oval, type Place } from "./layout";

export interface Label {
  text: string;
  x: number;
  y: number;
  anchor: "start" | "middle" | "end";
  /** Degrees; 0 where labels lie flat. */
  turn: number;
}

export interface Scene {
  height: number;
  oval: Oval;
  /** Of a node's disc, and of the server's. */
  radius: number;
  centre: number;
  places: Map<string, Place>;
  labels: Map<string, Label>;
  fontSize: number;
  /** How wide lines are: the thinnest and the thickest. */
  lines: [thin: number, thick: number];
}

/** With so many, labels that lie flat would run into each other. */
const FLAT_MAX = 12;
/** Beyond so many, nodes are dots, and not all are named. */
const MANY = 60;
const NARROW = 520;
/** Of a letter's width to its height, about. */
const SLENDER = 0.56;

export function scene(names: readonly string[], width: number): Scene {
  const count = names.length;
  const narrow = width < NARROW;
  const flat = count <= FLAT_MAX;
  const fontSize = flat ? 12.5 : narrow ? 10 : 11;
  const texts = names.map((name) => shorten(visible(name), flat ? (narrow ? 10 : 18) : narrow ? 8 : 12));
  const room = 22 + fontSize * SLENDER * Math.max(3, ...texts.map((text) => text.length));
  const height = Math.round(narrow ? clamp(250 + count * 7, 300, 540) : clamp(240 + count * 6, 300, count > MANY ? 680 : 500));
  const oval: Oval = {
    x: width / 2,
    y: height / 2,
    a: Math.max(40, width / 2 - room),
    b: Math.max(40, height / 2 - (flat ? 46 : room)),
  };
  const radius = clamp(spacing(oval, count) * 0.38, count > MANY ? 1.5 : 4.5, 15);
  // Of very many, as many are named as can be read; the one that is pointed at is named above.
  const named = flat ? 1 : Math.max(1, Math.ceil((fontSize * 1.15) / spacing(oval, count)));
  const places = new Map(around(oval, count).map((place, index) => [names[index] as string, place]));
  const labels = new Map(
    names.map((name, index) => [name, label(index % named === 0 ? (texts[index] as string) : "", places.get(name) as Place, radius, flat, fontSize)]),
  );
  const lines: [number, number] = count > 24 ? [0.5, 4] : count > FLAT_MAX ? [0.75, 6] : [1, 8];
  return { height, oval, radius, centre: flat ? 23 : 18, places, labels, fontSize, lines };
}

function label(text: string, { x, y, out }: Place, radius: number, flat: boolean, size: number): Label {
  const [cos, sin] = [Math.cos(out), Math.sin(out)];
  if (flat) {
    const anchor = cos > 0.35 ? "start" : cos < -0.35 ? "end" : "middle";
    const beside = anchor !== "middle";
    const drop = beside ? sin * 8 + size * 0.35 : sin > 0 ? radius + size + 3 : -radius - 6;
    return { text, x: x + (beside ? Math.sign(cos) * (radius + 6) : 0), y: y + drop, anchor, turn: 0 };
  }
  // Letters never stand on their heads: on the left they are read towards the middle.
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

/** By characters as people count them, the last of them an ellipsis if there were more. */
export function shorten(text: string, most: number): string {
  const letters = [...text];
  return letters.length <= most ? text : `${letters.slice(0, most - 1).join("")}…`;
}
