import { QueryClient, type Query } from "@tanstack/react-query";
import { expect, test } from "vitest";
import { mayStand, UNTOLD } from "./mayStand";

const queryOf = (client: QueryClient): Query => client.getQueryCache().getAll()[0] as Query;

test("an answer that no event changes stands, one that failed or that others are told of does not", async () => {
  const untold = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  const asked = untold.fetchQuery({ queryKey: ["a"], queryFn: () => Promise.resolve(1), meta: UNTOLD });
  expect(mayStand(queryOf(untold))).toBe(true);
  await asked;
  expect(mayStand(queryOf(untold))).toBe(true);
  const told = new QueryClient();
  await told.fetchQuery({ queryKey: ["a"], queryFn: () => Promise.resolve(1) });
  expect(mayStand(queryOf(told))).toBe(false);
  const broken = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  const failing = { queryKey: ["a"], queryFn: () => Promise.reject(new Error("unreachable")), meta: UNTOLD };
  await expect(broken.fetchQuery(failing)).rejects.toThrow();
  expect(mayStand(queryOf(broken))).toBe(false);
  const aged = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  await aged.fetchQuery({ queryKey: ["a"], queryFn: () => Promise.resolve(1), meta: UNTOLD });
  await expect(aged.fetchQuery(failing)).rejects.toThrow();
  expect(queryOf(aged).state.data).toBe(1);
  expect(mayStand(queryOf(aged))).toBe(false);
});
