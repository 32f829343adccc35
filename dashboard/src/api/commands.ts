/** What an operator may do; each answers the job as it stands afterwards, and the stream tells everybody else. */
import { api, unwrap } from "./client";
import { reviveJob } from "./revive";
import type { Alert, FleetNode, Job } from "./types";

export type Command = "pause" | "resume" | "stop-round" | "stop-now" | "gossip" | "server";

export async function command(job: string, what: Command, why: string): Promise<Job> {
  const params = { path: { job } };
  const answer = () => {
    switch (what) {
      case "pause":
        return unwrap(api.POST("/api/v1/jobs/{job}/pause", { params, body: { why } }));
      case "resume":
        return unwrap(api.POST("/api/v1/jobs/{job}/resume", { params, body: { why } }));
      case "stop-round":
        return unwrap(api.POST("/api/v1/jobs/{job}/stop", { params, body: { why, when: "round" } }));
      case "gossip":
      case "server":
        return unwrap(api.POST("/api/v1/jobs/{job}/switch", { params, body: { why, to: what } }));
      case "stop-now":
        return unwrap(api.POST("/api/v1/jobs/{job}/stop", { params, body: { why, when: "now" } }));
    }
  };
  return reviveJob(await answer(), Date.now());
}

/** An operator knows of it. */
export const acknowledge = (alert: number): Promise<Alert> =>
  unwrap(api.POST("/api/v1/alerts/{alert}/acknowledge", { params: { path: { alert } } }));

/** Gives a job these tags instead of those that it had. */
export async function setTags(job: string, tags: string[]): Promise<Job> {
  const answer = await unwrap(api.PUT("/api/v1/jobs/{job}/tags", { params: { path: { job } }, body: { tags } }));
  return reviveJob(answer, Date.now());
}

/** Removes a job that has ended, for good. */
export async function removeJob(job: string): Promise<void> {
  await unwrap(api.DELETE("/api/v1/jobs/{job}", { params: { path: { job } } }));
}

/** Lets a label name a version, instead of the one that it names now. */
export async function promote(job: string, label: string, version: number, why: string): Promise<Job> {
  const params = { path: { job, name: label } };
  const body = { version, why };
  return reviveJob(await unwrap(api.PUT("/api/v1/jobs/{job}/labels/{name}", { params, body })), Date.now());
}

/** Lets a label name nothing more. */
export async function withdraw(job: string, label: string, why: string): Promise<Job> {
  const params = { path: { job, name: label }, query: { why } };
  return reviveJob(await unwrap(api.DELETE("/api/v1/jobs/{job}/labels/{name}", { params })), Date.now());
}

/** Begins a job; its name. `hold`: paused, until somebody starts it. */
export async function begin(spec: Record<string, unknown>, hold: boolean): Promise<string> {
  return (await unwrap(api.POST("/api/v1/jobs", { body: { spec, hold } }))).name;
}

export type Availability = NonNullable<FleetNode["availability"]>;

/** Drains a node, blocks it, or lets jobs ask it again. */
export const setAvailability = (node: string, availability: Availability): Promise<FleetNode> =>
  unwrap(api.PUT("/api/v1/nodes/{node}/availability", { params: { path: { node } }, body: { availability } }));

/** A token that lets one node in; `name`: only a node of that name. */
export const newToken = (name: string) =>
  unwrap(api.POST("/api/v1/tokens", { body: { role: "node", uses: 1, name: name === "" ? null : name } }));

/** Revoke a token by its id; sessions that were opened with it end. */
export async function revokeToken(id: string): Promise<void> {
  await unwrap(api.DELETE("/api/v1/tokens/{token}", { params: { path: { token: id } } }));
}

export async function signIn(token: string): Promise<void> {
  await unwrap(api.POST("/api/v1/session", { body: { token } }));
}

export async function signOut(): Promise<void> {
  await unwrap(api.DELETE("/api/v1/session"));
}
