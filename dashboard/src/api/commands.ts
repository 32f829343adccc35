/** What an operator may do; each answers the job as it stands afterwards, and the stream tells everybody else. */
import { api, unwrap } from "./client";
import { reviveJob } from "./revive";
import type { Job } from "./types";

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

export async function signIn(token: string): Promise<void> {
  await unwrap(api.POST("/api/v1/session", { body: { token } }));
}

export async function signOut(): Promise<void> {
  await unwrap(api.DELETE("/api/v1/session"));
}
