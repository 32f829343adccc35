"""A model as named views on one flat buffer, and the arithmetic of federated learning on it.

A `Layout` fixes names, types, shapes and offsets; two trees can be combined when their layouts are equal. The order of
the tensors is that of a safetensors file (widest type first, then by name), so that `layout.header` followed by the
buffer *is* such a file, and so that each type forms one contiguous segment: arithmetic runs over a handful of flat
segments in cache-sized blocks, however many tensors there are. Statistics follow the weights of their type.

A tree's `data` need not be in memory: anything that answers `data[start:stop]` with bytes will do. Sums, norms and
digests read block by block; only `tree[name]` and `tree.buffer` bring in more.

Tensors are of three kinds. Weights are optimized: steps, differences and norms are for them. Statistics are floats that
training measures, such as BatchNorm's running mean and variance. In every operation here they travel as values, not as
differences: they are averaged, so that a mean lies between the values that went into it, and a factor does not change
them. Whole numbers (a counter such as BatchNorm's `num_batches_tracked`) travel as values too; the greatest one wins.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from math import isfinite, nan, sqrt
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from shoal.core.errors import InvalidPayload
from shoal.core.model.model_form import RANKS, ModelForm, base_name, is_adapter

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

BLOCK_ELEMENTS = 1 << 16
"""Elements handled at once: 512 KiB of float64, which stays in a core's cache (measured: 3-10 times faster)."""

# Types in the order in which a safetensors file stores them.
DTYPES: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "I32": np.dtype("<i4"),
    "BF16": np.dtype("<u2"),  # numpy has no bfloat16: the raw bits, widened by `to_float`
    "F16": np.dtype("<f2"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
RANK = {name: rank for rank, name in enumerate(DTYPES)}
DIGEST = re.compile("[0-9a-f]{64}")
"""SHA-256 in hexadecimal."""
METADATA, BASE_MODEL, STATISTICS = "__metadata__", "base_model", "statistics"
"""Keys in the header of a safetensors file."""
FLOATS = frozenset({"F64", "F32", "BF16", "F16"})
_NAME_OF = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}


class Sliceable(Protocol):
    """Bytes that can be read piece by piece: an array, a memory map, a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Any: ...


class Leaf(NamedTuple):
    """One tensor: its place in the buffer is `[start, stop)` in bytes; `first` counts elements before it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    first: int

    @property
    def elements(self) -> int:
        return (self.stop - self.start) // DTYPES[self.dtype].itemsize

    @property
    def shown(self) -> str:
        """Type and shape, for people: F32[16, 30]."""
        return f"{self.dtype}{list(self.shape)}"


class Segment(NamedTuple):
    """All tensors of one type and kind, which lie side by side; `first` counts the elements before it."""

    dtype: str
    start: int
    stop: int
    first: int
    is_statistic: bool = False

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def is_weight(self) -> bool:
        return self.dtype in FLOATS and not self.is_statistic

    def blocks(self) -> Iterator[Segment]:
        """Yield the segment in pieces of at most `BLOCK_ELEMENTS` elements."""
        step = BLOCK_ELEMENTS * self.itemsize
        for start in range(self.start, self.stop, step):
            first = self.first + (start - self.start) // self.itemsize
            yield Segment(self.dtype, start, min(start + step, self.stop), first, self.is_statistic)


Entry = tuple[str, str, tuple[int, ...]]
"""Name, dtype and shape of a tensor."""


@dataclass(frozen=True)
class Layout:
    """Names, types, shapes, kinds and places of a tree's tensors. Build it with `Layout.of`.

    `base_model` is the SHA-256 of the tensors that complete the model and are not exchanged, as a safetensors file of
    them; empty if there are none. Trees of different base models cannot be combined.

    `statistics` names the float tensors that training measures and does not optimize.
    """

    leaves: tuple[Leaf, ...]
    base_model: str = ""
    statistics: frozenset[str] = frozenset()

    def __hash__(self) -> int:
        """Return the same for equal layouts, without a look at each tensor."""
        return self.nbytes

    @classmethod
    def of(cls, entries: Iterable[Entry], base_model: str = "", statistics: Iterable[str] = ()) -> Layout:
        """Return the layout of `(name, dtype, shape)` entries, given in any order; dtype as in safetensors ("F32").

        Raises `InvalidPayload` for a statistic that is not a float tensor among them.
        """
        measured = frozenset(statistics)
        ordered = sorted(entries, key=lambda entry: (RANK[entry[1]], entry[0] in measured, entry[0]))
        return cls.placed(ordered, base_model, measured)

    @classmethod
    def placed(cls, entries: Iterable[Entry], base_model: str = "", statistics: Iterable[str] = ()) -> Layout:
        """Return the layout of entries that are in their order already."""
        leaves, start, first = [], 0, 0
        for name, dtype, shape in entries:
            if name == METADATA:
                raise InvalidPayload(f"no tensor may be called {METADATA}: safetensors files reserve that name")
            count = 1
            for size in shape:
                count *= size
            stop = start + count * DTYPES[dtype].itemsize
            leaves.append(Leaf(name, dtype, tuple(shape), start, stop, first))
            start, first = stop, first + count
        layout = cls(tuple(leaves), base_model, frozenset(statistics))
        for name in sorted(layout.statistics):
            if name not in layout.index or layout.index[name].dtype not in FLOATS:
                raise InvalidPayload(f"the statistic {name} is not a tensor of floats", code="payload.statistic")
        return layout

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the buffer, without the header."""
        return self.leaves[-1].stop if self.leaves else 0

    @cached_property
    def elements(self) -> int:
        """The number of elements in a tree of this layout."""
        return sum(leaf.elements for leaf in self.leaves)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The runs of one type and kind. Empty tensors take no room and appear in none."""
        runs = []
        filled = (leaf for leaf in self.leaves if leaf.elements)
        for (dtype, measured), group in groupby(filled, key=lambda leaf: (leaf.dtype, leaf.name in self.statistics)):
            run = list(group)
            runs.append(Segment(dtype, run[0].start, run[-1].stop, run[0].first, measured))
        return tuple(runs)

    @cached_property
    def index(self) -> dict[str, Leaf]:
        return {leaf.name: leaf for leaf in self.leaves}

    def is_weight(self, leaf: Leaf) -> bool:
        """Return whether training optimizes a tensor: one of floats that is not a statistic."""
        return leaf.dtype in FLOATS and leaf.name not in self.statistics

    @cached_property
    def without_kinds(self) -> Layout:
        """The layout without marks of statistics, as other programs write a model."""
        return Layout.of(((leaf.name, leaf.dtype, leaf.shape) for leaf in self.leaves), self.base_model)

    @cached_property
    def form(self) -> ModelForm:
        return ModelForm(hashlib.sha256(self.header).hexdigest(), len(self.leaves), self.elements, self.base_model)

    @cached_property
    def shown(self) -> dict[str, str]:
        """Its tensors, for people: {"0.bias": "F32[16]", "1.running_var": "F32[16] statistic"}."""
        measured = self.statistics
        return {leaf.name: leaf.shown + (" statistic" if leaf.name in measured else "") for leaf in self.leaves}

    @cached_property
    def header(self) -> bytes:
        """The canonical safetensors header: eight bytes of length, JSON, spaces up to a multiple of eight. The base
        model and the names of the statistics are its only metadata."""
        metadata = {BASE_MODEL: self.base_model} if self.base_model else {}
        if self.statistics:
            metadata[STATISTICS] = _compact(sorted(self.statistics))
        entries: dict[str, Any] = {METADATA: metadata} if metadata else {}
        entries |= {
            leaf.name: {"dtype": leaf.dtype, "shape": list(leaf.shape), "data_offsets": [leaf.start, leaf.stop]}
            for leaf in self.leaves
        }
        text = _compact(entries).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class KnownResults(Protocol):
    """Results for one tree that are computed for many at once."""

    def minus(self, base: Tree) -> Tree:
        """Return `sub(tree, base)`."""
        ...

    @property
    def norm(self) -> float: ...

    def pickled(self) -> tuple[Callable[..., Tree], tuple[Any, ...]]:
        """Return a function and its arguments, to make the tree with its results in another process."""
        ...


class Tree(Mapping[str, Array]):
    """A layout and the bytes that fill it. Treated as immutable: operations return new trees."""

    __slots__ = ("data", "known", "layout")

    def __init__(self, layout: Layout, data: Sliceable, known: KnownResults | None = None) -> None:
        if len(data) != layout.nbytes:
            raise InvalidPayload(f"{len(data)} bytes cannot fill a layout of {layout.nbytes}")
        self.layout, self.data, self.known = layout, data, known

    @classmethod
    def of(
        cls,
        arrays: Mapping[str, Array],
        dtypes: Mapping[str, str] | None = None,
        base_model: str = "",
        statistics: Iterable[str] = (),
    ) -> Tree:
        """Build a tree from named arrays; `dtypes` names those that numpy cannot tell (BF16, given as uint16 bits or as
        float32 values, which are rounded). `base_model` and `statistics` as in `Layout`."""
        named = {name: np.asarray(array) for name, array in arrays.items()}
        given = dtypes or {}
        entries = ((name, given.get(name) or dtype_name(array), array.shape) for name, array in named.items())
        layout = Layout.of(entries, base_model, statistics)
        buffer = np.empty(layout.nbytes, np.uint8)
        for leaf in layout.leaves:
            values, place = named[leaf.name], buffer[leaf.start : leaf.stop]
            if leaf.dtype == "BF16" and values.dtype == np.float32:
                from_float(np.ascontiguousarray(values).reshape(-1), "BF16", place)
                continue
            values = values.astype(DTYPES[leaf.dtype], casting="equiv", copy=False)  # little-endian
            place[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return cls(layout, buffer)

    def __reduce__(self) -> tuple[Callable[..., Tree], tuple[Any, ...]]:
        """Return what is copied to another process: the buffer, or the results that trees have in common."""
        return (Tree, (self.layout, self.buffer)) if self.known is None else self.known.pickled()

    def __getitem__(self, name: str) -> Array:
        """Return the values of that tensor, in its shape, read-only: a view where the data and numpy allow one.

        numpy has no bfloat16: of such a tensor these are the same values as float32; `stored` has the bits.
        """
        leaf = self.layout.index[name]
        if leaf.dtype != "BF16":
            return self.stored(name)
        values = to_float(self.block(leaf.start, leaf.stop), "BF16", np.float32).reshape(leaf.shape)
        values.flags.writeable = False
        return values

    def stored(self, name: str) -> Array:
        """Return a read-only view on that tensor as it is stored: of bfloat16 its bits, as uint16."""
        leaf = self.layout.index[name]
        view = self.block(leaf.start, leaf.stop).view(DTYPES[leaf.dtype]).reshape(leaf.shape)
        view.flags.writeable = False
        return view

    def __iter__(self) -> Iterator[str]:
        return iter(leaf.name for leaf in self.layout.leaves)

    def __len__(self) -> int:
        return len(self.layout.leaves)

    def __repr__(self) -> str:
        return f"Tree({len(self)} tensors, {self.layout.nbytes} bytes)"

    def block(self, start: int, stop: int) -> Bytes:
        """Return the bytes `[start, stop)` of the buffer."""
        raw = self.data[start:stop]
        return raw if isinstance(raw, np.ndarray) else np.frombuffer(raw, np.uint8)

    @property
    def buffer(self) -> Bytes:
        """The whole buffer in memory, `uint8[layout.nbytes]`."""
        return self.block(0, self.layout.nbytes)


Slots = dict[str, Tree | float]
"""State of an algorithm, kept or sent: named trees and numbers, for example {"model": tree, "c": tree, "step": 3.0}."""


def dtype_name(array: Array) -> str:
    """Return the safetensors name of an array's type. Raises `InvalidPayload` for one that shoal does not carry."""
    name = _NAME_OF.get(array.dtype.newbyteorder("<") if array.dtype.itemsize > 1 else array.dtype)
    if name is None:
        raise InvalidPayload(
            f"type {array.dtype} cannot be sent", code="payload.dtype", hint=f"convert it to one of {', '.join(DTYPES)}"
        )
    return name


def to_float(block: Bytes, dtype: str, wide: npt.DTypeLike = np.float64) -> Array:
    """Convert a block of any float type to a wider one."""
    if dtype == "BF16":
        return (block.view("<u2").astype(np.uint32) << 16).view(np.float32).astype(wide, copy=False)
    return block.view(DTYPES[dtype]).astype(wide, copy=False)


def from_float(values: Array, dtype: str, out: Bytes) -> None:
    """Round wide values into a block of that type (to nearest, ties to even; BF16 by way of float32)."""
    if dtype == "BF16":
        bits = values.astype(np.float32).view(np.uint32)
        rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        out.view("<u2")[:] = np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
    else:
        out.view(DTYPES[dtype])[:] = values


def same_layout(a: Layout, b: Layout) -> None:
    """Raise `InvalidPayload`, naming the first tensor that differs, unless both layouts are equal."""
    if a is b or a == b:
        return
    for name in sorted(a.statistics ^ b.statistics):
        if name in a.index and name in b.index:
            kinds = ("a statistic", "a weight") if name in a.statistics else ("a weight", "a statistic")
            raise InvalidPayload(
                f"{name} is {kinds[0]} in one tree, {kinds[1]} in the other",
                code="payload.layout",
                hint="name the same statistics on every node",
            )
    for left, right in zip(a.leaves, b.leaves, strict=False):
        if left != right:
            raise InvalidPayload(
                f"{left.name} is {left.dtype}{list(left.shape)} in one tree, "
                f"{right.name} is {right.dtype}{list(right.shape)} in the other",
                code="payload.layout",
                hint=RANKS if left.name == right.name and is_adapter(left.name) else "",
            )
    if len(a.leaves) != len(b.leaves):
        raise InvalidPayload(f"one tree has {len(a.leaves)} tensors, the other {len(b.leaves)}", code="payload.layout")
    raise InvalidPayload(
        f"one tree belongs to {base_name(a.base_model)}, the other to {base_name(b.base_model)}",
        code="payload.base-model",
        hint="start every node with the same base model",
    )


def combine(a: Tree, b: Tree, alpha: float, beta: float) -> Tree:
    """Compute `alpha * a + beta * b` on weights, in float64; the greater value on integers.

    Statistics are those of `b`, whatever `beta` is: of a base `a` and a displacement `b`, `b` has the newer values.
    """
    same_layout(a.layout, b.layout)
    out = np.empty(a.layout.nbytes, np.uint8)
    for segment in a.layout.segments:
        for block in segment.blocks():
            left, right = a.block(block.start, block.stop), b.block(block.start, block.stop)
            place = out[block.start : block.stop]
            if segment.is_statistic:
                place[:] = right
            elif segment.is_float:
                with np.errstate(over="ignore", invalid="ignore"):  # a diverged model is data, not a warning
                    wide = alpha * to_float(left, block.dtype)
                    if beta:  # zero times infinity would be NaN
                        wide += beta * to_float(right, block.dtype)
                    from_float(wide, block.dtype, place)
            else:
                kind = DTYPES[block.dtype]
                place.view(kind)[:] = np.maximum(left.view(kind), right.view(kind))
    return Tree(a.layout, out)


def add(a: Tree, b: Tree, scale: float = 1.0) -> Tree:
    """Compute `a + scale * b` of weights; the statistics of `b`; the greater of two integers."""
    return combine(a, b, 1.0, scale)


def sub(a: Tree, b: Tree) -> Tree:
    """Compute the displacement `a - b` of weights; statistics and integers keep the value of `a`."""
    same_layout(a.layout, b.layout)
    if a.known is not None:
        return a.known.minus(b)
    out = np.empty(a.layout.nbytes, np.uint8)
    for segment in a.layout.segments:
        for block in segment.blocks():
            left, place = a.block(block.start, block.stop), out[block.start : block.stop]
            if segment.is_weight:
                right = b.block(block.start, block.stop)
                with np.errstate(over="ignore", invalid="ignore"):
                    if block.dtype == "F32":  # the same bits as by float64, which is more than twice as precise
                        np.subtract(left.view("<f4"), right.view("<f4"), out=place.view("<f4"))
                        continue
                    wide = to_float(left, block.dtype) - to_float(right, block.dtype)
                    from_float(wide, block.dtype, place)
            else:
                place[:] = left
    return Tree(a.layout, out)


def scale(a: Tree, factor: float) -> Tree:
    """Compute `factor * a` on weights; statistics and integers stay."""
    return combine(a, a, factor, 0.0)


def zeros(layout: Layout) -> Tree:
    """Return zeros: neutral in `add` for floats and for non-negative integers."""
    return Tree(layout, np.zeros(layout.nbytes, np.uint8))


def dot(a: Tree, b: Tree) -> float:
    """Compute the inner product of the weights. Infinite or NaN exactly if a value is, or if a block overflows."""
    same_layout(a.layout, b.layout)
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for segment in a.layout.segments:
            if segment.is_weight:
                wide = np.float64 if segment.dtype == "F64" else np.float32
                for block in segment.blocks():
                    left = to_float(a.block(block.start, block.stop), block.dtype, wide)
                    right = left if b is a else to_float(b.block(block.start, block.stop), block.dtype, wide)
                    total += float(np.dot(left, right))
    return total


def norm(a: Tree) -> float:
    """Compute the Euclidean norm of the weights; not finite if a float is not, so it proves finiteness in one pass."""
    if a.known is not None:
        return a.known.norm
    return float(np.sqrt(dot(a, a))) if isfinite(greatest_statistic(a)) else nan


def greatest_statistic(a: Tree) -> float:
    """Return the greatest magnitude of a statistic: NaN if one is NaN, 0 without statistics."""
    greatest = 0.0
    for segment in a.layout.segments:
        for block in segment.blocks() if segment.is_statistic else ():
            values = to_float(a.block(block.start, block.stop), block.dtype)
            greatest = float(np.maximum(greatest, np.abs(values).max()))
    return greatest


def statistics_distance(a: Tree, b: Tree) -> float:
    """Return the Euclidean distance of the statistics of two trees of one layout."""
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for segment in a.layout.segments:
            for block in segment.blocks() if segment.is_statistic else ():
                left, right = (to_float(one.block(block.start, block.stop), block.dtype) for one in (a, b))
                total += float(np.square(left - right).sum())
    return sqrt(total)


def digest(a: Tree) -> str:
    """Return the SHA-256, in hexadecimal, of the safetensors file that holds this tree."""
    sha = hashlib.sha256(a.layout.header)
    edges = [*range(0, a.layout.nbytes, 1 << 20), a.layout.nbytes]
    for start, stop in pairwise(edges):
        sha.update(a.block(start, stop).data)
    return sha.hexdigest()
