"""The only file that knows bytes.

**Payload.** A body is a safetensors file in canonical form. The slot "model" keeps its tensors' names; a tensor of
another slot is called `@slot/name`, a number `@slot` (an F64 of no dimensions). Slots follow each other by name,
"model" first. For given layouts there is exactly one header, so a receiver that knows the job's model compares the
header byte for byte and parses nothing; where the layout is not known yet (an initial model) the header is parsed
within limits, and must be the canonical one for what it says.

**Frame.** What a request or response carries: four bytes of length (big endian), a JSON head, and the payload if it is
at most `INLINE_BYTES_MAX` long. A longer one travels alone, under its SHA-256.

    {"shoal": 1, "job": "digits", "type": "report", "order": [1, 17], "version": 3, "weight": 359.0, "body": {...}, ...}

Heads are strict: unknown, missing or repeated fields, wrong types and numbers out of range are refused. NaN and
infinity are allowed in measured values alone, as the strings "NaN", "Infinity" and "-Infinity": a diverged loss must be
seen.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from pydantic import TypeAdapter, ValidationError

from shoal import strict_json
from shoal.core import machine, message, versions
from shoal.core.errors import InvalidPayload, Refused
from shoal.core.machine import Event
from shoal.core.message import Message, Status
from shoal.core.tree import DTYPES, Layout, Leaf, Slots, Tree, first_not_boolean, first_not_finite, norm
from shoal.heads import COUNT_MAX, NAME, check

plain = strict_json.plain

PROTOCOLS = versions.PROTOCOLS

MEDIA_TYPE = "application/x-shoal-frame"
INLINE_BYTES_MAX = 256 * 1024
RECALLED_BYTES_MAX = 64 * 1024  # of headers that are parsed once
HEAD_BYTES_MAX = 64 * 1024
HEADER_BYTES_MAX = 4 * 1024 * 1024
TENSORS_MAX = 20_000
NAME_BYTES_MAX = 512
DIMENSIONS_MAX = 8
STATE_BYTES_MAX = 32 * 1024
PIECE_BYTES = 1 << 20
NEVER_SENT = ("norm", "about", "given_in")  # the receiver's own measurement, and what it was told elsewhere

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

Layouts = dict[str, Layout | None]
"""A payload's slots: a layout for a tree, None for a number."""


# Payloads
def _slot_order(name: str) -> tuple[bool, str]:
    return name != "model", name


def _entries(layouts: Layouts) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    for slot in sorted(layouts, key=_slot_order):
        layout = layouts[slot]
        if layout is None:
            yield f"@{slot}", "F64", ()
            continue
        for leaf in layout.leaves:
            yield leaf.name if slot == "model" else f"@{slot}/{leaf.name}", leaf.dtype, leaf.shape


def payload_layout(layouts: Layouts) -> Layout:
    """The one layout, and so the one header, of a payload with these slots."""
    return Layout.placed(_entries(layouts))


def layouts_of(slots: Slots) -> Layouts:
    """The slots' layouts. Raises `InvalidPayload` for a tensor name that cannot be told from a slot's."""
    layouts: Layouts = {n: value.layout if isinstance(value, Tree) else None for n, value in slots.items()}
    model = layouts.get("model")
    for leaf in model.leaves if model is not None else ():
        if leaf.name.startswith("@"):
            raise InvalidPayload(f"tensor {leaf.name!r}: a name must not start with @", code="payload.name")
    return layouts


def payload_pieces(slots: Slots) -> Iterator[bytes | memoryview]:
    """The body of these slots, in pieces of at most 1 MiB that are valid until the next one is asked for."""
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
    """Bytes of a known length that can be read in parts: a buffer, or a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Any: ...


class Window:
    """A part of a `ByteSource`, read only when it is asked for."""

    __slots__ = ("_source", "_start", "_stop")

    def __init__(self, source: ByteSource, start: int, stop: int) -> None:
        self._source, self._start, self._stop = source, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, part: slice) -> Any:
        start, stop, _ = part.indices(len(self))
        return self._source[self._start + start : self._start + stop]


def read_header(source: ByteSource) -> Layouts:
    """Parse the header at the start of a body, within limits. Raises `InvalidPayload` unless it is canonical."""
    return dict(_opened(source)[0])


@lru_cache(maxsize=64)
def _recalled(header: bytes) -> tuple[Layouts, Layout]:
    layouts = parse_header(header)
    return layouts, payload_layout(layouts)


def _opened(source: ByteSource) -> tuple[Layouts, Layout]:
    """The layouts of a body's slots, and that of the whole body. They may be others' too: not to be changed."""
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
    """The header's length from a body's first eight bytes, within `HEADER_BYTES_MAX`."""
    if len(prefix) < 8:
        raise InvalidPayload(f"truncated: {len(prefix)} bytes are no safetensors file", code="payload.short")
    length = int.from_bytes(prefix, "little")
    if not 2 <= length <= HEADER_BYTES_MAX:
        raise InvalidPayload(f"a header of {length} bytes; at most {HEADER_BYTES_MAX}", code="payload.header")
    return length


def parse_header(header: bytes) -> Layouts:
    """The slots that a whole header (with its eight bytes of length) describes. Raises `InvalidPayload`."""
    try:
        entries = json.loads(header[8:])
    except (ValueError, RecursionError) as error:
        raise InvalidPayload(f"the header is no JSON: {error}", code="payload.header") from None
    if not isinstance(entries, dict) or len(entries) > TENSORS_MAX:
        raise InvalidPayload(f"a header must be an object of at most {TENSORS_MAX} tensors", code="payload.header")
    slots: dict[str, list[tuple[str, str, tuple[int, ...]]] | None] = {}
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
    layouts: Layouts = {slot: Layout.of(rows) if rows is not None else None for slot, rows in slots.items()}
    if payload_layout(layouts).header != header:
        raise InvalidPayload("the header is not in canonical form", code="payload.header")
    return layouts


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
        raise InvalidPayload(f"tensor {name!r}: its shape is no list of sizes", code="payload.shape")
    if math.prod(filter(None, shape)) > COUNT_MAX:  # an empty tensor too: numpy refuses shapes that it cannot index
        raise InvalidPayload(f"tensor {name!r}: a shape of more than {COUNT_MAX} elements", code="payload.shape")
    return dtype, tuple(shape)


def open_payload(source: ByteSource) -> Slots:
    """The slots of a whole body; its tensors are read from `source` when they are used."""
    layouts, whole = _opened(source)
    start = len(whole.header)
    slots: Slots = {}
    for slot in sorted(layouts, key=_slot_order):
        layout = layouts[slot]
        length = 8 if layout is None else layout.nbytes
        window = Window(source, start, start + length)
        slots[slot] = Tree(layout, window) if layout is not None else float(np.frombuffer(window[0:8], "<f8")[0])
        start += length
    return slots


def leaves_of(source: ByteSource) -> tuple[Leaf, ...]:
    """The tensors of a body as they lie in it."""
    return _opened(source)[1].leaves


class BodyCheck:
    """Checks the form of a body while it arrives, before anything is made of it.

    `expected`: the canonical header that it must start with; None: parse one within limits (an initial model).
    `nbytes`: the announced length. The header's length is compared with it as soon as both are known.
    """

    def __init__(self, nbytes: int, expected: Layout | None, *, nbytes_max: int) -> None:
        self._expected, self._nbytes, self._seen = expected, nbytes, 0
        self._head = bytearray()
        if expected is not None and nbytes != len(expected.header) + expected.nbytes:
            raise InvalidPayload(
                f"a body of {nbytes} bytes; the job's model needs {len(expected.header) + expected.nbytes}",
                code="payload.length",
                hint="send the model that the order carried, with the same names, types and shapes",
            )
        if nbytes > nbytes_max:
            raise InvalidPayload(f"a body of {nbytes} bytes; at most {nbytes_max}", code="payload.too-large")
        self._header_bytes = len(expected.header) if expected is not None else 8

    @property
    def parses(self) -> bool:
        """Whether the next bytes may complete a header that must be parsed: for a thread, since that may be 4 MiB."""
        return self._expected is None and not 8 < len(self._head) == self._header_bytes

    def feed(self, piece: bytes | memoryview) -> None:
        """Look at the next bytes. Raises `InvalidPayload` at the first that are wrong."""
        self._seen += len(piece)
        if self._seen > self._nbytes:
            raise InvalidPayload(f"more than the announced {self._nbytes} bytes", code="payload.length")
        if len(self._head) < self._header_bytes:
            self._look(piece)

    def _look(self, piece: bytes | memoryview) -> None:
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
            hint="send the model that the order carried, with the same names, types, shapes and order",
        )

    def finish(self) -> None:
        """The sender says that this was all. Raises `InvalidPayload` when it was too little."""
        if self._seen != self._nbytes or len(self._head) != self._header_bytes:
            raise InvalidPayload(f"truncated: {self._seen} of {self._nbytes} bytes", code="payload.short")


def measure(slots: Slots) -> float:
    """The greatest norm of a body's trees. Raises `InvalidPayload`, naming the tensor, for a number that is not finite
    and for a BOOL that is neither 0 nor 1."""
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
        greatest = max(greatest, size)
    return greatest


def _not_finite(slot: str, value: Tree | float) -> str:
    if not isinstance(value, Tree):
        return f"@{slot} is not finite"
    found = first_not_finite(value)
    return f"{_named(slot, *found)} is not finite" if found else "the norm overflows"


def _named(slot: str, tensor: str, index: int) -> str:
    return f"{'' if slot == 'model' else f'@{slot}/'}{tensor}[{index}]"


# Heads and frames

_MESSAGES: dict[str, type] = {
    kind.__name__.lower(): kind
    for kind in (
        message.Join,
        message.Poll,
        message.Knock,
        message.Status,
        message.Order,
        message.Amendment,
        message.Report,
        message.Fail,
        message.Leave,
        message.Idle,
        message.Ack,
        message.Lease,
        message.Pause,
        message.Resume,
        message.Stop,
        message.Switch,
        message.Drain,
        message.Change,
    )
}
_EVENTS: dict[str, type] = _MESSAGES | {k.__name__.lower(): k for k in (machine.Timer, machine.Boot, machine.Lost)}


@dataclass(frozen=True)
class Frame:
    """A message of a job, and the payload that came with it (empty when it travels alone, or there is none)."""

    job: str
    message: Message
    payload: bytes = b""


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _usual(kind: type[Any]) -> dict[str, Any]:
    """The defaults of a message's fields, as JSON values."""
    found = {one.name: one.default for one in fields(kind) if one.default is not MISSING}
    made = {one.name: one.default_factory() for one in fields(kind) if one.default_factory is not MISSING}
    return {name: plain(value) for name, value in (found | made).items()}


_USUAL: dict[type, dict[str, Any]] = {kind: _usual(kind) for kind in _MESSAGES.values()}


def to_json(event: Event) -> dict[str, Any]:
    """An event or message as JSON values, with its type."""
    return {"type": type(event).__name__.lower(), **plain(event)}


def from_json(values: dict[str, Any], kinds: dict[str, type] | None = None) -> Any:
    """The event or message of `to_json`. Raises `InvalidPayload` for anything else."""
    rest = dict(values)
    name = rest.pop("type", None)
    kind = (kinds or _EVENTS).get(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidPayload(f"no message of type {str(name)[:40]!r}", code="head.type")
    for field in ("metrics", "values"):
        measured = rest.get(field)
        if isinstance(measured, dict):
            rest[field] = {k: _NON_FINITE.get(v, v) if isinstance(v, str) else v for k, v in measured.items()}
    found = validated(kind, str(name), rest)
    if isinstance(found, Status):
        found = replace(found, state=_state(found.state))
    check(found)
    return found


def validated(kind: type, name: str, values: dict[str, Any]) -> Any:
    """The values as one of these dataclasses, called `name`: strictly, with no field more. Raises `InvalidPayload`."""
    try:
        return _adapter(kind).validate_json(json.dumps(values), strict=True, extra="forbid")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or name
        raise InvalidPayload(f"{name}: {where[:100]}: {first['msg']}", code="head.invalid") from None
    except RecursionError:  # what could just be read may be too deep to be written
        raise InvalidPayload(f"{name}: nested too deep", code="head.invalid") from None


def _state(text: bytes) -> bytes:
    """A status's bytes, which are base64 in a head."""
    try:
        state = b64decode(text, validate=True)
    except ValueError:
        raise InvalidPayload("status: state is not base64", code="head.invalid") from None
    if len(state) > STATE_BYTES_MAX:
        raise InvalidPayload(f"a state of {len(state)} bytes; at most {STATE_BYTES_MAX}", code="head.invalid")
    return state


def encode_head(job: str, found: Message, protocol: int | None = None) -> bytes:
    """A frame without its payload, in the newest protocol unless another is named.

    Fields with their usual value are left out: in step, heads are most of the bytes.
    """
    kind: type = type(found)
    usual = _USUAL[kind]
    sent = {name: plain(getattr(found, name)) for name in strict_json.field_names(kind) if name not in NEVER_SENT}
    values = {name: value for name, value in sent.items() if name not in usual or value != usual[name]}
    return headed({"job": job, "type": kind.__name__.lower(), **values}, protocol)


def headed(values: dict[str, Any], protocol: int | None = None) -> bytes:
    """A head of these values, and of the protocol (none named: our newest), with its length before it."""
    found = strict_json.encoded({"shoal": protocol or PROTOCOLS[-1], **values})
    return len(found).to_bytes(4, "big") + found


def encode(frame: Frame, protocol: int | None = None) -> bytes:
    """A whole frame."""
    return encode_head(frame.job, frame.message, protocol) + frame.payload


def head_bytes(prefix: bytes, most: int = HEAD_BYTES_MAX) -> int:
    """The head's length from a frame's first four bytes. Raises `InvalidPayload` for one of more than `most` bytes."""
    length = int.from_bytes(prefix[:4], "big")
    if len(prefix) < 4 or not 2 <= length <= most:
        raise InvalidPayload(f"a head has 2 to {most} bytes", code="head.length")
    return length


def read_head(text: bytes) -> tuple[dict[str, Any], str]:
    """(the values of a head, the job that it names). Raises `InvalidPayload`; `Refused` for another protocol."""
    try:
        values = strict_json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidPayload(f"the head is no strict JSON: {error}", code="head.invalid") from None
    if not isinstance(values, dict):
        raise InvalidPayload("the head is no object", code="head.invalid")
    protocol, job = values.pop("shoal", None), values.pop("job", None)
    if type(protocol) is not int or protocol not in PROTOCOLS:
        raise Refused(
            f"protocol {str(protocol)[:20]}; this side speaks {', '.join(map(str, PROTOCOLS))}",
            code="protocol.unknown",
            hint="install the same release of shoal on both sides",
        )
    if not isinstance(job, str) or not NAME.fullmatch(job):
        raise InvalidPayload("the head names no job", code="head.name")
    return values, job


def decode(data: bytes) -> Frame:
    """A whole frame. Raises `InvalidPayload` for anything that `encode` would not make."""
    length = head_bytes(data[:4])
    if len(data) < 4 + length:
        raise InvalidPayload("truncated head", code="head.length")
    if len(data) - 4 - length > INLINE_BYTES_MAX:
        raise InvalidPayload(f"a payload of more than {INLINE_BYTES_MAX} bytes travels alone", code="head.length")
    values, job = read_head(data[4 : 4 + length])
    if unsent := [name for name in NEVER_SENT if name in values]:
        raise InvalidPayload(f"{unsent[0]}: a field that never travels", code="head.invalid")
    return Frame(job, from_json(values, _MESSAGES), data[4 + length :])


def negotiate(offered: Iterable[int]) -> int:
    """The newest protocol that both sides speak. Raises `Refused` when there is none."""
    theirs = set(offered)
    common = theirs & set(PROTOCOLS)
    if not common:
        raise Refused(
            f"the other side speaks protocol {sorted(theirs)}, this one {list(PROTOCOLS)}",
            code="protocol.unknown",
            hint="install the same release of shoal on both sides",
        )
    return max(common)
