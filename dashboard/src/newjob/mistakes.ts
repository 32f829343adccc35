/** Which of the mistakes that the coordinator found belongs beside which field. */
import type { Mistake } from "../api/types";
import type { Place } from "./values";

const begins = (place: Place, with_: Place): boolean =>
  place.length >= with_.length && with_.every((key, index) => place[index] === key);

/** Those at a field, or anywhere inside it. */
export const within = (mistakes: readonly Mistake[], place: Place): Mistake[] =>
  mistakes.filter((mistake) => begins(mistake.place, place));

/** Those of a table itself: at no field that the form shows. */
export const ofTable = (mistakes: readonly Mistake[], place: Place, shown: readonly string[]): Mistake[] =>
  within(mistakes, place).filter((mistake) => {
    const next = mistake.place[place.length];
    return typeof next !== "string" || !shown.includes(next);
  });
