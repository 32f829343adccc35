"""Frames of split learning: as those of `shoal.wire.codec`, with its limits and checks, for other messages.

{"shoal": 1, "job": "digits", "type": "split_request", "node": "a", "turn": 3, "batch": 17, "leg": 0, …}

The payload is always in the frame, because its length follows from the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from shoal.core.errors import InvalidPayload
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.split_message import SplitMessage
from shoal.core.split.row_alignment import ids_layout
from shoal.core.split.split_plan import Direction, SplitPlan
from shoal.wire import codec
from shoal.wire.payload import payload_layout

MESSAGES: dict[str, type] = {kind.type_name: kind for kind in get_args(SplitMessage)}
PART_COPIES_MAX = 5
"""Bytes of a node's part with the state of its optimizer, as a multiple of the part alone: Adam keeps two copies."""
PART_BYTES_SPARE = 256 * 1024
"""Bytes by which it may be longer, for the names of an optimizer's tensors."""


@dataclass(frozen=True)
class SplitFrame:
    """A message of a split job with its payload, which is empty if the message has no blob."""

    job: str
    message: SplitMessage
    payload: bytes = b""


def encode(frame: SplitFrame) -> bytes:
    """Return a frame as bytes."""
    return codec.headed({"job": frame.job, **codec.to_json(frame.message)}) + frame.payload


def decode(data: bytes, payload_bytes_max: int) -> SplitFrame:
    """Return the frame in `data`. Raises `InvalidPayload` for bytes that `encode` does not produce."""
    values, job, payload = codec.read_frame(data, payload_bytes_max)
    message = codec.from_json(values, MESSAGES)
    ref = getattr(message, "blob", None)
    if len(payload) != (ref.nbytes if isinstance(ref, BlobRef) else 0):
        raise InvalidPayload(f"a payload of {len(payload)} bytes that the head does not name", code="head.length")
    return SplitFrame(job, message, payload)


def payload_bytes_max(plan: SplitPlan, direction: Direction, part: BlobRef) -> int:
    """Return the bytes of the largest payload in a direction. `part`: a node's part without state of an optimizer."""
    packed = (payload_layout({**plan.packed_layouts(leg, direction, plan.examples_max)}) for leg in range(plan.legs))
    largest = max(len(layout.header) + layout.nbytes for layout in packed)
    return max(largest, PART_COPIES_MAX * part.nbytes + PART_BYTES_SPARE)


def ids_bytes_max(ids: int) -> int:
    """Return the bytes of the payload of that many masked ids."""
    layout = payload_layout({**ids_layout(ids)})
    return len(layout.header) + layout.nbytes


def frame_bytes_max(payload: int) -> int:
    """Return the bytes of the largest frame whose payload has at most that many."""
    return 4 + codec.HEAD_BYTES_MAX + payload
