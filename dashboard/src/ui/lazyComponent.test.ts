import { expect, test } from "vitest";
import { lazily, loadAll } from "./lazily";

const idle = () => Promise.resolve();
const Part = () => null;

test("all parts are loaded once, those too that a part brings with it, and none after one that fails", async () => {
  const loaded: string[] = [];
  const load = (name: string) => async () => (loaded.push(name), Part);
  lazily(async () => {
    lazily(load("inner"));
    return load("outer")();
  });
  await loadAll(idle);
  expect(loaded).toEqual(["outer", "inner"]);
  lazily(() => Promise.reject(new TypeError("Unable to preload CSS for /assets/x.css")));
  lazily(load("late"));
  await loadAll(idle);
  expect(loaded).toEqual(["outer", "inner"]);
});
