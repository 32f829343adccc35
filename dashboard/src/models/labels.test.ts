import { expect, test } from "vitest";
import { job } from "../test/factories";
import { promotionEffect, removalEffect } from "./labels";

const one = job({ labels: { production: 3, candidate: 7, beta: 7 } });

test("a promotion says what changes for whom", () => {
  expect(promotionEffect(job(), "production", 5)).toBe(
    "production refers to version 5, and its model is kept.",
  );
  expect(promotionEffect(one, "production", 5)).toBe(
    "production refers to version 5 instead of 3, and its model is kept. Version 3 is no longer protected from deletion.",
  );
  expect(promotionEffect(one, "candidate", 5)).not.toContain("Version 7 is no longer");
});

test("what changes nothing, or is no label, is said", () => {
  expect(promotionEffect(one, "production", 3)).toBe("Version 3 has the label production already.");
  expect(promotionEffect(one, "12", 3)).toContain("Start with a lower-case letter");
  expect(promotionEffect(one, "", 3)).toContain("A label is a name");
});

test("a withdrawal says what becomes of the model", () => {
  expect(removalEffect(one, "production")).toContain("no longer protected from deletion");
  expect(removalEffect(one, "beta")).toBe("beta no longer refers to a model.");
});
