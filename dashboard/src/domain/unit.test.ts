import { expect, test } from "vitest";
import { job } from "../test/factories";
import { unitOf } from "./unit";

test("rounds are counted where there are rounds", () => {
  expect(unitOf(job())).toBe("round");
  expect(unitOf(job({ schedule: "divergence", versions: 30 }))).toBe("version");
  expect(unitOf(job({ schedule: "variance", versions: 30 }))).toBe("version");
  expect(unitOf(job({ schedule: "periodic", versions: null }))).toBe("version");
});
