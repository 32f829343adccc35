import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { EdgeClient } from "./client";
import { ConformanceLearner } from "./conformance";
import { decodeFrame, encodeFrame, type Frame, type Head, type Task } from "./frames";
import { decodePayload, encodePayload, orderOf, sha256 } from "./payload";
import { difference, float32, float32Of, int64, type Model, type Tensor } from "./tensors";

interface Recorded {
  frames: { head: Record<string, unknown>; payload_bytes: number; frame: string }[];
  payloads: { tensors: Record<string, { dtype: string; shape: number[] }>; payload: string }[];
}

const recorded = JSON.parse(readFileSync("../docs/reference/frames.json", "utf8")) as Recorded;
const bytesOf = (text: string): Uint8Array => new Uint8Array(Buffer.from(text, "base64"));

describe("frames", () => {
  it.each(recorded.frames)("reads the recorded $head.type", ({ head, payload_bytes, frame }) => {
    const found = decodeFrame(bytesOf(frame));
    expect(found.payload.length).toBe(payload_bytes);
    for (const [name, value] of Object.entries(head)) {
      if (name === "metrics") expect(found.head).toMatchObject({ metrics: { "train/loss": 0.25, "eval/loss": Infinity } });
      else if (name !== "seed") expect((found.head as unknown as Record<string, unknown>)[name]).toEqual(value);
    }
  });

  it("keeps a seed that a number does not hold", () => {
    const found = recorded.frames.map(({ frame }) => decodeFrame(bytesOf(frame)).head).find((head) => head.type === "task") as Task;
    expect(found.seed).toBe(2n ** 56n - 1n);
  });

  it("writes what it reads", () => {
    const head: Head = { type: "report", job: "j", node: "n", task: [1, 2], version: 3, weight: 4, metrics: { a: NaN, b: -Infinity } };
    const found = decodeFrame(encodeFrame({ head, payload: Uint8Array.of(1, 2) }));
    expect(found.head).toMatchObject(head);
    expect([...found.payload]).toEqual([1, 2]);
  });

  it.each([[[]], [[0, 0, 0, 9, 1]], [[255, 255, 255, 255]]])("refuses %j", (bytes) => {
    expect(() => decodeFrame(Uint8Array.from(bytes))).toThrow("not a frame");
  });
});

describe("payloads", () => {
  it("reads and writes the recorded payload, a tensor of each type", () => {
    for (const { tensors, payload } of recorded.payloads) {
      const bytes = bytesOf(payload);
      const found = decodePayload(bytes);
      expect(orderOf(found.model)).toEqual(Object.keys(tensors));
      for (const [name, { dtype, shape }] of Object.entries(tensors)) expect(found.model.get(name)).toMatchObject({ dtype, shape });
      expect(Buffer.from(encodePayload(found)).equals(Buffer.from(bytes))).toBe(true);
    }
  });

  it("keeps names that are numbers in their order, and the base model", () => {
    const model: Model = new Map([["10", float32([1], [1])], ["9", float32([2], [1])], ["𝒜", float32([3], [1])], ["￼", float32([4], [1])]]);
    const found = decodePayload(encodePayload({ model, baseModel: "ab" }));
    expect(orderOf(found.model)).toEqual(["10", "9", "￼", "𝒜"]);
    expect(found.baseModel).toBe("ab");
  });

  it("writes statistics after the weights of their type, and their names into the metadata", () => {
    const model: Model = new Map([["b.var", float32([1], [1])], ["a.mean", float32([2], [1])], ["w", float32([3], [1])], ["seen", int64(0n)]]);
    const bytes = encodePayload({ model, baseModel: "", statistics: new Set(["b.var", "a.mean"]) });
    const head = new TextDecoder().decode(bytes.subarray(8));
    expect(head.startsWith('{"__metadata__":{"statistics":"[\\"a.mean\\",\\"b.var\\"]"},"seen":')).toBe(true);
    const found = decodePayload(bytes);
    expect([...found.model.keys()]).toEqual(["seen", "w", "a.mean", "b.var"]);
    expect(found.statistics).toEqual(new Set(["a.mean", "b.var"]));
    expect(Buffer.from(encodePayload(found)).equals(Buffer.from(bytes))).toBe(true);
  });

  it("refuses other slots and wrong places", () => {
    const bytes = encodePayload({ model: new Map([["@step", float32([1], [1])]]), baseModel: "" });
    expect(() => decodePayload(bytes)).toThrow("slot @step");
    const good = encodePayload({ model: new Map([["w", float32([1, 2], [2])]]), baseModel: "" });
    expect(() => decodePayload(good.subarray(0, -1))).toThrow("w is not a tensor");
    expect(() => decodePayload(Uint8Array.of(1))).toThrow("not a safetensors file");
  });
});

describe("updates", () => {
  const half = (bits: number): Tensor => ({ dtype: "F16", shape: [], data: new Uint8Array(Uint16Array.of(bits).buffer) });
  const bits = (tensor: Tensor | undefined): number => new Uint16Array((tensor as Tensor).data.slice().buffer)[0] ?? -1;

  it("subtracts weights and keeps statistics and integers", () => {
    const before: Model = new Map([["w", float32([0.5, 1], [2])], ["var", float32([8], [1])], ["seen", int64(3n)]]);
    const after: Model = new Map([["w", float32([2, 0.25], [2])], ["var", float32([9], [1])], ["seen", int64(5n)]]);
    const made = difference(after, before, new Set(["var"]));
    expect([...float32Of(made.get("w") as Tensor)]).toEqual([1.5, -0.75]);
    expect([...float32Of(made.get("var") as Tensor)]).toEqual([9]);
    expect(made.get("seen")).toEqual(int64(5n));
  });

  it.each([
    [0x3c00, 0x3800, 0x3800], // 1 - 0.5
    [0x7bff, 0xfbff, 0x7c00], // beyond the largest
    [0x0001, 0x0000, 0x0001], // the smallest
    [0x3c01, 0x3c00, 0x1400], // one unit in the last place of 1
    [0x8000, 0x0000, 0x8000], // -0 - 0
    [0x6801, 0x3c00, 0x6800], // 2050 - 1 lies between two numbers: to the even one
  ])("rounds float16: %i - %i", (after, before, expected) => {
    const made = difference(new Map([["x", half(after)]]), new Map([["x", half(before)]]));
    expect(bits(made.get("x"))).toBe(expected);
  });

  it.each([
    [0x3f80, 0x3f00, 0x3f00], // 1 - 0.5
    [0x4380, 0x3f80, 0x437f], // 256 - 1
    [0x4381, 0x3f80, 0x4380], // 258 - 1: to the even one
    [0x4382, 0x3f80, 0x4382], // 260 - 1: to the even one, above
  ])("rounds bfloat16: %i - %i", (after, before, expected) => {
    const model = (value: number): Model => new Map([["x", { ...half(value), dtype: "BF16" as const }]]);
    expect(bits(difference(model(after), model(before)).get("x"))).toBe(expected);
  });

  it("refuses a model of another form", () => {
    const before: Model = new Map([["w", float32([1], [1])]]);
    expect(() => difference(new Map(), before)).toThrow("has changed the type or shape of w");
    expect(() => difference(new Map([...before, ["b", float32([1], [1])]]), before)).toThrow("added a tensor");
  });
});

/** A coordinator that answers as it is told. */
class Scripted {
  readonly reports: Frame[] = [];
  readonly failures: Frame[] = [];
  readonly stored = new Map<string, Uint8Array>();
  readonly paths: string[] = [];
  readonly work: Uint8Array[] = [];
  spec: object = { algorithm: { name: "fedavg" } };
  /** Responses to give before the usual one, by a part of the path. */
  readonly faults: [string, () => Response][] = [];

  readonly fetch = (async (input: string, init: RequestInit) => {
    const path = input.replace("/api/v1", "");
    this.paths.push(`${init.method} ${path}`);
    const fault = this.faults.findIndex(([part]) => path.includes(part));
    if (fault >= 0) return (this.faults.splice(fault, 1)[0] as [string, () => Response])[1]();
    const bytes = init.body instanceof Uint8Array ? init.body : new Uint8Array();
    if (path === "/hello") return Response.json({ name: "n", wait_s_max: 1 });
    if (path.startsWith("/work")) return this.#next(init.signal as AbortSignal);
    if (path.endsWith("/reports")) return this.#ack(this.reports, bytes);
    if (path.endsWith("/failures")) return this.#ack(this.failures, bytes);
    if (path.includes("/blobs/")) return this.#blob(path.split("/").pop() as string, init.method, bytes);
    return Response.json(path.startsWith("/jobs/") ? { spec: this.spec } : {});
  }) as unknown as typeof fetch;

  async #next(signal: AbortSignal): Promise<Response> {
    const frame = this.work.shift();
    if (frame !== undefined) return new Response(frame as Uint8Array<ArrayBuffer>);
    await new Promise((resolve) => setTimeout(resolve, 5));
    signal.throwIfAborted();
    return new Response(null, { status: 204 });
  }

  #ack(kept: Frame[], bytes: Uint8Array): Response {
    const frame = decodeFrame(bytes);
    kept.push(frame);
    const { job, task } = frame.head as Extract<Head, { type: "report" }>;
    return new Response(encodeFrame({ head: { type: "ack", job, task, counted: true }, payload: new Uint8Array() }) as Uint8Array<ArrayBuffer>);
  }

  #blob(digest: string, method: string | undefined, bytes: Uint8Array): Response {
    if (method === "PUT") this.stored.set(digest, bytes);
    const found = this.stored.get(digest);
    return found === undefined ? new Response(null, { status: 404 }) : new Response(found as Uint8Array<ArrayBuffer>);
  }

  /** Queue a training task for a model. */
  async ask(model: Model, more: Partial<Task> = {}, isInline = true): Promise<void> {
    const payload = encodePayload({ model, baseModel: "" });
    const digest = await sha256(payload);
    if (!isInline) this.stored.set(digest, payload);
    const id = more.id ?? [1, 1];
    const task = { shoal: 1, type: "task", job: "j", id, node: "n", kind: "train", version: 0, blob: { digest, nbytes: payload.length } };
    const text = JSON.stringify({ ...task, seed: 0, ...more }).replace('"seed":0', '"seed":9');
    const head = new TextEncoder().encode(text);
    const frame = new Uint8Array(4 + head.length + (isInline ? payload.length : 0));
    new DataView(frame.buffer).setUint32(0, head.length);
    frame.set(head, 4);
    if (isInline) frame.set(payload, 4 + head.length);
    this.work.push(frame);
  }
}

const MODEL: Model = new Map([["w", float32([0.5, 1], [2])], ["seen", int64(0n)]]);

/** Run a client until `isDone`. */
async function served(scripted: Scripted, isDone: () => boolean, learner = new ConformanceLearner()): Promise<void> {
  const stop = new AbortController();
  const running = new EdgeClient("", learner, {}, scripted.fetch).run(stop.signal);
  await expect.poll(isDone, { timeout: 5000 }).toBe(true);
  stop.abort();
  await running;
}

describe("the client", () => {
  it("trains, and reports the update with metrics", async () => {
    const scripted = new Scripted();
    await scripted.ask(MODEL);
    await served(scripted, () => scripted.reports.length === 1);
    const [{ head, payload }] = scripted.reports as [Frame];
    expect(head).toMatchObject({ type: "report", task: [1, 1], weight: 3, metrics: { "eval/loss": 1.5, "train/loss": 9 / 1024 } });
    expect([...float32Of(decodePayload(payload).model.get("w") as Tensor)]).toEqual([0.25 + 9 / 1024 - 0.5, 0.5 + 9 / 1024 - 1]);
    expect(scripted.paths.at(-1)).toBe("POST /leave");
  });

  it("fetches a model outside the frame and uploads a long update, again when it is missing", async () => {
    const scripted = new Scripted();
    await scripted.ask(new Map([["w", float32(new Float32Array(70_000), [70_000])], ["seen", int64(0n)]]), {}, false);
    scripted.faults.push(["/reports", () => Response.json({ code: "blob.missing" }, { status: 409 })]);
    await served(scripted, () => scripted.reports.length === 1);
    expect(scripted.paths.filter((path) => path.startsWith("PUT"))).toHaveLength(2);
    const { blob } = scripted.reports[0]?.head as { blob: { digest: string } };
    expect(scripted.stored.has(blob.digest)).toBe(true);
  });

  it("sends a report again until it is answered", async () => {
    const scripted = new Scripted();
    await scripted.ask(MODEL);
    const broken = (): Response => {
      throw new TypeError("connection reset");
    };
    scripted.faults.push(["/reports", broken], ["/reports", () => new Response(null, { status: 503 })]);
    await served(scripted, () => scripted.reports.length === 1);
    expect(scripted.paths.filter((path) => path.endsWith("/reports"))).toHaveLength(3);
  });

  it("refuses a model that is not the one of the task", async () => {
    const scripted = new Scripted();
    await scripted.ask(MODEL, {}, false);
    for (const [digest, bytes] of scripted.stored) scripted.stored.set(digest, bytes.map((byte) => byte ^ 1));
    await served(scripted, () => scripted.failures.length === 1);
    expect(scripted.failures[0]?.head).toMatchObject({ error: "the model that came is not the one that the task names" });
  });

  it.each([
    [{ algorithm: { name: "scaffold" } }, {}, "does not know the algorithm scaffold"],
    [{ filters: [{ name: "half" }] }, {}, "does not know the filter half"],
    [{}, { kind: "gossip" as const }, "does not take part in gossip"],
    [{ stages: [{ rounds: 1 }, {}] }, {}, "model does not grow"],
  ])("says what it cannot do: %j", async (spec, more, error) => {
    const scripted = new Scripted();
    scripted.spec = spec;
    await scripted.ask(MODEL, more);
    await served(scripted, () => scripted.failures.length === 1);
    expect((scripted.failures[0]?.head as { error: string }).error).toContain(error);
    expect(scripted.reports).toHaveLength(0);
  });

  it("drops a task that a newer one replaces or the coordinator withdraws", async () => {
    const scripted = new Scripted();
    const signals: AbortSignal[] = [];
    class Slow extends ConformanceLearner {
      override train(...given: Parameters<ConformanceLearner["train"]>): never {
        const [, { signal }] = given;
        signals.push(signal);
        return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))) as never;
      }
    }
    await scripted.ask(MODEL);
    await scripted.ask(MODEL, { id: [1, 2] });
    const withdrawn: Head = { type: "no_task", job: "j", newest_task: [1, 2] };
    const seen = () => signals.length === 2 && signals.every((signal) => signal.aborted);
    const later = setInterval(() => {
      if (signals.length === 2) scripted.work.push(encodeFrame({ head: withdrawn, payload: new Uint8Array() }));
    }, 20);
    await served(scripted, seen, new Slow());
    clearInterval(later);
    expect([scripted.reports.length, scripted.failures.length]).toEqual([0, 0]);
  });

  it("ends with a refusal of its credential", async () => {
    const scripted = new Scripted();
    scripted.faults.push(["/work", () => Response.json({ code: "auth.unknown", detail: "unknown" }, { status: 401 })]);
    const running = new EdgeClient("", new ConformanceLearner(), {}, scripted.fetch).run(new AbortController().signal);
    await expect(running).rejects.toMatchObject({ name: "Refused", status: 401, code: "auth.unknown" });
  });
});
