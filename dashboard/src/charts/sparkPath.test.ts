import { expect, test } from "vitest";
import { sparkPath } from "./sparkPath";

test("the line fills its box, low to high", () => {
  expect(sparkPath([0.1, undefined, 0.5, 0.9], 108, 28)).toEqual({
    line: "M4 24L54 14L104 4",
    area: "M4 24L54 14L104 4L104 28L4 28Z",
    end: [104, 4],
    crosses: [],
  });
});

test("a line that diverged ends in crosses and has no end point", () => {
  const spark = sparkPath([1, 2, NaN, Infinity], 104, 28);
  expect(spark?.line).toBe("M4 24L36 4");
  expect(spark?.crosses).toEqual([68, 100]);
  expect(spark?.end).toBeNull();
});

test("nothing measured is nothing drawn; a single or constant value is a finite one", () => {
  expect(sparkPath([undefined], 104, 28)).toBeNull();
  expect(sparkPath([0.5], 104, 28)?.end).toEqual([4, 24]);
  expect(sparkPath([0.5, 0.5], 104, 28)?.line).toBe("M4 24L100 24");
  expect(sparkPath([NaN], 104, 28)).toEqual({ line: "", area: "", end: null, crosses: [4] });
});
