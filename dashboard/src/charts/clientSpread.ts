import type { Point } from "./series";

/** Distribution of the clients' values of a metric at the versions of a chart; each list is as long as the versions. */
export interface ClientSpread {
  /** The band of the middle 80 % of clients. */
  low: Point[];
  high: Point[];
  /** The highlighted client and its values; "" if there is none. */
  name: string;
  highlighted: Point[];
}
