"""Features and answers of a cascade as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.core.errors import InvalidPayload, Refused
from shoal.core.exits.cascade_level import CascadeAnswer
from shoal.core.exits.packed_bits import PackedFeatures
from shoal.validation import strict_json
from shoal.wire.cascade_codec import (
    EXAMPLES_MAX,
    FeaturesHead,
    answer_values,
    decode_features,
    encode_features,
    read_answer,
)
from shoal.wire.codec import headed

HEAD: dict[str, Any] = {"model": "ab", "level": 1, "examples": 2, "shape": [9], "parts": [True, False, True]}


def test_features_come_as_they_were_sent() -> None:
    sent = PackedFeatures((9,), (np.array([[1, 128], [2, 0]], np.uint8), None, np.array([[3, 0], [4, 128]], np.uint8)))
    head, found = decode_features(encode_features("ab", 1, sent))
    assert head == FeaturesHead("ab", 1, 2, (9,), (True, False, True))
    assert found.shape == (9,)
    assert [None if part is None else part.tolist() for part in found.parts] == [
        [[1, 128], [2, 0]],
        None,
        [[3, 0], [4, 128]],
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"examples": 0},
        {"examples": EXAMPLES_MAX + 1},
        {"examples": 3},
        {"shape": [17]},
        {"shape": [0]},
        {"shape": [2**40]},
        {"shape": [1] * 9},
        {"parts": []},
        {"parts": [False]},
        {"parts": [1, 0, 1]},
        {"level": -1},
        {"more": 1},
    ],
    ids=str,
)
def test_features_that_do_not_fit_their_head_are_refused(change: dict[str, Any]) -> None:
    assert decode_features(headed(HEAD) + bytes(8))
    with pytest.raises(InvalidPayload):
        decode_features(headed(HEAD | change) + bytes(8))


def test_other_bytes_and_protocols_are_refused() -> None:
    for data in (b"", b"\0\0\1\0", b"\0\0\0\2[]", headed(HEAD)):
        with pytest.raises(InvalidPayload):
            decode_features(data)
    with pytest.raises(Refused, match="protocol 99"):
        decode_features(headed(HEAD, 99) + bytes(8))


def test_an_answer_comes_as_it_was_sent() -> None:
    sent = CascadeAnswer(np.array([3, 1]), np.array([2, 1]), np.array([False, True]))
    found = read_answer(strict_json.loads(strict_json.dumps(answer_values(sent))))
    assert [part.tolist() for part in found] == [[3, 1], [2, 1], [False, True]]
    assert [part.dtype for part in found] == [np.int64, np.int64, np.bool_]


@pytest.mark.parametrize(
    "values",
    [[], {"classes": [1]}, {"classes": [2**64], "exits": [1], "degraded": [False]}, {"classes": [-1]}],
    ids=str,
)
def test_answers_of_another_form_are_refused(values: Any) -> None:
    with pytest.raises(InvalidPayload):
        read_answer(values)
