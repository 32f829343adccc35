/** Points at equal distances on an ellipse, the first at the top. */

export interface EllipsePoint {
  x: number;
  y: number;
  /** The outward direction (radians; 0: right, π/2: down). */
  out: number;
}

export interface Ellipse {
  /** The center, and the semi-axes. */
  x: number;
  y: number;
  a: number;
  b: number;
}

const STEPS = 720;

export function pointsOnEllipse(oval: Ellipse, count: number): EllipsePoint[] {
  const angles: number[] = [];
  const lengths: number[] = [];
  let length = 0;
  for (let step = 0; step <= STEPS; step += 1) {
    const angle = -Math.PI / 2 + (2 * Math.PI * step) / STEPS;
    if (step > 0) length += chordLength(oval, angles[step - 1] as number, angle);
    angles.push(angle);
    lengths.push(length);
  }
  let step = 0;
  return Array.from({ length: count }, (_, index) => {
    const wanted = (length * index) / count;
    while ((lengths[step] as number) < wanted - 1e-9) step += 1;
    return pointAt(oval, angles[step] as number);
  });
}

/** Return the distance of neighbors along the ellipse. */
export function spacing({ a, b }: Ellipse, count: number): number {
  const h = ((a - b) / (a + b)) ** 2;
  const perimeter = Math.PI * (a + b) * (1 + (3 * h) / (10 + Math.sqrt(4 - 3 * h))); // Ramanujan's second approximation
  return perimeter / Math.max(1, count);
}

function pointAt({ x, y, a, b }: Ellipse, angle: number): EllipsePoint {
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  return { x: x + a * cos, y: y + b * sin, out: Math.atan2(a * sin, b * cos) };
}

function chordLength(oval: Ellipse, from: number, to: number): number {
  const [p, q] = [pointAt(oval, from), pointAt(oval, to)];
  return Math.hypot(p.x - q.x, p.y - q.y);
}

/** Return a path between two points that bends towards the center, to avoid points between them. */
export function curvedPath(p: EllipsePoint, q: EllipsePoint, oval: Ellipse): string {
  const pull = 0.6;
  const cx = (p.x + q.x) / 2 + (oval.x - (p.x + q.x) / 2) * pull;
  const cy = (p.y + q.y) / 2 + (oval.y - (p.y + q.y) / 2) * pull;
  return `M${px(p.x)} ${px(p.y)}Q${px(cx)} ${px(cy)} ${px(q.x)} ${px(q.y)}`;
}

const px = (value: number): string => value.toFixed(1);
