"""Frames of split learning: bytes and back, and refused bytes."""

import math
from dataclasses import replace

import pytest

from shoal.core.errors import InvalidPayload
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.split_message import (
    AlignRows,
    IdsKept,
    NoTurn,
    OtherIds,
    PartyIds,
    SplitAnswer,
    SplitEnded,
    SplitMessage,
    SplitPoll,
    SplitRequest,
    SplitTurn,
    TurnFailed,
    TurnOver,
    TurnReport,
)
from shoal.wire import codec
from shoal.wire.split_codec import MESSAGES, SplitFrame, decode, encode

BLOB = BlobRef("a" * 64, 640)
REQUEST = SplitRequest("a", 3, 17, 1, 32, BLOB, {"train/loss": 0.5})
EACH: list[SplitMessage] = [
    SplitPoll("a"),
    REQUEST,
    PartyIds("a", 1, 0, "b", BLOB),
    AlignRows(1),
    IdsKept(1, 0, "b"),
    OtherIds(1, 0, "b", BLOB),
    TurnReport("a", 3, 100.0, BLOB),
    TurnFailed("a", 3, "no data"),
    SplitTurn(3, 1, BLOB),
    SplitAnswer(3, 17, 1, BLOB),
    TurnOver(3, counted=False, why="no progress"),
    NoTurn(),
    SplitEnded("all rounds are done"),
]


@pytest.mark.parametrize("message", EACH)
def test_bytes_and_back(message: SplitMessage) -> None:
    frame = SplitFrame("digits", message, bytes(640) if hasattr(message, "blob") else b"")
    assert decode(encode(frame), 640) == frame


def test_each_message_has_a_case() -> None:
    assert {type(one) for one in EACH} == set(MESSAGES.values())


def test_a_diverged_loss_is_sent() -> None:
    found = decode(encode(SplitFrame("digits", replace(REQUEST, metrics={"train/loss": math.nan}), bytes(640))), 640)
    assert isinstance(found.message, SplitRequest)
    assert math.isnan(found.message.metrics["train/loss"])


@pytest.mark.parametrize(
    "change",
    [
        {"leg": -1},
        {"batch": -1},
        {"turn": -1},
        {"examples": 2**63},
        {"node": "../a"},
        {"blob": {"digest": "a", "nbytes": 1}},
        {"batch": 1.5},
        {"more": 1},
        {"type": "report"},
    ],
)
def test_heads_that_are_refused(change: dict[str, object]) -> None:
    values = {"job": "digits", **codec.to_json(REQUEST), **change}
    with pytest.raises(InvalidPayload):
        decode(codec.headed(values) + bytes(640), 640)


def test_a_truncated_or_long_frame_is_refused() -> None:
    head = encode(SplitFrame("digits", REQUEST))
    with pytest.raises(InvalidPayload, match="truncated"):
        decode(head[:-1], 640)
    for nbytes, text in ((641, "more than 640"), (639, "that the head does not name"), (0, "0 bytes that the head")):
        with pytest.raises(InvalidPayload, match=text):
            decode(head + bytes(nbytes), 640)
