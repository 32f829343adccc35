import { QueryClient, type Query } from "@tanstack/react-query";
import { expect, test } from "vitest";
import { mayBeStale } from "./queryMeta";

const queryOf = (client: QueryClient): Query => client.getQueryCache().getAll()[0] as Query;
const make = () => new QueryClient({ defaultOptions: { queries: { retry: false } } });
const meta = { merge: (value: number) => value };

test("an answer that no event changes is current when a page opens a stream, and stale after an outage", async () => {
  const client = make();
  let answer: (value: number) => void = () => undefined;
  const queryFn = () => new Promise<number>((resolve) => (answer = resolve));
  const fetched = client.fetchQuery({ queryKey: ["a"], queryFn });
  expect([mayBeStale(true), mayBeStale(false)].map((isStale) => isStale(queryOf(client)))).toEqual([false, false]);
  answer(1);
  await fetched;
  expect(mayBeStale(true)(queryOf(client))).toBe(false);
  expect(mayBeStale(false)(queryOf(client))).toBe(true);
});

test("an answer that events change, and one that failed, is stale", async () => {
  const live = make();
  await live.fetchQuery({ queryKey: ["a"], queryFn: () => Promise.resolve(1), meta });
  expect(mayBeStale(true)(queryOf(live))).toBe(true);
  const broken = make();
  const failing = { queryKey: ["a"], queryFn: () => Promise.reject(new Error("unreachable")) };
  await expect(broken.fetchQuery(failing)).rejects.toThrow();
  expect(mayBeStale(true)(queryOf(broken))).toBe(true);
});
