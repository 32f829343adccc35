/**
 * An edge client for browsers, in the coordinator's protocol (docs/reference/protocol.md):
 *
 *     const client = new EdgeClient("", learner);
 *     await client.enrol(token, "tablet-3");
 *     await client.run(signal);
 *
 * It takes part in jobs whose local part is plain training: federated averaging and algorithms that differ from it at
 * the coordinator alone. Tasks of other jobs are answered with a failure that says so. Nothing is kept but the
 * credential, which the page may store: a task that is cut short is given again.
 */

import { type BlobRef, compareTasks, decodeFrame, encodeFrame, type Head, INLINE_BYTES_MAX, type Metrics, type Task, type TaskId } from "./frames";
import { Http, Refused } from "./http";
import type { Learner } from "./learner";
import { decodePayload, encodePayload, type Payload, sha256 } from "./payload";
import { difference } from "./tensors";

const FRAME = { "Content-Type": "application/x-shoal-frame" };
const NOTHING = new Uint8Array();
/** Algorithms whose nodes train as in federated averaging. */
const PLAIN = new Set(["fedavg", "fedavgm", "fedadam", "fedadagrad", "fedyogi", "fedasync", "fedbuff", "flexlora"]);

interface JobSpec {
  algorithm?: { name?: string; epochs?: number; batch_size?: number; lr?: number };
  filters?: { name: string }[];
  stages?: object[];
}

interface Held {
  task: Task;
  abort: AbortController;
}

export interface EdgeEvents {
  /** Called when a task begins, ends, or has come some way. */
  onProgress?(job: string, kind: string, fraction: number): void;
  /** Called with the answer to a report. */
  onReport?(job: string, counted: boolean): void;
  /** Called with the message of a task that could not be done. */
  onFailure?(job: string, message: string): void;
}

export class EdgeClient {
  name = "";
  readonly #http: Http;
  readonly #learner: Learner;
  readonly #events: EdgeEvents;
  readonly #held = new Map<string, Held>();
  readonly #specs = new Map<string, JobSpec>();

  constructor(url: string, learner: Learner, events: EdgeEvents = {}, fetcher?: typeof fetch) {
    this.#http = new Http(url, fetcher);
    this.#learner = learner;
    this.#events = events;
  }

  /** The credential, for a page that wants to store it and to set it at its next start. */
  get credential(): string {
    return this.#http.credential;
  }

  set credential(value: string) {
    this.#http.credential = value;
  }

  /** Turn a one-time token into a credential. */
  async enrol(token: string, name: string): Promise<void> {
    const key = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    const body = { token, name, info: this.#info(), protocols: [1] };
    const answer = await this.#http.send("POST", "/enrol", { body, headers: { "Idempotency-Key": key } });
    this.credential = ((await answer.json()) as { credential: string }).credential;
  }

  #info(): object {
    // Node.js before 21 has no navigator.
    return { platform: (globalThis.navigator?.userAgent ?? "JavaScript").slice(0, 200), device: "cpu" };
  }

  /** Take part in jobs until the signal is aborted; then give the tasks back. Throws `Refused` without a credential. */
  async run(signal: AbortSignal): Promise<void> {
    const answer = await this.#http.send("POST", "/hello", { body: { info: this.#info(), protocols: [1] }, signal });
    const welcome = (await answer.json()) as { name: string; wait_s_max: number };
    this.name = welcome.name;
    try {
      while (!signal.aborted) await this.#poll(welcome.wait_s_max, signal);
    } catch (error) {
      if (!signal.aborted) throw error;
    } finally {
      for (const { abort } of this.#held.values()) abort.abort();
      this.#held.clear();
      await this.#http.send("POST", "/leave", { signal: AbortSignal.timeout(5000) }).catch(() => undefined);
    }
  }

  async #poll(waitS: number, signal: AbortSignal): Promise<void> {
    const held = [...this.#held].map(([job, { task }]) => `&held=${job}:${task.id[0]}.${task.id[1]}.${task.revision ?? 0}`);
    const answer = await this.#http.send("GET", `/work?wait_s=${waitS}${held.join("")}`, { signal });
    if (answer.status === 204) return;
    const frame = decodeFrame(new Uint8Array(await answer.arrayBuffer()));
    this.#take(frame.head, frame.payload);
  }

  /** Take a message about a job; tasks are worked on while the next poll is open. */
  #take(head: Head, payload: Uint8Array): void {
    const held = this.#held.get(head.job);
    if (head.type === "task") {
      if (held !== undefined && compareTasks(head.id, held.task.id) <= 0) return;
      held?.abort.abort();
      const abort = new AbortController();
      this.#held.set(head.job, { task: head, abort });
      void this.#work(head, payload, abort.signal).finally(() => this.#release(head));
    } else if (head.type === "amendment" && held !== undefined) {
      held.task.revision = Math.max(held.task.revision ?? 0, head.revision ?? 0);
    } else if (head.type === "stop" || (head.type === "no_task" && held !== undefined && compareTasks(held.task.id, head.newest_task) <= 0)) {
      held?.abort.abort();
      this.#held.delete(head.job);
    }
  }

  #release(task: Task): void {
    if (this.#held.get(task.job)?.task === task) this.#held.delete(task.job);
  }

  /** Do a task and report it; an error of the learner becomes a failure of the task. */
  async #work(task: Task, payload: Uint8Array, signal: AbortSignal): Promise<void> {
    try {
      this.#events.onProgress?.(task.job, task.kind, 0);
      await this.#report(task, await this.#done(task, payload, signal), signal);
    } catch (error) {
      if (signal.aborted) return;
      const message = error instanceof Error ? error.message : String(error);
      this.#events.onFailure?.(task.job, message);
      await this.#fail(task, message, signal).catch(() => undefined);
    }
  }

  async #done(task: Task, payload: Uint8Array, signal: AbortSignal): Promise<Done> {
    const spec = await this.#spec(task.job, signal);
    const algorithm = spec.algorithm ?? {};
    const name = algorithm.name ?? "fedavg";
    if (!PLAIN.has(name)) throw new Error(`this client does not know the algorithm ${name}`);
    if (task.kind === "gossip") throw new Error("this client does not take part in gossip");
    if (spec.stages?.length) throw new Error("this client's model does not grow, and the job has stages");
    const [filter] = spec.filters ?? [];
    if (filter !== undefined || task.reference !== undefined) throw new Error(`this client does not know the filter ${filter?.name}`);
    if (task.kind === "init") return { weight: 0, metrics: {}, payload: { model: await this.#learner.init(task.seed), baseModel: "" } };
    const given = decodePayload(await this.#blob(task, payload, signal));
    const metrics = await this.#learner.evaluate(given.model);
    if (task.kind === "evaluate") return { weight: Math.max(0, metrics["eval/examples"] ?? 0), metrics };
    const trained = await this.#learner.train(given.model, {
      epochs: algorithm.epochs ?? 1,
      batchSize: algorithm.batch_size ?? 32,
      lr: algorithm.lr ?? 0.1,
      seed: task.seed,
      signal,
      progress: (fraction) => this.#events.onProgress?.(task.job, task.kind, fraction),
    });
    const update = difference(trained.model, given.model, given.statistics);
    return { weight: trained.weight, metrics: { ...metrics, ...trained.metrics }, payload: { ...given, model: update } };
  }

  async #spec(job: string, signal: AbortSignal): Promise<JobSpec> {
    const known = this.#specs.get(job);
    if (known !== undefined) return known;
    const answer = await this.#http.send("GET", `/jobs/${job}`, { signal });
    const { spec } = (await answer.json()) as { spec: JobSpec };
    this.#specs.set(job, spec);
    return spec;
  }

  async #blob(task: Task, payload: Uint8Array, signal: AbortSignal): Promise<Uint8Array> {
    if (task.blob === undefined) throw new Error("the task has no model");
    if (payload.length > 0) return payload;
    const answer = await this.#http.send("GET", `/jobs/${task.job}/blobs/${task.blob.digest}`, { signal });
    const bytes = new Uint8Array(await answer.arrayBuffer());
    if (bytes.length !== task.blob.nbytes || (await sha256(bytes)) !== task.blob.digest) {
      throw new Error("the model that came is not the one that the task names");
    }
    return bytes;
  }

  async #report(task: Task, done: Done, signal: AbortSignal): Promise<void> {
    const bytes = done.payload === undefined ? NOTHING : encodePayload(done.payload);
    const blob: { blob?: BlobRef } = bytes.length ? { blob: { digest: await sha256(bytes), nbytes: bytes.length } } : {};
    const { job, id, version } = task;
    const head: Head = { type: "report", job, node: this.name, task: id, version, weight: done.weight, ...blob, metrics: done.metrics };
    const isInline = bytes.length <= INLINE_BYTES_MAX;
    const frame = encodeFrame({ head, payload: isInline ? bytes : NOTHING });
    for (let isMissing = !isInline; ; ) {
      if (isMissing && blob.blob) await this.#http.send("PUT", `/jobs/${job}/blobs/${blob.blob.digest}`, { body: bytes, signal });
      try {
        const answer = await this.#http.send("POST", `/jobs/${job}/reports`, { body: frame, headers: FRAME, signal });
        const ack = decodeFrame(new Uint8Array(await answer.arrayBuffer())).head;
        this.#events.onReport?.(job, ack.type === "ack" && ack.counted);
        return;
      } catch (error) {
        isMissing = error instanceof Refused && error.code === "blob.missing" && !isInline;
        if (!isMissing) throw error;
      }
    }
  }

  async #fail({ job, id }: { job: string; id: TaskId }, error: string, signal: AbortSignal): Promise<void> {
    const head: Head = { type: "task_failed", job, node: this.name, task: id, error: error.slice(0, 2000) };
    await this.#http.send("POST", `/jobs/${job}/failures`, { body: encodeFrame({ head, payload: NOTHING }), headers: FRAME, signal });
  }
}

interface Done {
  weight: number;
  metrics: Metrics;
  payload?: Payload;
}
