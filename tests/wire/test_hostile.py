"""Hostile bytes give a typed error or a canonical message, with little work and memory.

The counts stand in the log: `pytest tests/wire/test_hostile.py --log-cli-level=INFO`.
"""

import json
import logging
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import FrameType
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import InvalidPayload, Refused, ShoalError
from shoal.core.model.tree import DTYPES, Layout, Tree
from shoal.core.protocol import message
from shoal.wire import codec
from shoal.wire.payload import (
    HEADER_BYTES_MAX,
    TENSORS_MAX,
    PayloadCheck,
    header_length,
    measure,
    open_payload,
    payload_layout,
    read_header,
)
from tests.wire import mutations
from tests.wire.strategies import body_of

log = logging.getLogger(__name__)

MEBIBYTE = 1 << 20
SMALL_PEAK_BYTES = 8 * MEBIBYTE
SMALL_LINES = 10_000
CASES = 2500
SEED = 1

TASK = (1, 17)
REF = message.BlobRef("0123456789abcdef" * 4, 19512)
METRICS = {"train/loss": 0.5, "eval/loss": float("nan"), "eval/accuracy": 0.9, "eval/examples": 72.0}
MESSAGES: tuple[message.Message, ...] = (
    message.Join("a", TASK),
    message.Poll("clinic-a"),
    message.CoordinatorPing("a", 3),
    message.Task(TASK, "a", "train", 3, 99, REF, REF, {"delta": 0.5}, 2, True, 9),
    message.Amendment(TASK, 2, True, 9),
    message.Report("a", TASK, 3, 359.0, REF, METRICS),
    message.TaskStatus("a", TASK, 7, {"train/divergence": 0.25}, b"sketch"),
    message.TaskFailed("a", TASK, "no data — “none”"),
    message.Leave("a"),
    message.NoTask(TASK),
    message.Ack(TASK, True, "counted"),
    message.CoordinatorAlive(4),
    message.Pause(),
    message.ChangeSettings({"algorithm.lr": 0.05}),
    message.Resume(),
    message.Stop(),
    message.SwitchMode("gossip"),
    message.DrainNode("a", "drained", True),
)


def every_type() -> Tree:
    arrays = {f"layer.{name}": np.arange(4).reshape(2, 2).astype(kind) for name, kind in DTYPES.items()}
    return Tree.of(arrays, {"layer.BF16": "BF16"})


def blobs() -> list[bytes]:
    small = Tree.of({"w": np.ones((2, 3), np.float32), "é": np.ones(2), "n": np.array(3), "none": np.ones((0, 2))})
    return [
        body_of({}),
        body_of({"model": small}),
        body_of({"model": every_type()}),
        body_of({"model": small, "c": small, "step": 3.0}),
        body_of({"c": every_type(), "a": 1.0, "b": -0.0}),
    ]


def frames() -> list[bytes]:
    rich = (MESSAGES[3], MESSAGES[5], MESSAGES[5])  # those with the most to spoil come more often
    return [
        codec.encode(codec.Frame("digits", said, payload)) for said in MESSAGES + rich for payload in (b"", b"body")
    ]


def code_of(action: Callable[[], object]) -> str:
    """Return the error's code, or "taken". Anything but a `ShoalError` goes through."""
    try:
        action()
    except ShoalError as error:
        fit = isinstance(error, InvalidPayload | Refused) and len(error.message) < 4000
        return error.code if fit else f"not fit to be sent: {type(error)} of {len(error.message)} characters"
    return "taken"


def read_body(body: bytes) -> None:
    """Everything that a receiver does with a body whose layout it does not know."""
    slots = open_payload(body)
    assert body_of(slots) == body
    for value in slots.values():
        for name in value if isinstance(value, Tree) else ():
            assert isinstance(value, Tree)
            assert value[name].shape == value.layout.index[name].shape
    measure(slots)


def arrive(body: bytes, expected: Layout | None, random: Random) -> None:
    """The same while it comes, in pieces."""
    check = PayloadCheck(len(body), expected, nbytes_max=64 * MEBIBYTE)
    place = 0
    while place < len(body):
        length = random.choice([1, 7, 8, 64, 4096, MEBIBYTE])
        check.feed(body[place : place + length])
        place += length
    check.finish()


def read_frame(data: bytes) -> None:
    frame = codec.decode(data)
    assert not isinstance(frame.message, message.Report) or frame.message.norm == 0.0
    again = codec.encode(frame)
    assert repr(codec.decode(again)) == repr(frame)
    assert codec.encode(codec.decode(again)) == again


class Meter:
    """The most memory that any case took, and the most lines of Python run: neither depends on the machine."""

    def __init__(self, *, count_lines: bool = True) -> None:
        self.codes, self.peak, self.lines = Counter[str](), 0, 0
        self._trace, self._lines = self._count if count_lines else sys.gettrace(), 0

    def run(self, action: Callable[[], object]) -> str:
        traced, self._lines = sys.gettrace(), 0
        tracemalloc.start()
        sys.settrace(self._trace)
        try:
            code = code_of(action)
        finally:
            sys.settrace(traced)
            self.peak = max(self.peak, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        self.lines = max(self.lines, self._lines)
        self.codes[code] += 1
        return code

    def _count(self, _frame: FrameType, event: str, _arg: object) -> Any:
        self._lines += event == "line"
        return self._count

    def show(self, what: str) -> None:
        log.info(
            "%s: %d cases, at most %d lines and %.1f KiB each; %s",
            what,
            self.codes.total(),
            self.lines,
            self.peak / 1024,
            dict(self.codes.most_common()),
        )


# Many small cases


def test_mutated_bodies() -> None:
    random, corpus, meter = Random(SEED), blobs(), Meter()
    layouts = [payload_layout(read_header(body)) for body in corpus]
    for _ in range(CASES):
        body = mutations.body(corpus, random)
        code = meter.run(lambda body=body: read_body(body))
        formed = code in {"taken", "payload.not-finite", "payload.boolean"}
        assert (code_of(lambda body=body: arrive(body, None, random)) == "taken") == formed
        layout = random.choice(layouts)
        agrees = len(body) == len(layout.header) + layout.nbytes and body.startswith(layout.header)
        assert (code_of(lambda body=body, layout=layout: arrive(body, layout, random)) == "taken") == agrees
        assert formed or not agrees
    meter.show("mutated bodies")
    assert meter.peak < SMALL_PEAK_BYTES
    assert meter.lines < SMALL_LINES
    wanted = {"taken", *(f"payload.{w}" for w in ("short", "header", "length", "name", "dtype", "shape", "not-finite"))}
    assert wanted <= set(meter.codes)
    assert meter.codes["taken"] < CASES / 4


def test_mutated_frames() -> None:
    random, corpus, meter = Random(SEED), frames(), Meter()
    for _ in range(CASES):
        data = mutations.frame(corpus, random)
        meter.run(lambda data=data: read_frame(data))
    meter.show("mutated frames")
    assert meter.peak < SMALL_PEAK_BYTES
    assert meter.lines < 2 * codec.HEAD_BYTES_MAX
    wanted = {f"head.{what}" for what in ("length", "invalid", "type", "name", "range", "metrics", "digest")}
    assert {"taken", "protocol.unknown"} | wanted <= set(meter.codes)
    assert meter.codes["taken"] < CASES / 2


def test_every_length_of_a_body_and_every_bit_of_its_header() -> None:
    body, meter = blobs()[3], Meter(count_lines=False)
    length = 8 + header_length(body[:8])
    for cut in range(len(body)):
        assert meter.run(lambda cut=cut: read_body(body[:cut])) != "taken"
    for bit in range(length * 8):
        changed = bytearray(body)
        changed[bit // 8] ^= 1 << bit % 8
        meter.run(lambda changed=changed: read_body(bytes(changed)))
    meter.show("cuts and flips of a body")
    assert meter.peak < SMALL_PEAK_BYTES
    assert meter.codes["taken"] < length  # names may differ by a bit; lengths, types, shapes and offsets may not


def test_every_length_of_a_frame_and_every_bit_of_its_head() -> None:
    data, meter = codec.encode(codec.Frame("digits", MESSAGES[5])), Meter(count_lines=False)
    for cut in range(len(data)):
        assert meter.run(lambda cut=cut: read_frame(data[:cut])) == "head.length"
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        meter.run(lambda changed=changed: read_frame(bytes(changed)))
    meter.show("cuts and flips of a frame")
    assert meter.peak < SMALL_PEAK_BYTES


# Few large ones


def headed(text: bytes | str, data: bytes = b"") -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + data


def empties(count: int) -> bytes:
    return headed(
        ",".join(f'"{n:05}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for n in range(count)).join("{}")
    )


def full(opening: str, item: str, closing: str) -> bytes:
    """As many of an item as a mebibyte holds."""
    room = MEBIBYTE - len(opening) - len(closing) - 8
    return headed(opening + item * (room // len(item)) + closing)


LARGE: dict[str, tuple[Callable[[], bytes], str]] = {
    "100,000 empty tensors": (lambda: empties(100_000), "payload.header"),
    "70,000, which fit": (lambda: empties(70_000), "payload.header"),
    "20,001": (lambda: empties(TENSORS_MAX + 1), "payload.header"),
    "20,000": (lambda: empties(TENSORS_MAX), "taken"),
    "100,000 of nothing": (
        lambda: headed(",".join(f'"{n}":{{}}' for n in range(100_000)).join("{}")),
        "payload.header",
    ),
    "20,000 slots": (
        lambda: headed(
            ",".join(
                f'"@{n:05}":{{"dtype":"F64","shape":[],"data_offsets":[{8 * n},{8 * n + 8}]}}' for n in range(20_000)
            ).join("{}"),
            bytes(160_000),
        ),
        "taken",
    ),
    "one tensor over and over": (lambda: full('{"a":1', ',"a":1', "}"), "payload.header"),
    "very many objects": (lambda: full('{"a":[1', ",{}", "]}"), "payload.header"),
    "very many lists": (lambda: full('{"a":[1', ",[]", "]}"), "payload.header"),
    "very many sizes": (lambda: full('{"a":{"dtype":"F32","shape":[1', ",0", "]}}"), "payload.shape"),
    "very many openings": (lambda: full('{"a":', "[", ""), "payload.header"),
    "very many closings": (lambda: full('{"a":', "]", ""), "payload.header"),
    "a name of a mebibyte": (lambda: full('{"', "n", '":{}}'), "payload.name"),
    "a type of a mebibyte": (lambda: full('{"a":{"dtype":"', "F", '"}}'), "payload.dtype"),
    "an integer of a mebibyte": (lambda: full('{"a":', "9", "}"), "payload.header"),
    "a float of a mebibyte": (lambda: full('{"a":0.', "3", "}"), "payload.header"),
    "an exponent of a mebibyte": (lambda: full('{"a":1e', "9", "}"), "payload.header"),
    "integers of 4,300 digits": (lambda: full('{"a":[1', "," + "9" * 4300, "]}"), "payload.header"),
    "escapes": (lambda: full('{"', "\\u0041", '":{}}'), "payload.name"),
    "lone surrogates": (lambda: full('{"', "\\ud800", '":{}}'), "payload.name"),
    "spaces": (lambda: full("{", " ", "}"), "payload.header"),
    "zeros": (lambda: full("", "\x00", ""), "payload.header"),
    "a header that says more": (lambda: HEADER_BYTES_MAX.to_bytes(8, "little") + b"{}", "payload.short"),
}


@pytest.mark.parametrize(("make", "code"), LARGE.values(), ids=LARGE.keys())
def test_large_headers(make: Callable[[], bytes], code: str) -> None:
    body, meter = make(), Meter()
    assert meter.run(lambda: open_payload(body)) == code
    assert code_of(lambda: arrive(body, None, Random(3))) == code
    meter.show("a header")
    assert meter.lines < SMALL_LINES + 2 * len(body)
    assert meter.peak < SMALL_PEAK_BYTES + 64 * len(body)


HEAD = '{"shoal":1,"job":"a","type":"report","node":"a","task":[1,2],"version":1,"weight":1.0,"metrics":'
HEADS = {
    "openings": ("[", "", "head.invalid"),
    "objects": ('{"a":', "", "head.invalid"),
    "lists": ("[", "]", "head.invalid"),
    "digits": ("9", "}", "head.invalid"),
    "a fraction": ("0." + "3" * 60_000, "}", "head.invalid"),
    "escapes": ('"' + "\\u0041" * 9000 + '"', "}", "head.invalid"),
    "metrics": ("{" + ",".join(f'"{n}":1' for n in range(6000)) + "}", "}", "head.metrics"),
    "one metric": ("{" + ",".join(['"a":1'] * 9000) + "}", "}", "head.invalid"),
    "one metric twice": ("{" + ",".join(f'"{n}":1' for n in [*range(6000), 5999]) + "}", "}", "head.invalid"),
    "a name": ('{"' + "a/" * 30_000 + '":1}', "}", "head.metrics"),
}


@pytest.mark.parametrize(("middle", "closing", "code"), HEADS.values(), ids=HEADS.keys())
def test_large_heads(middle: str, closing: str, code: str) -> None:
    repeat = 1 if len(middle) > 10 else (codec.HEAD_BYTES_MAX - len(HEAD)) // (len(middle) + len(closing))
    text = (HEAD + middle * repeat + closing * (1 if closing == "}" else repeat)).encode()
    assert 30_000 < len(text) <= codec.HEAD_BYTES_MAX
    meter = Meter()
    assert meter.run(lambda: read_frame(len(text).to_bytes(4, "big") + text)) == code
    meter.show("a head")
    assert meter.lines < 2 * codec.HEAD_BYTES_MAX
    assert meter.peak < SMALL_PEAK_BYTES


def test_the_meter_sees_what_it_should() -> None:
    meter = Meter()
    meter.run(lambda: bytearray(3 * MEBIBYTE).clear())
    assert meter.peak >= 3 * MEBIBYTE
    meter.run(lambda: [str(n) for n in range(SMALL_LINES)])
    assert meter.lines >= SMALL_LINES
    with pytest.raises(ValueError, match="not typed"):
        meter.run(lambda: (_ for _ in ()).throw(ValueError("not typed")))
    assert replace(MESSAGES[5], norm=1.0) != MESSAGES[5]
    assert len({type(said) for said in MESSAGES}) == len(codec.MESSAGES)
    assert json.loads(HEAD + "{}}")["type"] == "report"
