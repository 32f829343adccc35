"""Payloads: models and other tensors as bytes.

A payload is a safetensors file in canonical form. The slot "model" keeps its tensors' names; a tensor of another slot
is called `@slot/name`, a number `@slot` (an F64 without dimensions). Slots are sorted by name, "model" first. Given
layouts have exactly one header, so a receiver that knows the job's model compares the header byte for byte and parses
nothing. Otherwise (an initial model) it parses the header within limits and requires the canonical form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from shoal.core.errors import InvalidPayload
from shoal.core.model.model_form import base_name
from shoal.core.model.tree import (
    BASE_MODEL,
    DTYPES,
    METADATA,
    STATISTICS,
    Layout,
    Leaf,
    Slots,
    Tree,
    norm,
)
from shoal.core.model.tree_checks import first_negative_variance, first_not_boolean, first_not_finite
from shoal.validation.message_checks import COUNT_MAX, is_digest

RECALLED_BYTES_MAX = 64 * 1024  # headers up to this length are parsed once and cached
HEADER_BYTES_MAX = 4 * 1024 * 1024
TENSORS_MAX = 20_000
NAME_BYTES_MAX = 512
DIMENSIONS_MAX = 8
PIECE_BYTES = 1 << 20

Layouts = dict[str, Layout | None]
"""A payload's slots: a layout for a tree, None for a number."""


def _slot_order(name: str) -> tuple[bool, str]:
    return name != "model", name


def _entries(layouts: Layouts) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    for slot in sorted(layouts, key=_slot_order):
        layout = layouts[slot]
        if layout is None:
            yield f"@{slot}", "F64", ()
            continue
        for leaf in layout.leaves:
            yield _payload_name(slot, leaf.name), leaf.dtype, leaf.shape


def _payload_name(slot: str, name: str) -> str:
    return name if slot == "model" else f"@{slot}/{name}"


def payload_layout(layouts: Layouts) -> Layout:
    """Return the layout of a payload with these slots, which determines its header.

    Raises `InvalidPayload` for trees of different base models.
    """
    bases = {layout.base_model for layout in layouts.values() if layout is not None and layout.base_model}
    if len(bases) > 1:
        names = " and ".join(sorted(map(base_name, bases)))
        raise InvalidPayload(f"trees of {names} in one payload", code="payload.base-model")
    trees = ((slot, layout) for slot, layout in layouts.items() if layout is not None)
    statistics = (_payload_name(slot, name) for slot, layout in trees for name in layout.statistics)
    return Layout.placed(_entries(layouts), "".join(bases), statistics)


def layouts_of(slots: Slots) -> Layouts:
    """Return the layouts of slots. Raises `InvalidPayload` for a tensor whose name looks like a slot."""
    layouts: Layouts = {n: value.layout if isinstance(value, Tree) else None for n, value in slots.items()}
    model = layouts.get("model")
    for leaf in model.leaves if model is not None else ():
        if leaf.name.startswith("@"):
            raise InvalidPayload(f"tensor {leaf.name!r}: a name must not start with @", code="payload.name")
    return layouts


def payload_pieces(slots: Slots) -> Iterator[bytes | memoryview]:
    """Yield the payload of these slots in pieces of at most 1 MiB, each valid until the next iteration."""
    yield payload_layout(layouts_of(slots)).header
    for slot in sorted(slots, key=_slot_order):
        value = slots[slot]
        if not isinstance(value, Tree):
            yield np.float64(value).tobytes()
            continue
        edges = [*range(0, value.layout.nbytes, PIECE_BYTES), value.layout.nbytes]
        for start, stop in pairwise(edges):
            yield value.block(start, stop).data


class ByteSource(Protocol):
    """Bytes of known length that can be read in parts: a buffer or a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Any: ...


class ByteWindow:
    """A part of a `ByteSource`, read on access."""

    __slots__ = ("_source", "_start", "_stop")

    def __init__(self, source: ByteSource, start: int, stop: int) -> None:
        self._source, self._start, self._stop = source, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, part: slice) -> Any:
        start, stop, _ = part.indices(len(self))
        return self._source[self._start + start : self._start + stop]


def read_header(source: ByteSource) -> Layouts:
    """Return the layouts in a payload's header. Raises `InvalidPayload` when it exceeds a limit or is not canonical."""
    return dict(_opened(source)[0])


@lru_cache(maxsize=64)
def _recalled(header: bytes) -> tuple[Layouts, Layout]:
    layouts = parse_header(header)
    return layouts, payload_layout(layouts)


def _opened(source: ByteSource) -> tuple[Layouts, Layout]:
    """Return the layouts of the slots and of the whole payload. They are cached: do not modify them."""
    length = header_length(bytes(source[0:8]))
    if 8 + length > len(source):
        raise InvalidPayload(f"truncated: a header of {length} bytes in a body of {len(source)}", code="payload.short")
    header = bytes(source[0 : 8 + length])
    layouts, whole = (_recalled if len(header) <= RECALLED_BYTES_MAX else _recalled.__wrapped__)(header)
    expected = len(header) + whole.nbytes
    if expected != len(source):
        raise InvalidPayload(f"a body of {len(source)} bytes; its header describes {expected}", code="payload.length")
    return layouts, whole


def header_length(prefix: bytes) -> int:
    """Return the header's length from the first eight bytes. Raises `InvalidPayload` beyond `HEADER_BYTES_MAX`."""
    if len(prefix) < 8:
        raise InvalidPayload(f"truncated: {len(prefix)} bytes are not a safetensors file", code="payload.short")
    length = int.from_bytes(prefix, "little")
    if not 2 <= length <= HEADER_BYTES_MAX:
        raise InvalidPayload(f"a header of {length} bytes; at most {HEADER_BYTES_MAX}", code="payload.header")
    return length


def parse_header(header: bytes) -> Layouts:
    """Return the layouts that a header, with its eight bytes of length, describes. Raises `InvalidPayload`."""
    try:
        entries = json.loads(header[8:])
    except (ValueError, RecursionError) as error:
        raise InvalidPayload(f"the header is not JSON: {error}", code="payload.header") from None
    if not isinstance(entries, dict) or len(entries) > TENSORS_MAX:
        raise InvalidPayload(f"a header must be an object of at most {TENSORS_MAX} tensors", code="payload.header")
    slots: dict[str, list[tuple[str, str, tuple[int, ...]]] | None] = {}
    base_model, statistics = _parse_metadata(entries.pop(METADATA, None))
    for name, entry in entries.items():
        dtype, shape = _parse_entry(name, entry)
        slot, inner = _slot_and_name(name)
        if inner is None:
            slots[slot] = None
        else:
            listed = slots.setdefault(slot, [])
            if listed is None:
                raise InvalidPayload(f"slot {slot!r} is a number and a tree", code="payload.header")
            listed.append((inner, dtype, shape))
    measured = _by_slot(statistics)
    layouts: Layouts = {
        slot: Layout.of(rows, base_model, measured.pop(slot, ())) if rows is not None else None
        for slot, rows in slots.items()
    }
    if measured:
        name = next(iter(measured.values()))[0]
        raise InvalidPayload(f"the statistic {name!r} is of a slot without tensors", code="payload.statistic")
    if payload_layout(layouts).header != header:
        raise InvalidPayload("the header is not in canonical form", code="payload.header")
    return layouts


def _parse_metadata(metadata: object) -> tuple[str, list[str]]:
    """Return the digest of the base model, and the names of the statistics; empty without metadata."""
    if metadata is None:
        return "", []
    if not isinstance(metadata, dict) or not metadata or metadata.keys() - {BASE_MODEL, STATISTICS}:
        text = f"its metadata must be {BASE_MODEL} and {STATISTICS}, or one of them"
        raise InvalidPayload(text, code="payload.header")
    digest = metadata.get(BASE_MODEL, "")
    if BASE_MODEL in metadata and (not isinstance(digest, str) or not is_digest(digest)):
        text = f"its metadata {BASE_MODEL} must be the SHA-256 of a base model"
        raise InvalidPayload(text, code="payload.header")
    return digest, parse_statistics(metadata[STATISTICS]) if STATISTICS in metadata else []


def parse_statistics(text: object) -> list[str]:
    """Return the names in the metadata entry `statistics`: a list as JSON text. Raises `InvalidPayload`."""
    try:
        names = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        wrong = f"its metadata {STATISTICS} must be a list of names, as JSON text"
        raise InvalidPayload(wrong, code="payload.statistic")
    if not 0 < len(names) <= TENSORS_MAX:
        wrong = f"its metadata {STATISTICS} must have 1 to {TENSORS_MAX} names"
        raise InvalidPayload(wrong, code="payload.statistic")
    return names


def _by_slot(names: list[str]) -> dict[str, list[str]]:
    """Return the inner names of statistics by slot."""
    found: dict[str, list[str]] = {}
    for name in names:
        slot, inner = _slot_and_name(name)
        if inner is None:
            raise InvalidPayload(f"{name} is a number, so it cannot be a statistic", code="payload.statistic")
        found.setdefault(slot, []).append(inner)
    return found


def _slot_and_name(name: str) -> tuple[str, str | None]:
    if not name.startswith("@"):
        return "model", name
    slot, slash, inner = name[1:].partition("/")
    if not slot or slot == "model":
        raise InvalidPayload(f"tensor {name!r} belongs to no slot", code="payload.name")
    return slot, inner if slash else None


def _parse_entry(name: str, entry: object) -> tuple[str, tuple[int, ...]]:
    if not name or len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX or not name.isprintable():
        raise InvalidPayload(f"a tensor's name has 1 to {NAME_BYTES_MAX} printable bytes", code="payload.name")
    if not isinstance(entry, dict):
        raise InvalidPayload(f"tensor {name!r}: no description", code="payload.header")
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InvalidPayload(f"tensor {name!r}: type {str(dtype)[:20]!r} is not carried", code="payload.dtype")
    if not isinstance(shape, list) or len(shape) > DIMENSIONS_MAX:
        raise InvalidPayload(f"tensor {name!r}: at most {DIMENSIONS_MAX} dimensions", code="payload.shape")
    if not all(type(size) is int and 0 <= size <= COUNT_MAX for size in shape):
        raise InvalidPayload(f"tensor {name!r}: its shape is not a list of sizes", code="payload.shape")
    if math.prod(filter(None, shape)) > COUNT_MAX:  # an empty tensor too: numpy refuses shapes that it cannot index
        raise InvalidPayload(f"tensor {name!r}: a shape of more than {COUNT_MAX} elements", code="payload.shape")
    return dtype, tuple(shape)


def open_payload(source: ByteSource) -> Slots:
    """Return the slots of a payload. Tensors are read from `source` on access. Raises `InvalidPayload`."""
    layouts, whole = _opened(source)
    start = len(whole.header)
    slots: Slots = {}
    for slot in sorted(layouts, key=_slot_order):
        layout = layouts[slot]
        length = 8 if layout is None else layout.nbytes
        window = ByteWindow(source, start, start + length)
        slots[slot] = Tree(layout, window) if layout is not None else float(np.frombuffer(window[0:8], "<f8")[0])
        start += length
    return slots


def leaves_of(source: ByteSource) -> tuple[Leaf, ...]:
    """Return the tensors of a payload in their order."""
    return _opened(source)[1].leaves


class PayloadCheck:
    """A validator of the header of a payload while it arrives.

    `expected` is the layout with the required header; None parses a header within limits (an initial model).
    `nbytes` is the announced length.
    """

    def __init__(self, nbytes: int, expected: Layout | None, *, nbytes_max: int) -> None:
        self._expected, self._nbytes, self._seen = expected, nbytes, 0
        self._head = bytearray()
        if expected is not None and nbytes != len(expected.header) + expected.nbytes:
            raise InvalidPayload(
                f"a body of {nbytes} bytes; the job's model needs {len(expected.header) + expected.nbytes}",
                code="payload.length",
                hint="send the model that the task carried, with the same names, types and shapes",
            )
        if nbytes > nbytes_max:
            raise InvalidPayload(f"a body of {nbytes} bytes; at most {nbytes_max}", code="payload.too-large")
        self._header_bytes = len(expected.header) if expected is not None else 8

    @property
    def parses(self) -> bool:
        """Return whether the next bytes may complete a header of up to 4 MiB, to be parsed in a thread."""
        return self._expected is None and not 8 < len(self._head) == self._header_bytes

    def feed(self, piece: bytes | memoryview) -> None:
        """Check the next bytes. Raises `InvalidPayload`."""
        self._seen += len(piece)
        if self._seen > self._nbytes:
            raise InvalidPayload(f"more than the announced {self._nbytes} bytes", code="payload.length")
        if len(self._head) < self._header_bytes:
            self._check_header(piece)

    def _check_header(self, piece: bytes | memoryview) -> None:
        start = len(self._head)
        self._head += piece[: self._header_bytes - start]
        if self._expected is not None:
            if self._expected.header[start : len(self._head)] != self._head[start:]:  # each byte is compared once
                raise self._foreign()
            return
        if len(self._head) == 8 == self._header_bytes:
            self._header_bytes = 8 + header_length(bytes(self._head))
            if self._header_bytes > self._nbytes:
                raise InvalidPayload("truncated: the header is longer than the body", code="payload.short")
            self._head += piece[8 - self._seen + len(piece) : self._header_bytes - self._seen + len(piece)]
        if len(self._head) == self._header_bytes > 8:
            needed = self._header_bytes + payload_layout(parse_header(bytes(self._head))).nbytes
            if needed != self._nbytes:
                raise InvalidPayload(f"a header for {needed} bytes, a body of {self._nbytes}", code="payload.length")

    def _foreign(self) -> InvalidPayload:
        return InvalidPayload(
            "the header is not the one of the job's model",
            code="payload.header",
            hint="send the model that the task carried, with the same names, types, shapes and order",
        )

    def finish(self) -> None:
        """Check that the payload is complete. Raises `InvalidPayload` when bytes are missing."""
        if self._seen != self._nbytes or len(self._head) != self._header_bytes:
            raise InvalidPayload(f"truncated: {self._seen} of {self._nbytes} bytes", code="payload.short")


def measure(slots: Slots) -> float:
    """Return the maximum Euclidean norm of the trees' weights. Raises `InvalidPayload`, which names the tensor, for a
    number that is not finite, a variance below 0 and a BOOL other than 0 and 1."""
    greatest = 0.0
    for slot, value in slots.items():
        wrong = first_not_boolean(value) if isinstance(value, Tree) else None
        if wrong is not None:
            raise InvalidPayload(f"{_named(slot, *wrong)} is a BOOL of neither 0 nor 1", code="payload.boolean")
        size = norm(value) if isinstance(value, Tree) else abs(value)
        if not math.isfinite(size):
            raise InvalidPayload(
                _not_finite(slot, value),
                code="payload.not-finite",
                hint="the training diverged: lower the learning rate, or clip",
            )
        negative = first_negative_variance(value) if isinstance(value, Tree) else None
        if negative is not None:
            raise InvalidPayload(
                f"{_named(slot, *negative)} is a variance below 0",
                code="payload.variance",
                hint="give the buffer another name if it is not a variance",
            )
        greatest = max(greatest, size)
    return greatest


def _not_finite(slot: str, value: Tree | float) -> str:
    if not isinstance(value, Tree):
        return f"@{slot} is not finite"
    found = first_not_finite(value)
    return f"{_named(slot, *found)} is not finite" if found else "the norm overflows"


def _named(slot: str, tensor: str, index: int) -> str:
    return f"{'' if slot == 'model' else f'@{slot}/'}{tensor}[{index}]"
