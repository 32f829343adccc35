/** Frames: a message as JSON after its length, then its payload (docs/reference/protocol.md, "Frames"). */

export type TaskId = readonly [number, number];

export interface BlobRef {
  digest: string;
  nbytes: number;
}

export interface Task {
  type: "task";
  job: string;
  id: TaskId;
  node: string;
  kind: "init" | "train" | "evaluate" | "gossip";
  version: number;
  /** Below 2^56, which is more than a number holds exactly. */
  seed: bigint;
  blob?: BlobRef;
  reference?: BlobRef;
  revision?: number;
}

export type Head =
  | Task
  | { type: "amendment"; job: string; task: TaskId; revision?: number; recall?: boolean; checks_allowed?: number }
  | { type: "no_task"; job: string; newest_task: TaskId }
  | { type: "ack"; job: string; task: TaskId; counted: boolean; why?: string }
  | { type: "stop"; job: string; why?: string; model_differs?: boolean }
  | { type: "report"; job: string; node: string; task: TaskId; version: number; weight: number; blob?: BlobRef; metrics?: Metrics }
  | { type: "task_failed"; job: string; node: string; task: TaskId; error: string; phase?: string };

export type Metrics = Record<string, number>;

export interface Frame {
  head: Head;
  payload: Uint8Array;
}

/** A longer payload travels by itself, under its SHA-256. */
export const INLINE_BYTES_MAX = 256 * 1024;
const HEAD_BYTES_MAX = 64 * 1024;

const NON_FINITE: Record<string, number> = { NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity };

/** Return the bytes of a frame. Metrics may be NaN or infinite. */
export function encodeFrame({ head, payload }: Frame): Uint8Array {
  const text = JSON.stringify({ shoal: 1, ...head }, (_, value: unknown) =>
    typeof value === "number" && !Number.isFinite(value) ? String(value) : value,
  );
  const bytes = new TextEncoder().encode(text);
  const made = new Uint8Array(4 + bytes.length + payload.length);
  new DataView(made.buffer).setUint32(0, bytes.length);
  made.set(bytes, 4);
  made.set(payload, 4 + bytes.length);
  return made;
}

/** Return the frame in these bytes. Throws for other bytes. */
export function decodeFrame(bytes: Uint8Array): Frame {
  const length = bytes.length < 4 ? 0 : new DataView(bytes.buffer, bytes.byteOffset, 4).getUint32(0);
  if (length < 2 || length > HEAD_BYTES_MAX || 4 + length > bytes.length) throw new Error("the answer is not a frame");
  const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(4, 4 + length));
  // A quotation mark inside a text has a backslash before it, so this is the field.
  const head = JSON.parse(text.replace(/(?<!\\)"seed":(\d+)/, '"seed":"$1"')) as Record<string, unknown>;
  if (head.shoal !== 1) throw new Error(`protocol version ${String(head.shoal)}; this client knows 1`);
  if (typeof head.seed === "string") head.seed = BigInt(head.seed);
  if (typeof head.metrics === "object") head.metrics = numbersOf(head.metrics as Record<string, number | string>);
  return { head: head as unknown as Head, payload: bytes.subarray(4 + length) };
}

const numbersOf = (metrics: Record<string, number | string>): Metrics =>
  Object.fromEntries(
    Object.entries(metrics).map(([name, value]) => [name, typeof value === "string" ? (NON_FINITE[value] ?? NaN) : value]),
  );

/** Return a number below zero, zero, or above it, as task `a` is older than, the same as, or newer than `b`. */
export const compareTasks = (a: TaskId, b: TaskId): number => a[0] - b[0] || a[1] - b[1];
