import { expect, test } from "vitest";
import { lazyComponent, preloadAll } from "./lazyComponent";

const idle = () => Promise.resolve();
const Part = () => null;

test("all parts are loaded once, those too that a part brings with it, and none after one that fails", async () => {
  const loaded: string[] = [];
  const load = (name: string) => async () => (loaded.push(name), Part);
  lazyComponent(async () => {
    lazyComponent(load("inner"));
    return load("outer")();
  });
  await preloadAll(idle);
  expect(loaded).toEqual(["outer", "inner"]);
  lazyComponent(() => Promise.reject(new TypeError("Unable to preload CSS for /assets/x.css")));
  lazyComponent(load("late"));
  await preloadAll(idle);
  expect(loaded).toEqual(["outer", "inner"]);
});
