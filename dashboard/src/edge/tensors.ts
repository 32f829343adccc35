/** Models as named tensors, and their arithmetic: little-endian bytes as safetensors has them. */

/** Types in the order of the safetensors library, with their bytes per number. */
export const DTYPES = { I64: 8, F64: 8, F32: 4, I32: 4, BF16: 2, F16: 2, I16: 2, I8: 1, U8: 1, BOOL: 1 } as const;

export type DType = keyof typeof DTYPES;

export interface Tensor {
  dtype: DType;
  shape: readonly number[];
  data: Uint8Array;
}

export type Model = ReadonlyMap<string, Tensor>;

export const elementsOf = (shape: readonly number[]): number => shape.reduce((product, size) => product * size, 1);

/** Return a float32 tensor. */
export function float32(values: ArrayLike<number>, shape: readonly number[]): Tensor {
  const data = new Uint8Array(Float32Array.from(values).buffer);
  if (data.length !== 4 * elementsOf(shape)) throw new Error(`${values.length} numbers do not fill [${shape}]`);
  return { dtype: "F32", shape, data };
}

/** Return an int64 tensor without dimensions. */
export function int64(value: bigint): Tensor {
  return { dtype: "I64", shape: [], data: new Uint8Array(BigInt64Array.of(value).buffer) };
}

/** Return the numbers of a float32 tensor as a copy. */
export function float32Of(tensor: Tensor): Float32Array {
  if (tensor.dtype !== "F32") throw new Error(`a tensor of ${tensor.dtype} is not float32`);
  return new Float32Array(tensor.data.slice().buffer);
}

/** Return the value of an int64 tensor without dimensions. */
export const int64Of = (tensor: Tensor): bigint => new DataView(tensor.data.slice().buffer).getBigInt64(0, true);

/**
 * Return the update `after - before`: weights as differences, rounded once; statistics and integers as the values of
 * `after`.
 */
export function difference(after: Model, before: Model, statistics: ReadonlySet<string> = new Set()): Model {
  const made = new Map<string, Tensor>();
  for (const [name, old] of before) {
    const now = after.get(name);
    const same = now?.dtype === old.dtype && String(now.shape) === String(old.shape) && now.data.length === old.data.length;
    if (now === undefined || !same) throw new Error(`training has changed the type or shape of ${name}`);
    made.set(name, { ...old, data: statistics.has(name) ? now.data.slice() : subtract(now, old) });
  }
  if (after.size !== before.size) throw new Error("training has added a tensor to the model");
  return made;
}

function subtract(after: Tensor, before: Tensor): Uint8Array {
  const kind = FLOATS[after.dtype];
  if (kind === undefined) return after.data.slice();
  const [left, right] = [viewOf(after.data), viewOf(before.data)];
  const made = new Uint8Array(after.data.length);
  const out = viewOf(made);
  for (let at = 0; at < made.length; at += DTYPES[after.dtype]) {
    kind.write(out, at, kind.read(left, at) - kind.read(right, at));
  }
  return made;
}

const viewOf = (data: Uint8Array): DataView => new DataView(data.buffer, data.byteOffset, data.byteLength);

interface FloatKind {
  read(view: DataView, at: number): number;
  write(view: DataView, at: number, value: number): void;
}

const FLOATS: Partial<Record<DType, FloatKind>> = {
  F64: { read: (view, at) => view.getFloat64(at, true), write: (view, at, value) => view.setFloat64(at, value, true) },
  F32: { read: (view, at) => view.getFloat32(at, true), write: (view, at, value) => view.setFloat32(at, value, true) },
  BF16: { read: readBfloat16, write: writeBfloat16 },
  F16: { read: readFloat16, write: writeFloat16 },
};

function readBfloat16(view: DataView, at: number): number {
  const bits = new DataView(new ArrayBuffer(4));
  bits.setUint32(0, view.getUint16(at, true) << 16);
  return bits.getFloat32(0);
}

/** Round by way of float32 to the nearest, ties to even. */
function writeBfloat16(view: DataView, at: number, value: number): void {
  const wide = new DataView(new ArrayBuffer(4));
  wide.setFloat32(0, value);
  const bits = wide.getUint32(0);
  view.setUint16(at, Number.isNaN(value) ? 0x7fc0 : (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16, true);
}

function readFloat16(view: DataView, at: number): number {
  const bits = view.getUint16(at, true);
  const sign = bits & 0x8000 ? -1 : 1;
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

/** Round to the nearest, ties to even. */
function writeFloat16(view: DataView, at: number, value: number): void {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (Number.isNaN(value)) return view.setUint16(at, 0x7e00, true);
  const exponent = Math.max(-14, Math.min(15, Math.floor(Math.log2(size || 2 ** -30))));
  const scaled = size / 2 ** (exponent - 10);
  const floor = Math.floor(scaled);
  const rest = scaled - floor;
  const whole = floor + (rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? 1 : 0);
  const bits = whole < 1024 ? whole : ((exponent + 14) << 10) + whole;
  view.setUint16(at, sign | Math.min(bits, 0x7c00), true);
}
