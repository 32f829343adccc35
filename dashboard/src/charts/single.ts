/** Where the places of a chart lie. Around a single one uPlot has made room already, a hundred rounds of it. */
export function spanOf(places: ArrayLike<number>, low: number, high: number): [number, number] {
  const alone = places.length === 1 ? places[0] : undefined;
  return [alone ?? low, alone ?? high];
}
