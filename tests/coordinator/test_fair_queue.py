"""The order in which several coordinators serve a node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from shoal_coordinator.node_protocol.fair_queue import FairQueue


def names(queue: FairQueue, node: str, running: list[Any]) -> str:
    return "".join(runner.name for runner in queue.ordered_runners(node, running))


def test_jobs_take_turns_for_each_node() -> None:
    queue, running = FairQueue(), [SimpleNamespace(name=name) for name in "abc"]
    assert names(queue, "n", running) == "abc"
    queue.served("n", "a")
    assert names(queue, "n", running) == "bca"
    queue.served("n", "c")
    assert names(queue, "n", running) == "abc"
    queue.served("n", "b")
    assert names(queue, "n", running) == "cab"
    assert names(queue, "other", running) == "abc"
    assert names(queue, "n", running[:1] + running[2:]) == "ac", "of a job that is over nothing is known"


def test_followers_come_first_after_an_own_job_and_in_turn() -> None:
    queue = FairQueue()
    assert not queue.followers_first("n")
    queue.served("n", "a")
    assert queue.followers_first("n")
    assert not queue.followers_first("other")
    queue.served_by("n", "d1")
    assert not queue.followers_first("n")
    assert list(queue.ordered_followers("n", ["d1", "d2", "d3"])) == ["d2", "d3", "d1"]
    queue.forget("n")
    assert list(queue.ordered_followers("n", ["d1", "d2", "d3"])) == ["d1", "d2", "d3"]
