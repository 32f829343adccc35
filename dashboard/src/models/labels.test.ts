import { expect, test } from "vitest";
import { job } from "../test/make";
import { promotionEffect, withdrawalEffect } from "./labels";

const one = job({ labels: { production: 3, candidate: 7, beta: 7 } });

test("a promotion says what changes for whom", () => {
  expect(promotionEffect(job(), "production", 5)).toBe(
    "Whoever asks for production gets version 5 from now on, and its model is kept.",
  );
  expect(promotionEffect(one, "production", 5)).toBe(
    "Whoever asks for production gets version 5 instead of version 3 from now on, and its model is kept. " +
      "Version 3 is then kept only as long as any other.",
  );
  expect(promotionEffect(one, "candidate", 5)).not.toContain("Version 7 is then");
});

test("what changes nothing, or is no label, is said", () => {
  expect(promotionEffect(one, "production", 3)).toBe("Version 3 is production already.");
  expect(promotionEffect(one, "12", 3)).toContain("begins with a small letter");
  expect(promotionEffect(one, "", 3)).toContain("A label is a name");
});

test("a withdrawal says what becomes of the model", () => {
  expect(withdrawalEffect(one, "production")).toContain("only as long as any other");
  expect(withdrawalEffect(one, "beta")).toBe("Whoever asks for beta gets no model any longer.");
});
