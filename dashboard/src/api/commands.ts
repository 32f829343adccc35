/** Requests that change something. Each returns the new state; the stream reports it to other browsers. */
import { api, unwrap } from "./client";
import { decodeJob } from "./decode";
import type { Alert, FleetNode, Job } from "./types";

export type Command = "pause" | "resume" | "stop-round" | "stop-now" | "gossip" | "server";

export async function sendCommand(job: string, what: Command, why: string): Promise<Job> {
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
  return decodeJob(await answer(), Date.now());
}

export const acknowledgeAlert = (alert: number): Promise<Alert> =>
  unwrap(api.POST("/api/v1/alerts/{alert}/acknowledge", { params: { path: { alert } } }));

/** Replace a job's tags. */
export async function setTags(job: string, tags: string[]): Promise<Job> {
  const answer = await unwrap(api.PUT("/api/v1/jobs/{job}/tags", { params: { path: { job } }, body: { tags } }));
  return decodeJob(answer, Date.now());
}

/** Delete an ended job. */
export async function removeJob(job: string): Promise<void> {
  await unwrap(api.DELETE("/api/v1/jobs/{job}", { params: { path: { job } } }));
}

/** Point a label to a version. */
export async function promoteVersion(job: string, label: string, version: number, why: string): Promise<Job> {
  const params = { path: { job, name: label } };
  const body = { version, why };
  return decodeJob(await unwrap(api.PUT("/api/v1/jobs/{job}/labels/{name}", { params, body })), Date.now());
}

export async function removeLabel(job: string, label: string, why: string): Promise<Job> {
  const params = { path: { job, name: label }, query: { why } };
  return decodeJob(await unwrap(api.DELETE("/api/v1/jobs/{job}/labels/{name}", { params })), Date.now());
}

/** Create a job and return its name. `paused`: create it paused. */
export async function createJob(spec: Record<string, unknown>, paused: boolean): Promise<string> {
  return (await unwrap(api.POST("/api/v1/jobs", { body: { spec, paused } }))).name;
}

export type Availability = NonNullable<FleetNode["availability"]>;

export const setAvailability = (node: string, availability: Availability): Promise<FleetNode> =>
  unwrap(api.PUT("/api/v1/nodes/{node}/availability", { params: { path: { node } }, body: { availability } }));

/** Create a token with which one node can join; `name`: the only name that the node may have. */
export const createNodeToken = (name: string) =>
  unwrap(api.POST("/api/v1/tokens", { body: { role: "node", uses: 1, name: name === "" ? null : name } }));

/** Revoke a token and end its sessions. */
export async function revokeToken(id: string): Promise<void> {
  await unwrap(api.DELETE("/api/v1/tokens/{token}", { params: { path: { token: id } } }));
}

export async function signIn(token: string): Promise<void> {
  await unwrap(api.POST("/api/v1/session", { body: { token } }));
}

export async function signOut(): Promise<void> {
  await unwrap(api.DELETE("/api/v1/session"));
}
