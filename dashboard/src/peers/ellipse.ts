/** Places on an ellipse, equally far from one another along its rim, the first at the top. */

export interface Place {
  x: number;
  y: number;
  /** Where outwards is (radians; 0: to the right, π/2: down). */
  out: number;
}

export interface Oval {
  /** The middle, and half of the width and of the height. */
  x: number;
  y: number;
  a: number;
  b: number;
}

const STEPS = 720;

export function around(oval: Oval, count: number): Place[] {
  const angles: number[] = [];
  const lengths: number[] = [];
  let length = 0;
  for (let step = 0; step <= STEPS; step += 1) {
    const angle = -Math.PI / 2 + (2 * Math.PI * step) / STEPS;
    if (step > 0) length += rim(oval, angles[step - 1] as number, angle);
    angles.push(angle);
    lengths.push(length);
  }
  let step = 0;
  return Array.from({ length: count }, (_, index) => {
    const wanted = (length * index) / count;
    while ((lengths[step] as number) < wanted - 1e-9) step += 1;
    return at(oval, angles[step] as number);
  });
}

/** How far neighbours are apart along the rim, for so many. */
export function spacing({ a, b }: Oval, count: number): number {
  const h = ((a - b) / (a + b)) ** 2;
  const perimeter = Math.PI * (a + b) * (1 + (3 * h) / (10 + Math.sqrt(4 - 3 * h))); // Ramanujan's second
  return perimeter / Math.max(1, count);
}

function at({ x, y, a, b }: Oval, angle: number): Place {
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  return { x: x + a * cos, y: y + b * sin, out: Math.atan2(a * sin, b * cos) };
}

function rim(oval: Oval, from: number, to: number): number {
  const [p, q] = [at(oval, from), at(oval, to)];
  return Math.hypot(p.x - q.x, p.y - q.y);
}

/** A line between two places that bends towards the middle, so that it passes by what lies between them. */
export function bend(p: Place, q: Place, oval: Oval): string {
  const pull = 0.6;
  const cx = (p.x + q.x) / 2 + (oval.x - (p.x + q.x) / 2) * pull;
  const cy = (p.y + q.y) / 2 + (oval.y - (p.y + q.y) / 2) * pull;
  return `M${px(p.x)} ${px(p.y)}Q${px(cx)} ${px(cy)} ${px(q.x)} ${px(q.y)}`;
}

const px = (value: number): string => value.toFixed(1);
