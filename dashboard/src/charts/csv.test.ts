import { expect, test } from "vitest";
import { toCsv } from "./csv";

test("numbers are kept to the last digit, what diverged is said, what is not known is empty", () => {
  expect(toCsv(["round", "loss"], [[1, 0.123456789012345], [2, NaN], [3, undefined], [4, null]])).toBe(
    "round,loss\r\n1,0.123456789012345\r\n2,NaN\r\n3,\r\n4,\r\n",
  );
});

test("a name is a text, whatever is in it", () => {
  expect(toCsv(['a"b', "c,d"], [["=1+1", "two\nlines"]])).toBe('"a""b","c,d"\r\n\'=1+1,"two\nlines"\r\n');
});
