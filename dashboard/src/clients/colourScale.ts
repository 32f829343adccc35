/** From the theme's colours to the pixels of a canvas. */

const STEPS = 256;

/** "#rrggbb" as [red, green, blue]. */
export function parse(colour: string): [number, number, number] {
  const value = Number.parseInt(colour.replace("#", ""), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

/** A pixel as canvases keep it on every machine that runs a browser: alpha, blue, green, red. */
export const pixel = ([red, green, blue]: [number, number, number]): number =>
  ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

/** 256 pixels from the first of these colours to the last. */
export function ramp(stops: string[]): Uint32Array {
  const colours = stops.map(parse);
  return Uint32Array.from({ length: STEPS }, (_, step) => {
    const place = (step / (STEPS - 1)) * (colours.length - 1);
    const from = Math.min(Math.floor(place), colours.length - 2);
    const mix = (part: 0 | 1 | 2) => {
      const [a, b] = [colours[from]![part], colours[from + 1]![part]];
      return Math.round(a + (b - a) * (place - from));
    };
    return pixel([mix(0), mix(1), mix(2)]);
  });
}

/** The step of a value between two others. */
export function step(value: number, low: number, high: number): number {
  return Math.max(0, Math.min(STEPS - 1, Math.round(((value - low) / (high - low)) * (STEPS - 1))));
}
