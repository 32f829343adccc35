/** Colors of the theme as canvas pixels. */

const STEPS = 256;

/** Parse "#rrggbb" into [red, green, blue]. */
export function parseColor(color: string): [number, number, number] {
  const value = Number.parseInt(color.replace("#", ""), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

/** Return a pixel in the byte order of canvases on little-endian machines: alpha, blue, green, red. */
export const toPixel = ([red, green, blue]: [number, number, number]): number =>
  ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

/** Return 256 pixels that interpolate between the colors. */
export function colorScale(stops: string[]): Uint32Array {
  const colors = stops.map(parseColor);
  return Uint32Array.from({ length: STEPS }, (_, step) => {
    const place = (step / (STEPS - 1)) * (colors.length - 1);
    const from = Math.min(Math.floor(place), colors.length - 2);
    const mix = (part: 0 | 1 | 2) => {
      const [a, b] = [colors[from]![part], colors[from + 1]![part]];
      return Math.round(a + (b - a) * (place - from));
    };
    return toPixel([mix(0), mix(1), mix(2)]);
  });
}

/** Return the index into the scale for a value. */
export function scaleStep(value: number, low: number, high: number): number {
  return Math.max(0, Math.min(STEPS - 1, Math.round(((value - low) / (high - low)) * (STEPS - 1))));
}
