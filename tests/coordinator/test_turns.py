"""Whose turn it is when several have something for a node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from shoal_coordinator.turns import Turns


def names(turns: Turns, node: str, running: list[Any]) -> str:
    return "".join(driver.name for driver in turns.drivers(node, running))


def test_jobs_come_in_turn_for_each_node() -> None:
    turns, running = Turns(), [SimpleNamespace(name=name) for name in "abc"]
    assert names(turns, "n", running) == "abc"
    turns.gave("n", "a")
    assert names(turns, "n", running) == "bca"
    turns.gave("n", "c")
    assert names(turns, "n", running) == "abc"
    turns.gave("n", "b")
    assert names(turns, "n", running) == "cab"
    assert names(turns, "other", running) == "abc"
    assert names(turns, "n", running[:1] + running[2:]) == "ac", "of a job that is over nothing is known"


def test_deputies_come_first_after_an_own_job_and_in_turn() -> None:
    turns = Turns()
    assert not turns.deputies_first("n")
    turns.gave("n", "a")
    assert turns.deputies_first("n")
    assert not turns.deputies_first("other")
    turns.fetched("n", "d1")
    assert not turns.deputies_first("n")
    assert list(turns.deputies("n", ["d1", "d2", "d3"])) == ["d2", "d3", "d1"]
    turns.forget("n")
    assert list(turns.deputies("n", ["d1", "d2", "d3"])) == ["d1", "d2", "d3"]
