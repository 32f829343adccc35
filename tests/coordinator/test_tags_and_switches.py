"""Tags of a job, and the preview of a switch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import StorageFailed
from shoal.trust.keys import SigningKey
from shoal_coordinator.composition.job_lifecycle import JobLifecycle
from tests.support.coordinator import Inside, inside
from tests.support.scenario import Stage, by_hand, problem, set_up, task_of
from tests.support.sse import listening


def tag(running: Inside, job: str, *tags: str) -> Any:
    answer = running.request("PUT", f"/api/v1/jobs/{job}/tags", json={"tags": tags})
    assert answer.status_code == 200, answer.text
    return answer.json()["tags"]


def test_tags_are_kept_told_and_changed(tmp_path: Path) -> None:
    with inside(tmp_path / "data") as running:
        assert running.begin("a", nodes=1)["tags"] == []
        running.begin("b", nodes=1)
        with listening(running.url, job="b") as events:
            assert next(events).name == "hello"
            assert tag(running, "b", " tumours ", "baseline", "baseline", "بداية <b>") == [
                "baseline",
                "tumours",
                "بداية <b>",
            ]
            told = next(event for event in events if event.name == "job" and event.data["tags"])
            assert told.data["tags"] == ["baseline", "tumours", "بداية <b>"]
        assert tag(running, "a", "x") == ["x"]
        assert tag(running, "a") == []
        running.post("/jobs/b/stop", {})
    with inside(tmp_path / "data") as running:
        assert {job["name"]: job["tags"] for job in running.get("/jobs")["jobs"]} == {
            "a": [],
            "b": ["baseline", "tumours", "بداية <b>"],
        }
        assert tag(running, "b", "over") == ["over"], "a job that has ended"
        assert running.job("b")["tags"] == ["over"]


@pytest.mark.parametrize(
    "tags",
    [["a,b"], [""], ["  "], ["a\n"], ["\x00"], ["x" * 41], [str(number) for number in range(17)], [3], "a", None],
    ids=str,
)
def test_what_is_no_tag_changes_nothing(coordinator: Inside, tags: Any) -> None:
    coordinator.begin("a", nodes=1)
    tag(coordinator, "a", "kept")
    answer = coordinator.request("PUT", "/api/v1/jobs/a/tags", json={"tags": tags})
    problem(answer, 422, "text.invalid" if tags == ["\0"] else "request.invalid")
    assert coordinator.job("a")["tags"] == ["kept"]
    problem(coordinator.request("PUT", "/api/v1/jobs/z/tags", json={"tags": ["a"]}), 404, "job.unknown")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Three nodes, of which n0 and n2 show where other nodes reach them."""
    with inside(tmp_path / "data", lease_s=86_400.0) as running:
        made = set_up(running, gossip={"allowed": True})
        for name in ("n0", "n2"):
            peer = {"public_key": SigningKey.make().public_key, "urls": ["http://10.0.0.7:9001"], "is_reachable": True}
            assert made.send(name, "POST", "/hello", json={"peer": peer}).status_code == 200
        yield made
        made.close()


def test_a_switch_is_looked_at_before_it_is_made(stage: Stage) -> None:
    before = stage.picture()
    move = stage.running.get("/jobs/main/switch", to="gossip")
    assert (move["possible"], move["asked"], move["unable"], move["version"]) == (True, ["n0", "n2"], ["n1"], 0)
    assert move["why"] == "2 nodes carry the job on from version 0; none is made here meanwhile"
    move = stage.running.get("/jobs/main/switch", to="server")
    assert (move["possible"], move["why"]) == (False, "job main is there already")
    assert stage.picture() == before
    stage.running.post("/jobs/main/switch", {"to": "gossip"})
    move = stage.running.get("/jobs/main/switch", to="server")
    assert move["possible"]
    assert move["why"] == "2 nodes are asked for what they have learned; the mean becomes version 1"


def test_why_it_cannot_be_made_now(stage: Stage) -> None:
    stage.running.post("/jobs/main/pause", {})
    move = stage.running.get("/jobs/main/switch", to="gossip")
    assert not move["possible"]
    assert move["why"] == "job main is paused, so nothing is asked of its nodes"
    assert move["hint"] == "resume it first: shoal jobs resume main"
    problem(stage.running.request("GET", "/api/v1/jobs/main/switch?to=moon"), 422, "request.invalid")
    stage.running.begin("strict", nodes=1)
    assert "does not allow" in stage.running.get("/jobs/strict/switch", to="gossip")["why"]
    stage.running.post("/jobs/main/stop", {})
    problem(stage.running.request("GET", "/api/v1/jobs/main/switch?to=gossip"), 409, "job.ended")


def test_a_job_that_is_held_asks_nobody_before_it_is_started(coordinator: Inside) -> None:
    spec = {"name": "held", "rounds": 1, "schedule": {"name": "rounds", "min_nodes": 1}}
    made = coordinator.post("/jobs", {"spec": spec, "paused": True})
    assert (made["state"], made["state_why"], made["started_at"]) == ("paused", "it waits to be started", None)
    node = by_hand(coordinator, "n0", {"held": 10})
    poll = {"wait_s": 0, "job": "held"}
    assert node.ask("GET", "/work", params=poll).status_code == 204
    coordinator.post("/jobs/held/resume", {})
    task, _ = task_of(node, "held")
    assert task.kind == "init"
    node.client.close()


def test_a_job_that_is_held_stays_so_whenever_its_coordinator_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one commit: the job is visible only as paused."""
    spec = {"name": "held", "rounds": 1, "schedule": {"name": "rounds", "min_nodes": 1}}
    with inside(tmp_path / "data") as running:

        async def dies(*_: object) -> None:
            raise StorageFailed("the process ended here")

        with monkeypatch.context() as patch:
            patch.setattr(JobLifecycle, "_start_runner", dies)
            found = running.request("POST", "/api/v1/jobs", json={"spec": spec, "paused": True})
        problem(found, 503, "storage.failed")
    with inside(tmp_path / "data") as running:
        job = running.job("held")
        assert (job["state"], job["state_why"]) == ("paused", "it waits to be started")
        assert [event["text"] for event in running.get("/jobs/held/events")["events"]] == [
            "paused: it waits to be started",
            "coordinator started (term 1)",
        ]
        node = by_hand(running, "n0", {"held": 10})
        assert node.ask("GET", "/work", params={"wait_s": 0, "job": "held"}).status_code == 204
        node.client.close()
