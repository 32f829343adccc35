"""Nodes as people see them: all of them page by page, and each with its jobs and its coming and going."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.coordinator import Inside
from tests.support.scenario import Stage, by_hand, problem, set_up
from tests.support.waiting import until


@pytest.fixture
def stage(coordinator: Inside) -> Iterator[Stage]:
    made = set_up(coordinator)
    yield made
    made.close()


def test_nodes_come_page_by_page(stage: Stage) -> None:
    first = stage.running.get("/nodes", limit=2)
    assert [node["name"] for node in first["nodes"]] == ["n0", "n1"]
    rest = stage.running.get("/nodes", limit=2, after=first["next"])
    assert ([node["name"] for node in rest["nodes"]], rest["next"]) == (["n2"], None)


def test_a_node_has_its_sums(stage: Stage) -> None:
    assert stage.report(node="n0").status_code == 200
    assert stage.report(node="n1", weight=-1.0).status_code == 422
    found = {node["name"]: node for node in stage.running.get("/nodes")["nodes"]}
    assert [found[name]["reports"] for name in ("n0", "n1", "n2")] == [2, 0, 0], "the initial model is one"
    assert (found["n1"]["failures"], found["n0"]["last_error"]) == (1, None)
    assert "weight" in found["n1"]["last_error"]
    assert found["n0"]["up_bytes"] > 300


def test_a_node_with_its_jobs_and_its_history(stage: Stage) -> None:
    running = stage.running
    assert stage.report(node="n0").status_code == 200
    stage.dismiss("n0")
    until("its going", lambda: running.events("main", "node")[-1]["text"].startswith("n0 left"))
    found = running.get("/nodes/n0")
    (part,) = found["parts"]
    assert (part["job"], part["is_present"], part["reports"], part["failures"]) == ("main", False, 1, 0)
    assert part["reported_at"] is not None
    assert part["up_bytes"] > 0
    texts = [event["text"] for event in found["history"]]
    assert texts[0].startswith("n0 left")
    assert texts[-1] == "n0 joined"
    assert {event["job"] for event in found["history"]} == {"main"}
    idle = by_hand(running, "idle")
    idle.client.close()
    problem(running.request("GET", "/api/v1/nodes/nobody"), 404, "node.unknown")
