"""Frames of split learning: as those of `shoal.wire.codec`, with its limits and checks, for other messages.

{"shoal": 1, "job": "digits", "type": "split_request", "node": "a", "turn": 3, "batch": 17, "leg": 0, …}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from shoal.core.protocol.split_message import SplitMessage
from shoal.wire import codec

MESSAGES: dict[str, type] = {kind.type_name: kind for kind in get_args(SplitMessage)}


@dataclass(frozen=True)
class SplitFrame:
    """A message of a split job with its payload, which is empty when it is sent separately or does not exist."""

    job: str
    message: SplitMessage
    payload: bytes = b""


def encode(frame: SplitFrame) -> bytes:
    """Return a frame as bytes."""
    return codec.headed({"job": frame.job, **codec.to_json(frame.message)}) + frame.payload


def decode(data: bytes) -> SplitFrame:
    """Return the frame in `data`. Raises `InvalidPayload` for bytes that `encode` does not produce."""
    values, job, payload = codec.read_frame(data)
    return SplitFrame(job, codec.from_json(values, MESSAGES), payload)
