import { QueryClient, type Query } from "@tanstack/react-query";
import { expect, test } from "vitest";
import { mayHaveMissed, UNTOLD } from "./untold";

const queryOf = (client: QueryClient): Query => client.getQueryCache().getAll()[0] as Query;
const make = () => new QueryClient({ defaultOptions: { queries: { retry: false } } });

test("what no event changes stands when a page begins to listen, and is asked again after an outage", async () => {
  const client = make();
  let answer: (value: number) => void = () => undefined;
  const queryFn = () => new Promise<number>((resolve) => (answer = resolve));
  const asked = client.fetchQuery({ queryKey: ["a"], queryFn, meta: UNTOLD });
  expect([mayHaveMissed(true), mayHaveMissed(false)].map((missed) => missed(queryOf(client)))).toEqual([false, false]);
  answer(1);
  await asked;
  expect(mayHaveMissed(true)(queryOf(client))).toBe(false);
  expect(mayHaveMissed(false)(queryOf(client))).toBe(true);
});

test("what events change, and what failed, is asked again", async () => {
  const told = make();
  await told.fetchQuery({ queryKey: ["a"], queryFn: () => Promise.resolve(1) });
  expect(mayHaveMissed(true)(queryOf(told))).toBe(true);
  const broken = make();
  const failing = { queryKey: ["a"], queryFn: () => Promise.reject(new Error("unreachable")), meta: UNTOLD };
  await expect(broken.fetchQuery(failing)).rejects.toThrow();
  expect(mayHaveMissed(true)(queryOf(broken))).toBe(true);
});
