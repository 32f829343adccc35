"""The names of statistics in a payload's metadata, and what is refused of them and of their values."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import InvalidPayload
from shoal.core.model.tree import Tree, digest
from shoal.wire.payload import TENSORS_MAX, measure, open_payload
from tests.wire.strategies import body_of
from tests.wire.test_payloads import EIGHT, body_with, code_of, entry

BASE = "ba5e" * 16
TENSORS = {"n": entry("I32", [1], 0, 4), "a": entry("F16", [2], 4, 8)}


def named(names: Any, **more: Any) -> dict[str, Any]:
    return {"__metadata__": {**more, "statistics": json.dumps(names, separators=(",", ":"))}, **TENSORS}


def tree(*names: str, var: float = 1.0) -> Tree:
    arrays = {"bn.var": np.full(2, var, np.float32), "w": np.ones(3, np.float32)}
    return Tree.of(arrays, base_model=BASE, statistics=names)


def test_each_slot_keeps_its_own() -> None:
    slots = {"model": tree("bn.var"), "c": tree(), "d": tree("w", "bn.var"), "step": 2.0}
    found = open_payload(body_of(slots))
    for name, value in slots.items():
        if isinstance(value, Tree):
            other = found[name]
            assert isinstance(other, Tree)
            assert other.layout == value.layout
            assert digest(other) == digest(value)


def test_names_beside_a_base_model_are_taken() -> None:
    read = open_payload(body_with(named(["a"], base_model=BASE), EIGHT))["model"]
    assert isinstance(read, Tree)
    assert (read.layout.statistics, read.layout.base_model) == (frozenset({"a"}), BASE)


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["b"], "payload.statistic"),
        (["n"], "payload.statistic"),
        (["@c/a"], "payload.statistic"),
        (["@c"], "payload.statistic"),
        ([], "payload.statistic"),
        ({"a": 1}, "payload.statistic"),
        ([["a"]], "payload.statistic"),
        ([1], "payload.statistic"),
        ("a", "payload.statistic"),
        (["a"] * (TENSORS_MAX + 1), "payload.statistic"),
        (["a", "a"], "payload.header"),
    ],
    ids=["missing", "integer", "no slot", "number", "none", "object", "nested", "whole", "text", "many", "twice"],
)
def test_wrong_names_are_refused(names: Any, code: str) -> None:
    assert code_of(body_with(named(names), EIGHT)) == code


@pytest.mark.parametrize("text", ["", "[", '[ "a"]', '["\\u0061"]', ["a"], None, 3])
def test_text_that_is_no_canonical_list_is_refused(text: Any) -> None:
    assert code_of(body_with({"__metadata__": {"statistics": text}, **TENSORS}, EIGHT)).startswith("payload.")


@pytest.mark.parametrize(("var", "why"), [(-1e-6, "is a variance below 0"), (np.nan, "is not finite")])
@pytest.mark.parametrize(("slot", "place"), [("model", "bn.var[0]"), ("c", "@c/bn.var[0]")])
def test_values_that_cannot_be_are_refused_by_name(var: float, why: str, slot: str, place: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        measure({slot: tree("bn.var", var=var)})
    assert caught.value.message == f"{place} {why}"


def test_a_weight_may_be_below_0_and_a_statistic_has_no_part_in_the_norm() -> None:
    assert measure({"model": tree(var=-4.0)}) == pytest.approx((3 + 32) ** 0.5)
    assert measure({"model": tree("bn.var", var=4e6)}) == pytest.approx(3**0.5)
