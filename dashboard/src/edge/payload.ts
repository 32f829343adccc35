/** Payloads: a model as a safetensors file in canonical form (docs/reference/protocol.md, "Payloads"). */

import { DTYPES, type DType, elementsOf, type Model, type Tensor } from "./tensors";

const HEADER_BYTES_MAX = 4 * 1024 * 1024;

export interface Payload {
  model: Model;
  /** SHA-256 of the base model that completes this one, or "". */
  baseModel: string;
  /** Names of the tensors that training measures and does not optimize. */
  statistics?: ReadonlySet<string>;
}

const NONE: ReadonlySet<string> = new Set();

const ORDER = Object.keys(DTYPES) as DType[];

/** Compare texts by code points; `<` compares UTF-16 units. */
function compareTexts(a: string, b: string): number {
  const [left, right] = [[...a], [...b]];
  const at = left.findIndex((letter, place) => letter !== right[place]);
  return at < 0 ? left.length - right.length : (left[at]?.codePointAt(0) ?? 0) - (right[at]?.codePointAt(0) ?? -1);
}

/** Return the names of a model in the order of its payload: by type, then statistics last, then by code points. */
export const orderOf = (model: Model, statistics: ReadonlySet<string> = NONE): string[] =>
  [...model.keys()].sort((a, b) => {
    const [left, right] = [model.get(a), model.get(b)] as [Tensor, Tensor];
    const kinds = Number(statistics.has(a)) - Number(statistics.has(b));
    return ORDER.indexOf(left.dtype) - ORDER.indexOf(right.dtype) || kinds || compareTexts(a, b);
  });

function metadataOf(baseModel: string, statistics: ReadonlySet<string>): string[] {
  const base = baseModel === "" ? {} : { base_model: baseModel };
  const measured = statistics.size ? { statistics: JSON.stringify([...statistics].sort(compareTexts)) } : {};
  const metadata = { ...base, ...measured };
  return Object.keys(metadata).length ? [`"__metadata__":${JSON.stringify(metadata)}`] : [];
}

/** Return the bytes of a payload. */
export function encodePayload({ model, baseModel, statistics = NONE }: Payload): Uint8Array {
  const names = orderOf(model, statistics);
  // An object would put names such as "0" first: the header is joined from its entries.
  const parts = metadataOf(baseModel, statistics);
  let size = 0;
  for (const name of names) {
    const { dtype, shape, data } = model.get(name) as Tensor;
    const place = { dtype, shape, data_offsets: [size, size + data.length] };
    parts.push(`${JSON.stringify(name)}:${JSON.stringify(place)}`);
    size += data.length;
  }
  const text = new TextEncoder().encode(`{${parts.join(",")}}`);
  const padded = Math.ceil(text.length / 8) * 8;
  const made = new Uint8Array(8 + padded + size);
  made.fill(0x20, 8, 8 + padded);
  made.set(text, 8);
  new DataView(made.buffer).setBigUint64(0, BigInt(padded), true);
  let at = 8 + padded;
  for (const name of names) {
    const { data } = model.get(name) as Tensor;
    made.set(data, at);
    at += data.length;
  }
  return made;
}

/** Return the model of a payload. Throws for other slots than the model's, and for bytes that are not a payload. */
export function decodePayload(bytes: Uint8Array): Payload {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = bytes.length < 8 ? -1 : Number(view.getBigUint64(0, true));
  if (length < 2 || length > HEADER_BYTES_MAX || 8 + length > bytes.length) throw new Error("the body is not a safetensors file");
  const header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(8, 8 + length)));
  const model = new Map<string, Tensor>();
  const body = bytes.subarray(8 + length);
  for (const [name, entry] of Object.entries(header as Record<string, Entry>)) {
    if (name === "__metadata__") continue;
    if (name.startsWith("@")) throw new Error(`the task has the slot ${name}, which this client does not know`);
    model.set(name, tensorOf(name, entry, body));
  }
  const metadata = (header as { __metadata__?: { base_model?: string; statistics?: string } }).__metadata__;
  const statistics = new Set(JSON.parse(metadata?.statistics ?? "[]") as string[]);
  return { model, baseModel: metadata?.base_model ?? "", statistics };
}

interface Entry {
  dtype: DType;
  shape: number[];
  data_offsets: [number, number];
}

function tensorOf(name: string, { dtype, shape, data_offsets: [start, stop] }: Entry, body: Uint8Array): Tensor {
  const size = DTYPES[dtype];
  if (size === undefined || stop - start !== size * elementsOf(shape) || start < 0 || stop > body.length) {
    throw new Error(`${name} is not a tensor of this blob`);
  }
  return { dtype, shape, data: body.slice(start, stop) };
}

/** Return the SHA-256 of bytes, in hexadecimal. */
export async function sha256(bytes: Uint8Array): Promise<string> {
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes as Uint8Array<ArrayBuffer>));
  return [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
