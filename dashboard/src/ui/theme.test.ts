import { expect, test } from "vitest";
import { nextPreference } from "./theme";

test.each(["light", "dark"] as const)(
  "on a %s system the first step changes what is seen and three lead back",
  (system) => {
    const opposite = system === "dark" ? "light" : "dark";
    expect(nextPreference({ preference: "system", resolved: system }, system)).toBe(opposite);
    expect(nextPreference({ preference: opposite, resolved: opposite }, system)).toBe(system);
    expect(nextPreference({ preference: system, resolved: system }, system)).toBe("system");
  },
);
