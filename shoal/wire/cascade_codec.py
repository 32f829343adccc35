"""Features that a level of a cascade sends up, and the answer, as bytes.

    4 bytes of length (big endian) | {"shoal": 1, "model": …, "level": 1, "shape": [3, 2, 2], …} | bits of each part

The answer is JSON: {"classes": [3, 1], "exits": [2, 1], "degraded": [false, false]}.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le, Len

from shoal.core.errors import InvalidPayload
from shoal.core.exits.byte_costs import packed_bytes
from shoal.core.exits.cascade_level import CascadeAnswer
from shoal.core.exits.packed_bits import PackedFeatures
from shoal.wire import codec

EXAMPLES_MAX = 1024
"""Examples of one request."""
NUMBER_MAX = 2**31 - 1

Natural = Annotated[int, Ge(0), Le(NUMBER_MAX)]
Positive = Annotated[int, Ge(1), Le(NUMBER_MAX)]


@dataclass(frozen=True)
class FeaturesHead:
    """The head of features on their way up."""

    model: str
    """SHA-256 of the model that computed them."""
    level: Natural
    """The number of the level that is asked."""
    examples: Annotated[int, Ge(1), Le(EXAMPLES_MAX)]
    shape: Annotated[tuple[Positive, ...], Len(0, 8)]
    parts: Annotated[tuple[bool, ...], Len(1, 1024)]
    """False for a machine that is left out."""


@dataclass(frozen=True)
class _Answer:
    classes: Annotated[tuple[Natural, ...], Len(0, EXAMPLES_MAX)]
    exits: Annotated[tuple[Natural, ...], Len(0, EXAMPLES_MAX)]
    degraded: Annotated[tuple[bool, ...], Len(0, EXAMPLES_MAX)]


def encode_features(model: str, level: int, features: PackedFeatures) -> bytes:
    """Return features for this level as bytes. `model`: the SHA-256 of the model that computed them."""
    there = [part for part in features.parts if part is not None]
    head = FeaturesHead(model, level, len(there[0]), features.shape, tuple(part is not None for part in features.parts))
    return codec.headed(codec.plain(head)) + b"".join(part.tobytes() for part in there)


def decode_features(data: bytes) -> tuple[FeaturesHead, PackedFeatures]:
    """Return head and features. Raises `InvalidPayload` for other bytes, `Refused` for another protocol version."""
    length = 4 + codec.head_bytes(data[:4])
    values = codec.read_values(data[4:length])
    head: FeaturesHead = codec.validated(FeaturesHead, "features", values)
    width = packed_bytes(prod(head.shape))
    if not any(head.parts) or len(data) - length != sum(head.parts) * head.examples * width:
        text = f"{len(data) - length} bytes for {head.examples} examples of {width} bytes in {sum(head.parts)} parts"
        raise InvalidPayload(text, code="payload.bits", hint="both levels need the same release of shoal")
    bits = iter(np.frombuffer(data, np.uint8, offset=length).reshape(sum(head.parts), head.examples, width))
    return head, PackedFeatures(head.shape, tuple(next(bits) if there else None for there in head.parts))


def answer_values(answer: CascadeAnswer) -> dict[str, list[Any]]:
    """Return an answer as JSON values."""
    return {name: part.tolist() for name, part in answer._asdict().items()}


def read_answer(values: Any) -> CascadeAnswer:
    """Return the answer for JSON values. Raises `InvalidPayload`."""
    if not isinstance(values, dict):
        raise InvalidPayload("the answer is not an object", code="head.invalid")
    found: _Answer = codec.validated(_Answer, "answer", values)
    return CascadeAnswer(
        np.array(found.classes, np.int64), np.array(found.exits, np.int64), np.array(found.degraded, np.bool_)
    )
