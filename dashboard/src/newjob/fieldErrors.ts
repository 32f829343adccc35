/** Assignment of validation errors to fields. */
import type { FieldError } from "../api/types";
import type { FieldPath } from "./values";

const startsWith = (place: FieldPath, with_: FieldPath): boolean =>
  place.length >= with_.length && with_.every((key, index) => place[index] === key);

/** Return the errors of a field and of the fields inside it. */
export const errorsAt = (mistakes: readonly FieldError[], place: FieldPath): FieldError[] =>
  mistakes.filter((mistake) => startsWith(mistake.place, place));

/** Return the errors of a table that belong to none of its shown fields. */
export const errorsOfTable = (mistakes: readonly FieldError[], place: FieldPath, shown: readonly string[]): FieldError[] =>
  errorsAt(mistakes, place).filter((mistake) => {
    const next = mistake.place[place.length];
    return typeof next !== "string" || !shown.includes(next);
  });
