import { QueryClient, QueryObserver } from "@tanstack/react-query";
import { expect, test, vi } from "vitest";
import { keys } from "../api/queries";
import type { Job, JobPeers, Version } from "../api/types";
import { job, peer, peerNews, version } from "../test/make";
import { applyDeltas } from "./apply";

test("a batch reaches every answer that it concerns, and no other", () => {
  const client = new QueryClient();
  const other = [version(0)];
  client.setQueryData(keys.jobs, [job(), job({ name: "mnist" })]);
  client.setQueryData(keys.job("digits"), job());
  client.setQueryData([...keys.versions("digits"), 48], [version(0)]);
  client.setQueryData([...keys.versions("digits"), 1500], [version(0)]);
  client.setQueryData([...keys.versions("mnist"), 48], other);
  applyDeltas(client, [
    { kind: "version", job: "digits", version: version(1) },
    { kind: "job", job: "digits", value: job({ version: 1 }) },
    { kind: "traffic", job: "digits", up_bytes: 9000, down_bytes: 1 },
  ]);
  expect(client.getQueryData<Job[]>(keys.jobs)?.[0]).toMatchObject({ version: 1, up_bytes: 9000 });
  expect(client.getQueryData<Job>(keys.job("digits"))).toMatchObject({ version: 1, up_bytes: 9000 });
  for (const points of [48, 1500]) {
    expect(client.getQueryData<Version[]>([...keys.versions("digits"), points])).toHaveLength(2);
  }
  expect(client.getQueryData([...keys.versions("mnist"), 48])).toBe(other);
});

test("a page that asked for a job before there was one asks again when it begins", async () => {
  const client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  const ask = vi.fn().mockRejectedValueOnce(new Error("no such job")).mockResolvedValue(job());
  const stop = new QueryObserver(client, { queryKey: keys.job("digits"), queryFn: ask }).subscribe(() => undefined);
  await vi.waitFor(() => expect(client.getQueryState(keys.job("digits"))?.status).toBe("error"));
  applyDeltas(client, [{ kind: "job", job: "digits", value: job() }]);
  await vi.waitFor(() => expect(client.getQueryData(keys.job("digits"))).toEqual(job()));
  applyDeltas(client, [{ kind: "job", job: "digits", value: job({ version: 4 }) }]);
  expect(ask).toHaveBeenCalledTimes(2);
  stop();
});

test("a new roster is asked for whole, since events do not tell who is no longer in it", async () => {
  const client = new QueryClient();
  const key = keys.peers("digits");
  const ask = vi.fn().mockResolvedValue({ roster: 2, peers: [peer("b")], now: null, history: [] });
  const news = { kind: "peers", job: "digits", now: null } as const;
  client.setQueryData(key, { roster: 1, peers: [peer("a"), peer("b")], now: null, history: [] });
  const stop = new QueryObserver(client, { queryKey: key, queryFn: ask, staleTime: Infinity }).subscribe(() => undefined);
  applyDeltas(client, [{ ...news, roster: 1, peers: [peerNews("a", { round: 11 })] }]);
  expect(client.getQueryData<JobPeers>(key)?.peers[0]?.round).toBe(11);
  expect(ask).not.toHaveBeenCalled();
  applyDeltas(client, [{ ...news, roster: 2, peers: [] }]);
  await vi.waitFor(() => expect(client.getQueryData<JobPeers>(key)?.peers.map(({ name }) => name)).toEqual(["b"]));
  stop();
});
