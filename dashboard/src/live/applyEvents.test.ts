import { QueryClient, QueryObserver } from "@tanstack/react-query";
import { expect, test, vi } from "vitest";
import { queryKeys } from "../api/queryKeys";
import type { Job, JobPeers } from "../api/types";
import { event, job, peer, peerUpdate, version } from "../test/factories";
import { applyEvents } from "./applyEvents";
import { mergeJob, mergeJobs, mergePeers, mergeVersions, type Merge } from "./merge";

/** Put an answer into the cache, with the merge function of its query. */
async function cache<T>(client: QueryClient, queryKey: readonly unknown[], answer: T, merge?: Merge<T>): Promise<T> {
  return client.fetchQuery({ queryKey, queryFn: () => answer, ...(merge ? { meta: { merge } } : {}) });
}

test("a batch reaches every answer that it concerns, and no other", async () => {
  const client = new QueryClient();
  const versions = (name: string) => cache(client, ["versions", name], [version(0)], mergeVersions(name));
  await cache(client, queryKeys.jobs, [job(), job({ name: "mnist" })], mergeJobs);
  await cache(client, queryKeys.job("digits"), job(), mergeJob);
  await versions("digits");
  const other = await versions("mnist");
  const plain = await cache(client, ["models", "digits"], [version(0)]);
  applyEvents(client, [
    event("version", version(1)),
    event("job", job({ version: 1 })),
    event("traffic", { up_bytes: 9000, down_bytes: 1 }),
  ]);
  expect(client.getQueryData<Job[]>(queryKeys.jobs)?.[0]).toMatchObject({ version: 1, up_bytes: 9000 });
  expect(client.getQueryData<Job>(queryKeys.job("digits"))).toMatchObject({ version: 1, up_bytes: 9000 });
  expect(client.getQueryData(["versions", "digits"])).toHaveLength(2);
  expect(client.getQueryData(["versions", "mnist"])).toBe(other);
  expect(client.getQueryData(["models", "digits"])).toBe(plain);
});

test("a page that asked for a job before it existed asks again when it starts", async () => {
  const client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  const ask = vi.fn().mockRejectedValueOnce(new Error("no such job")).mockResolvedValue(job());
  const stop = new QueryObserver(client, { queryKey: queryKeys.job("digits"), queryFn: ask }).subscribe(() => undefined);
  await vi.waitFor(() => expect(client.getQueryState(queryKeys.job("digits"))?.status).toBe("error"));
  applyEvents(client, [event("job", job())]);
  await vi.waitFor(() => expect(client.getQueryData(queryKeys.job("digits"))).toEqual(job()));
  applyEvents(client, [event("job", job({ version: 4 }))]);
  expect(ask).toHaveBeenCalledTimes(2);
  stop();
});

test("a new roster is fetched, since events do not report who has left it", async () => {
  const client = new QueryClient();
  const queryKey = queryKeys.peers("digits");
  const queryFn = vi.fn().mockResolvedValue({ roster: 2, peers: [peer("b")], now: null, history: [] });
  client.setQueryData(queryKey, { roster: 1, peers: [peer("a"), peer("b")], now: null, history: [] });
  const meta = { merge: mergePeers("digits") };
  const stop = new QueryObserver(client, { queryKey, queryFn, meta, staleTime: Infinity }).subscribe(() => undefined);
  applyEvents(client, [event("peers", { roster: 1, peers: [peerUpdate("a", { local_rounds: 11 })], now: null })]);
  expect(client.getQueryData<JobPeers>(queryKey)?.peers[0]?.local_rounds).toBe(11);
  expect(queryFn).not.toHaveBeenCalled();
  applyEvents(client, [event("peers", { roster: 2, peers: [], now: null })]);
  await vi.waitFor(() => expect(client.getQueryData<JobPeers>(queryKey)?.peers.map(({ name }) => name)).toEqual(["b"]));
  stop();
});
