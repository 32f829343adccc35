/** Return the extent of x. For a single point, uPlot's extent would be a hundred rounds wide. */
export function xExtent(places: ArrayLike<number>, low: number, high: number): [number, number] {
  const alone = places.length === 1 ? places[0] : undefined;
  return [alone ?? low, alone ?? high];
}
