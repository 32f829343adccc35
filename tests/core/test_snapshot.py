"""Dataclasses outlive a process as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from shoal.core.protocol.message import BlobRef, NodeInfo, Task, TaskStatus
from shoal.core.protocol.snapshot import from_state, to_state
from shoal.core.server.roster import RosterMember


@dataclass
class Nested:
    """One field of each form."""

    name: str
    ref: BlobRef | None = None
    refs: list[BlobRef] = field(default_factory=list)
    pair: tuple[int, int] = (0, 0)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    nodes: set[str] = field(default_factory=set)
    numbers: dict[str, float] = field(default_factory=dict)
    data: bytes = b""
    kind: Literal["a", "b"] = "a"
    limit: float | None = None
    owner: Any = field(default=None, init=False, compare=False)


BLOB = BlobRef("0" * 64, 7)
FULL = Nested("x", BLOB, [BLOB], (1, 2), [(3, 4)], {"b", "a"}, {"n": 0.5}, b"\0\xff", "b", 1.5)


@pytest.mark.parametrize(
    "value",
    [
        Nested("x"),
        FULL,
        Task((1, 2), "a", "train", 3, 4, BLOB, numbers={"delta": 1.0}),
        TaskStatus("a", (1, 2), 3, {"gap": 0.5}, b"\1\2"),
        RosterMember("a", recent_tasks=[(1, 1), (1, 2)], node_info=NodeInfo(("ship",), ("22:00-06:00",))),
    ],
    ids=["defaults", "all fields", "task", "status", "member"],
)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert from_state(type(value), json.loads(json.dumps(to_state(value)))) == value


def test_sets_are_sorted_and_the_owner_is_left_out() -> None:
    state = to_state(FULL)
    assert state["nodes"] == ["a", "b"]
    assert "owner" not in state


def test_defaults_are_left_out() -> None:
    assert to_state(RosterMember("a")).keys().isdisjoint({"is_present", "task", "has_left", "roster"})


def test_a_state_shares_nothing_that_changes() -> None:
    state = to_state(value := Nested("x", numbers={"n": 1.0}, pairs=[(1, 2)]))
    value.numbers["n"] = 2.0
    value.pairs.append((3, 4))
    assert (state["numbers"], state["pairs"]) == ({"n": 1.0}, [[1, 2]])
