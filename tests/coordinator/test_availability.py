"""Nodes that operators drain, block and activate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from shoal.core.protocol.message import Ack
from shoal.wire import codec
from tests.support.coordinator import Inside, inside
from tests.support.scenario import Stage, by_hand, problem, set_up, task_of
from tests.support.waiting import until


@pytest.fixture
def stage(coordinator: Inside) -> Iterator[Stage]:
    made = set_up(coordinator)
    yield made
    made.close()


def set_availability(running: Inside, node: str, availability: str) -> str:
    path = f"/api/v1/nodes/{node}/availability"
    answer = running.request("PUT", path, json={"availability": availability})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["availability"])


def asked(running: Inside, job: str) -> list[str]:
    return [member.node for member in running.runner(job).hub.roster.all_members() if member.task is not None]


def is_noted(running: Inside, text: str) -> None:
    """Wait until people can read it: what is projected comes after the answer."""
    until(text, lambda: text in [event["text"] for event in running.events("main", "decision")])


def counts(stage: Stage, node: str) -> bool:
    answer = stage.report(node=node)
    assert answer.status_code == 200, answer.text
    ack = codec.decode(answer.content).message
    assert isinstance(ack, Ack)
    return ack.counted


def test_a_drained_node_finishes_and_is_asked_nothing_more(stage: Stage) -> None:
    running = stage.running
    assert set_availability(running, "n0", "drained") == "drained"
    assert running.get("/nodes/n0")["availability"] == "drained"
    assert counts(stage, "n0")
    assert counts(stage, "n1")
    assert running.job("main")["version"] == 1
    assert asked(running, "main") == ["n1", "n2"]
    is_noted(running, "not asked: n0: drained by an operator")
    assert set_availability(running, "n0", "active") == "active"
    is_noted(running, "no node is left out any more")


def test_a_blocked_node_is_relieved_and_another_one_asked(stage: Stage) -> None:
    running = stage.running
    assert set_availability(running, "n1", "blocked") == "blocked"
    assert asked(running, "main") == ["n0", "n2"]
    assert not counts(stage, "n1")
    assert stage.send("n1", "GET", "/work", params={"wait_s": 0, "job": "main"}).status_code == 204


def test_a_blocked_node_stays_blocked_after_a_restart_and_in_new_jobs(tmp_path: Path) -> None:
    with inside(tmp_path / "data") as first:
        first.begin("old", nodes=1)
        node = by_hand(first, "n0", {"old": 10})
        task, _ = task_of(node, "old")
        assert node.report("old", task).counted
        set_availability(first, "n0", "blocked")
        credentials = dict(node.client.headers)
        node.client.close()
    with inside(tmp_path / "data") as second:
        second.begin("new", nodes=1)
        for _ in range(2):
            found = httpx.get(f"{second.url}/api/v1/work", params={"wait_s": 0}, headers=credentials)
            assert found.status_code == 204, found.content
        assert asked(second, "old") == asked(second, "new") == []
        set_availability(second, "n0", "active")
        assert asked(second, "old") == asked(second, "new") == ["n0"]


def test_a_job_that_was_not_told_hears_it_when_the_node_polls(stage: Stage) -> None:
    """As after a crash between the database and the job, or at a coordinator that owns another job."""
    running = stage.running
    running.coordinator.nodes.presence.set_availability("n2", "drained")
    assert asked(running, "main") == ["n0", "n1"]
    assert stage.send("n2", "GET", "/work", params={"wait_s": 0, "job": "main"}).status_code == 204
    assert running.runner("main").hub.roster["n2"].node_info.drain_reason == "drained by an operator"


def test_what_is_refused(stage: Stage) -> None:
    running = stage.running
    path = "/api/v1/nodes/{}/availability"
    problem(running.request("PUT", path.format("nobody"), json={"availability": "drained"}), 404, "node.unknown")
    assert running.request("PUT", path.format("n0"), json={"availability": "asleep"}).status_code == 422
    answer = stage.send("n0", "PUT", "/nodes/n1/availability", json={"availability": "blocked"})
    assert answer.status_code == 403
    assert running.get("/nodes/n1")["availability"] == "active"
