"""Selection over HTTP: nodes tell their tags at the hello; jobs choose by tags and by reports."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from shoal.core.algorithm.sharding import Shard
from shoal.core.model.tree import Slots
from shoal.core.model.vector_parts import Part
from tests.support.coordinator import Inside
from tests.support.node import Node
from tests.support.scenario import by_hand, problem

SIZE = 10


def test_a_job_by_tag(coordinator: Inside, swarm: Callable[..., list[Node]]) -> None:
    swarm(coordinator, 1, {"tagged": SIZE})  # n0, which is given nothing, and so never hears of the end
    tagged = [Node(lambda: coordinator.url, f"p{n}", coordinator.token(), {"tagged": SIZE}) for n in range(2)]
    for node in tagged:
        node.about = {"tags": ["phone", "eu"]}
    coordinator.begin("tagged", nodes=2, rounds=2, selection={"name": "uniform", "tags": ["phone"]})
    for node in tagged:
        node.start()
    for node in tagged:
        node.finish()
    reports = coordinator.get("/jobs/tagged/reports")["reports"]
    assert {one["node"] for one in reports if one["kind"] == "train"} == {"p0", "p1"}
    assert coordinator.get("/nodes/p0")["info"] == {"tags": ["phone", "eu"]}
    said = [event["text"] for event in coordinator.events("tagged", "decision")]
    assert "not asked: n0: without the tag phone" in said


def test_power_of_choice_with_measurements(coordinator: Inside, swarm: Callable[..., list[Node]]) -> None:
    """All four candidates of each round tell a loss; reports that only measure make no part of a version."""
    choose = {"name": "power_of_choice", "candidates": 4, "measure": True}
    coordinator.begin("measured", nodes=4, rounds=3, schedule={"cohort": 2}, selection=choose)
    for node in swarm(coordinator, 4, {"measured": SIZE}):
        node.finish()
    said = [event["text"] for event in coordinator.events("measured", "decision")]
    assert sum("4 candidates measure version" in text for text in said) == 3
    assert sum("highest loss of 4 candidates (" in text and "0.25" in text for text in said) == 3
    found = coordinator.get("/jobs/measured/reports", limit=200)["reports"]
    kinds = [one["kind"] for one in found if one["version"] < 3]  # the final model is measured by all, once more
    assert (kinds.count("train"), kinds.count("evaluate")) == (6, 12)


def test_tags_that_are_none_are_refused(coordinator: Inside) -> None:
    node = by_hand(coordinator, "n0")
    refused = node.ask("POST", "/hello", json={"info": {"tags": ["No Tag"]}})
    problem(refused, 409, "node.info")
    problem(node.ask("POST", "/hello", json={"info": {"hours": ["9 to 5"]}}), 409, "node.info")
    body = {"token": coordinator.token(), "name": "n1", "info": {"tags": "phone"}}
    problem(coordinator.request("POST", "/api/v1/enrol", json=body), 409, "node.info")
    node.client.close()


def test_a_model_split_over_shards_comes_to_the_same_bytes(
    coordinator: Inside, swarm: Callable[..., list[Node]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shards add and step in threads of their own."""
    seen: set[str] = set()
    step = Shard.step

    def watched(shard: Shard, *arguments: Any) -> Any:
        part = step(shard, *arguments)

        def run() -> Part[Slots]:
            seen.add(threading.current_thread().name)
            return (yield from part)

        return run()

    monkeypatch.setattr(Shard, "step", watched)
    coordinator.begin("whole", nodes=2, rounds=3, aggregation_precision="fixed", algorithm={"name": "fedadam"})
    coordinator.begin(
        "split", nodes=2, rounds=3, aggregation_precision="fixed", algorithm={"name": "fedadam"}, shards=3
    )
    for node in swarm(coordinator, 2, {"whole": SIZE, "split": SIZE}):
        node.finish()
    found = dict(coordinator.rows("SELECT job || number, digest FROM versions"))
    assert len(found) == 8
    assert all(found[f"whole{number}"] == found[f"split{number}"] for number in range(4))
    assert seen
    assert all(name.startswith("shards of split") for name in seen)
