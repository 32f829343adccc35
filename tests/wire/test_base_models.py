"""The digest of a base model is the only metadata of a payload."""

from typing import Any

import numpy as np
import pytest

from shoal.core.errors import InvalidPayload
from shoal.core.model.tree import Tree
from shoal.wire.payload import open_payload
from tests.wire.strategies import based, body_of
from tests.wire.test_payloads import EIGHT, body_with, code_of, entry

BASE = "ba5e" * 16
TENSOR = {"a": entry("F32", [2], 0, 8)}


def test_trees_of_two_base_models_are_not_sent() -> None:
    tree = Tree.of({"w": np.zeros(2, np.float32)})
    with pytest.raises(InvalidPayload, match=r"trees of base model 0dd0.* and base model ba5e") as told:
        body_of({"model": based(tree, BASE), "c": based(tree, "0dd0" * 16)})
    assert told.value.code == "payload.base-model"


def test_it_counts_for_all_slots() -> None:
    tree = Tree.of({"w": np.zeros(2, np.float32)})
    found = open_payload(body_of({"model": based(tree, BASE), "c": tree, "step": 3.0}))
    assert [value.layout.base_model for value in found.values() if isinstance(value, Tree)] == [BASE, BASE]


def test_one_is_taken() -> None:
    read = open_payload(body_with({"__metadata__": {"base_model": BASE}, **TENSOR}, EIGHT))["model"]
    assert isinstance(read, Tree)
    assert read.layout.base_model == BASE


@pytest.mark.parametrize(
    "entries",
    [
        {"__metadata__": {"base_model": BASE, "a": "b"}, **TENSOR},
        {"__metadata__": {"base_model": BASE.upper()}, **TENSOR},
        {"__metadata__": {"base_model": BASE[:-1]}, **TENSOR},
        {"__metadata__": {"base_model": ""}, **TENSOR},
        {"__metadata__": {"base_model": [BASE]}, **TENSOR},
        {"__metadata__": {}, **TENSOR},
        {"__metadata__": None, **TENSOR},
        {"__metadata__": BASE, **TENSOR},
        {**TENSOR, "__metadata__": {"base_model": BASE}},
    ],
    ids=["more", "upper", "short", "empty", "list", "nothing", "null", "text", "last"],
)
def test_other_metadata_are_refused(entries: dict[str, Any]) -> None:
    assert code_of(body_with(entries, EIGHT)) == "payload.header"
