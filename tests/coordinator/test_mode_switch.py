"""A job moves to its nodes and back: by an operator's word, by a node that comes back, and across deaths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from shoal.core.protocol.machine import Timer
from shoal.core.protocol.message import Stop, Task
from shoal.wire import codec
from shoal_coordinator.telemetry.job_events import trim_feed
from tests.support.coordinator import Api, Inside, Server, inside
from tests.support.node import Floats, Node, body, displacement, initial, weight
from tests.support.scenario import SIZE, Stage, by_hand, problem, set_up, task_of
from tests.support.sse import listening
from tests.support.waiting import until

GOSSIP = {"allowed": True, "coordinator_timeout_s": 7.5, "handback_timeout_s": 3600.0, "accuracy_drop_max": 0.0}


def moved(node: str, size: int = SIZE) -> Floats:
    """An update made during gossip, which differs from that of a round."""
    return 2 * displacement(node, 7, size)


def report(stage: Stage, node: str, **changes: Any) -> httpx.Response:
    """A node's answer to its task: what it learned, with its weight."""
    values = changes.pop("values", moved(node))
    return stage.report(values, node, **{"weight": weight(node), **changes})


def merged(model: Floats, *nodes: str) -> Floats:
    """The model when these have handed back."""
    total = sum(moved(node, model.size).astype(np.float64) * weight(node) for node in nodes)
    return (model + total / sum(weight(node) for node in nodes)).astype(np.float32)


def model_of(running: Api, number: int, job: str = "main") -> Floats:
    """The model of a version."""
    until(f"version {number}", lambda: running.get(f"/jobs/{job}/versions", after=number - 1)["versions"])
    found: Floats = load(running.request("GET", f"/api/v1/jobs/{job}/models/{number}").content)["w"]
    return found


def tasks(stage: Stage, *names: str, recall: bool) -> None:
    """See that these nodes have the task to carry on; or the same, recalled."""

    def look(node: Node) -> Task | None:
        task, _ = task_of(node, stage.job)
        return task if task.kind == "gossip" and task.recall == recall else None

    for node in stage.nodes:
        if node.node in names:
            stage.tasks[node.node] = until(f"the task of {node.node}", lambda node=node: look(node))


def later(running: Inside, seconds: float) -> None:
    """Advance the job's clock by `seconds`."""
    runner = running.runner("main")
    runner.clock.set(runner.clock.now() + seconds)
    running.call(runner.submit(Timer()))


ALL = ("n0", "n1", "n2")


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Inside]:
    """A coordinator that loses no node, however slow the test is."""
    with inside(tmp_path / "data", lease_s=86_400.0) as running:
        yield running


@pytest.fixture
def stage(coordinator: Inside) -> Iterator[Stage]:
    made = set_up(coordinator, gossip=GOSSIP)
    yield made
    made.close()


@pytest.fixture
def away(stage: Stage) -> Stage:
    """The job is with its nodes."""
    assert stage.running.post("/jobs/main/switch", {"to": "gossip", "why": "maintenance"})["mode"] == "gossip"
    tasks(stage, *ALL, recall=False)
    return stage


# By an operator's word


def test_away_and_back_merges_exactly_what_was_handed_back(away: Stage) -> None:
    running = away.running
    for name in ALL:
        task = away.tasks[name]
        assert (task.version, task.reference) == (0, None)
    job = running.job("main")
    assert (job["mode"], job["state"], job["state_why"]) == ("gossip", "running", "3 nodes carry on from version 0")
    assert job["mode_since"] > job["started_at"]
    assert all(node["is_gossiping"] for node in running.get("/jobs/main/nodes")["nodes"])
    back = running.post("/jobs/main/switch", {"to": "server"})
    assert (back["mode"], back["state_why"]) == ("returning", "0 of 3 nodes have handed back")
    tasks(away, *ALL, recall=True)
    for name in ALL:
        assert codec.decode(report(away, name).content).message.counted  # type: ignore[union-attr]
    job = running.job("main")
    assert (job["mode"], job["version"]) == ("server", 1)
    assert np.array_equal(model_of(running, 1), merged(initial(SIZE), *ALL))
    until("the events", lambda: len(running.events("main", "mode")) == 3)
    assert [event["text"] for event in running.get("/jobs/main/events", kind="mode")["events"]] == [
        "the peers carry on: maintenance",
        "back to the server: by an operator",
        "back at the server",
    ]
    assert not any(node["is_gossiping"] for node in running.get("/jobs/main/nodes")["nodes"])
    standing = [running.runner("main").task_of(name) for name in ALL]
    assert {task.kind for task in standing if task is not None} == {"train"}, "the schedule goes on"
    assert running.job("main")["mode_since"] >= back["mode_since"]


def test_a_switch_said_twice_is_one(away: Stage) -> None:
    running = away.running
    for to, mode in (("gossip", "gossip"), ("server", "returning"), ("server", "returning")):
        before = running.rows("SELECT count(*) FROM journal WHERE event LIKE '%switch%'")
        assert running.post("/jobs/main/switch", {"to": to})["mode"] == mode
        after = running.rows("SELECT count(*) FROM journal WHERE event LIKE '%switch%'")
        assert after[0][0] - before[0][0] == (1 if (to, before[0][0]) == ("server", 1) else 0)
    problem(running.request("POST", "/api/v1/jobs/main/switch", json={"to": "gossip"}), 409, "switch.returning")
    tasks(away, *ALL, recall=True)
    for name in ALL:
        assert report(away, name).status_code == 200
    assert running.post("/jobs/main/switch", {"to": "server"})["mode"] == "server", "it is there already"
    assert running.job("main")["version"] == 1


def test_reports_of_the_round_that_a_switch_breaks_off_count(stage: Stage) -> None:
    assert stage.report(node="n0", weight=weight("n0")).status_code == 200
    stage.running.post("/jobs/main/switch", {"to": "gossip"})
    tasks(stage, *ALL, recall=False)
    assert {task.version for task in stage.tasks.values()} == {1}
    assert np.array_equal(model_of(stage.running, 1), initial(SIZE) + displacement("n0", 0, SIZE))


@pytest.fixture
def last(coordinator: Inside) -> Iterator[Stage]:
    """The last version of a job lacks one report, n1's."""
    coordinator.begin("main", nodes=2, rounds=1, gossip=GOSSIP)
    stage = Stage(coordinator, "main", [by_hand(coordinator, name, {"main": SIZE}) for name in ("n0", "n1")])
    assert stage.nodes[0].report("main", task_of(stage.nodes[0], "main")[0]).counted
    for node in stage.nodes:
        stage.tasks[node.node], _ = task_of(node, "main")
    assert stage.report(node="n0").status_code == 200
    yield stage
    stage.close()


def test_a_switch_that_makes_the_last_version_sends_nobody_away(last: Stage) -> None:
    job = last.running.post("/jobs/main/switch", {"to": "gossip"})
    assert (job["mode"], job["state"], job["version"]) == ("server", "evaluating", 1)
    problem(last.running.request("POST", "/api/v1/jobs/main/switch", json={"to": "gossip"}), 409, "switch.over")


def test_nothing_brought_to_the_last_version_ends_the_job_too(last: Stage) -> None:
    assert ask(last, "n1", "join", {"gossip_rounds": [4, 12]}).status_code == 200
    tasks(last, "n0", "n1", recall=True)
    for node in last.nodes:
        node.fail("main", last.tasks[node.node])
    job = last.running.job("main")
    assert (job["mode"], job["state"], job["version"]) == ("server", "evaluating", 1)


def test_a_paused_job_is_resumed_before_it_moves(stage: Stage) -> None:
    running = stage.running
    for to, mode in (("gossip", "gossip"), ("server", "returning")):
        running.post("/jobs/main/pause")
        found = problem(running.request("POST", "/api/v1/jobs/main/switch", json={"to": to}), 409, "switch.paused")
        assert "shoal jobs resume main" in found["hint"]
        running.post("/jobs/main/resume")
        assert running.post("/jobs/main/switch", {"to": to})["mode"] == mode
        running.post("/jobs/main/pause")
        assert running.post("/jobs/main/switch", {"to": to})["mode"] == mode, "it is there already"
        running.post("/jobs/main/resume")


def test_browsers_are_told_at_once(stage: Stage) -> None:
    with listening(stage.running.url, job="main") as events:
        next(events)
        stage.running.post("/jobs/main/switch", {"to": "gossip", "why": "maintenance"})
        moved = next(event.data for event in events if event.name == "job_event" and event.data["kind"] == "mode")
        assert moved["text"] == "the peers carry on: maintenance"
        job = next(event.data for event in events if event.name == "job" and event.data["mode"] == "gossip")
        assert job["mode_since"] == moved["at"]


def test_moves_are_never_forgotten(away: Stage) -> None:
    running = away.running
    until("the event", lambda: running.events("main", "mode"))

    async def trim() -> None:
        await running.coordinator.database.write(lambda c: trim_feed(c, "main", 0))

    running.call(trim())
    assert [event["text"] for event in running.events("main")] == ["the peers carry on: maintenance"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "not allowed": ({}, "gossip.not-allowed"),
    "no model": ({"gossip": GOSSIP}, "switch.no-model"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_switch_that_must_not_be(coordinator: Inside, why: str) -> None:
    spec, code = REFUSED[why]
    coordinator.begin("main", nodes=2, **spec)
    found = problem(coordinator.request("POST", "/api/v1/jobs/main/switch", json={"to": "gossip"}), 409, code)
    assert code != "gossip.not-allowed" or "allowed = true under [gossip]" in found["hint"]
    assert coordinator.post("/jobs/main/switch", {"to": "server"})["mode"] == "server", "it is there already"
    assert coordinator.job("main")["mode_since"] is None
    coordinator.post("/jobs/main/stop")
    problem(coordinator.request("POST", "/api/v1/jobs/main/switch", json={"to": "gossip"}), 409, "job.ended")


# Models handed back


def test_before_the_recall_a_report_counts_and_nothing_closes(away: Stage) -> None:
    """A node may hand back early: that counts when all come back, and it is not asked again before."""
    assert codec.decode(report(away, "n0").content).message.counted  # type: ignore[union-attr]
    assert (away.running.job("main")["mode"], away.running.job("main")["version"]) == ("gossip", 0)


WRONG: dict[str, tuple[dict[str, Any], int, str]] = {
    "NaN": ({"values": np.full(SIZE, np.nan, np.float32)}, 422, "payload.not-finite"),
    "another model": ({"values": np.zeros(SIZE + 1, np.float32)}, 422, "payload.length"),
    "too long a way": ({"values": np.full(SIZE, 40.0, np.float32)}, 422, "update.norm"),
    "too much weight": ({"weight": 2e9}, 422, "update.weight"),
    "no weight": ({"weight": 0.0}, 422, "update.weight"),
    "no model": ({"blob": None}, 422, "payload.missing"),
    "another version": ({"version": 1}, 422, "head.version"),
    "a task to come": ({"task": [1, 900]}, 409, "task.foreign"),
}


def test_what_must_not_be_merged_changes_nothing(coordinator: Inside) -> None:
    stage = set_up(coordinator, gossip=GOSSIP, limits={"update_norm_max": 50.0})
    coordinator.post("/jobs/main/switch", {"to": "gossip"})
    tasks(stage, *ALL, recall=False)
    coordinator.post("/jobs/main/switch", {"to": "server"})
    tasks(stage, *ALL, recall=True)
    assert report(stage, "n0").status_code == 200
    for what, (changes, status, code) in WRONG.items():
        before = stage.picture()["hub"]
        problem(report(stage, "n1", **changes), status, code)
        assert stage.picture()["hub"] == before, what
    again = codec.decode(report(stage, "n0").content).message
    assert again.counted, "the same answer as the first time"  # type: ignore[union-attr]
    problem(report(stage, "n1", task=list(stage.tasks["n0"].id)), 409, "task.foreign")
    for name in ("n1", "n2"):
        assert report(stage, name).status_code == 200
    assert np.array_equal(model_of(coordinator, 1), merged(initial(SIZE), *ALL))
    late = codec.decode(report(stage, "n1").content).message
    assert late.counted, "and nothing is counted twice"  # type: ignore[union-attr]
    assert coordinator.job("main")["version"] == 1
    stage.close()


def test_what_comes_back_has_no_filters(coordinator: Inside) -> None:
    """Updates are packed; a model that peers have made is not. The limit is on the same numbers."""
    packed = {"name": "quantize", "bits": 8, "bucket": 4}
    stage = set_up(coordinator, gossip=GOSSIP, filters=[packed], limits={"update_norm_max": 50.0})
    coordinator.post("/jobs/main/switch", {"to": "gossip"})
    tasks(stage, *ALL, recall=False)
    coordinator.post("/jobs/main/switch", {"to": "server"})
    tasks(stage, *ALL, recall=True)
    problem(report(stage, "n0", values=np.full(SIZE, 40.0, np.float32)), 422, "update.norm")
    for name in ALL:
        assert report(stage, name).status_code == 200
    assert np.array_equal(model_of(coordinator, 1), merged(initial(SIZE), *ALL))
    stage.close()


@pytest.mark.parametrize("size", [66_000])
def test_large_models_come_back_before_their_reports(coordinator: Inside, size: int) -> None:
    stage = set_up(coordinator, size=size, gossip=GOSSIP)
    coordinator.post("/jobs/main/switch", {"to": "gossip"})
    tasks(stage, *ALL, recall=False)
    coordinator.post("/jobs/main/switch", {"to": "server"})
    tasks(stage, *ALL, recall=True)
    for name in ALL:
        head, data = stage.frame(moved(name, size), name, weight=weight(name))
        digest = codec.decode(head).message.blob.digest  # type: ignore[union-attr]
        assert stage.send(name, "PUT", f"/jobs/main/blobs/{digest}", content=data).status_code == 201
        assert stage.send(name, "POST", "/jobs/main/reports", content=head).status_code == 200
    assert np.array_equal(model_of(coordinator, 1), merged(initial(size), *ALL))
    stage.close()


def test_who_does_not_answer_is_not_waited_for(coordinator: Inside) -> None:
    stage = set_up(coordinator, gossip=GOSSIP)
    coordinator.post("/jobs/main/switch", {"to": "gossip"})
    tasks(stage, *ALL, recall=False)
    coordinator.post("/jobs/main/switch", {"to": "server"})
    assert report(stage, "n0").status_code == 200
    later(coordinator, GOSSIP["handback_timeout_s"] / 2)
    assert coordinator.job("main")["mode"] == "returning"
    later(coordinator, GOSSIP["handback_timeout_s"] / 2)
    job = coordinator.job("main")
    assert (job["mode"], job["version"]) == ("server", 1)
    assert np.array_equal(model_of(coordinator, 1), merged(initial(SIZE), "n0"))
    late = codec.decode(report(stage, "n1").content).message
    assert not late.counted, "it counts for nothing any more: the node joins with what it has"  # type: ignore[union-attr]
    stage.close()


# Nodes that went by themselves


def ask(stage: Stage, node: str, what: str, values: dict[str, Any], job: str = "main") -> httpx.Response:
    return stage.send(node, "POST", f"/jobs/{job}/{what}", json=values)


def test_a_node_that_comes_back_has_all_hand_back(stage: Stage) -> None:
    answer = ask(stage, "n2", "join", {"gossip_rounds": [4, 12]})
    frame = codec.decode(answer.content)
    assert isinstance(frame.message, Task)
    assert (frame.message.kind, frame.message.recall, frame.payload) == ("gossip", True, body(initial(SIZE)))
    assert stage.running.job("main")["mode"] == "returning"
    again = codec.decode(ask(stage, "n2", "join", {"gossip_rounds": [4, 12]}).content)
    assert again.message == frame.message
    tasks(stage, *ALL, recall=True)
    for name in ALL:
        assert report(stage, name).status_code == 200
    assert stage.running.job("main")["mode"] == "server"
    assert np.array_equal(model_of(stage.running, 1), merged(initial(SIZE), *ALL))
    assert "n2 has carried on" in stage.running.events("main", "mode")[0]["text"]


def test_a_node_that_was_never_away_joins_and_nothing_moves(stage: Stage) -> None:
    standing = codec.decode(ask(stage, "n0", "join", {}).content).message
    assert standing == stage.tasks["n0"]
    assert stage.running.job("main")["mode"] == "server"


def test_a_ping_is_answered_and_leaves_no_trace(stage: Stage) -> None:
    before, seen = stage.picture(), stage.running.coordinator.nodes.presence._last_seen["n2"]
    for term in (-1, 0):
        assert ask(stage, "n2", "ping", {"term": term}).json() == {"term": 1, "ttl_s": 7.5}
    assert stage.picture() == before
    assert stage.running.coordinator.nodes.presence._last_seen["n2"] == seen, "no sign of life"


def test_a_ping_raises_the_term_above_its_own(stage: Stage) -> None:
    events = stage.picture()["events"][0][0]
    assert ask(stage, "n2", "ping", {"term": 4}).json()["term"] == 5
    assert ask(stage, "n2", "ping", {"term": 4}).json()["term"] == 5
    assert stage.picture()["events"][0][0] == events + 1
    stage.running.post("/jobs/main/switch", {"to": "gossip"})
    tasks(stage, *ALL, recall=False)
    assert {task.id[0] for task in stage.tasks.values()} == {5}
    problem(ask(stage, "n2", "ping", {"term": 5 + 1001}), 409, "term.leap")
    problem(ask(stage, "n2", "ping", {"term": -2}), 422, "request.invalid")
    problem(ask(stage, "n2", "ping", {"term": 2**70}), 422, "request.invalid")
    problem(ask(stage, "n2", "join", {"gossip_rounds": [1]}), 422, "request.invalid")
    problem(ask(stage, "n2", "join", {"gossip_rounds": [-1, 0]}), 422, "request.invalid")


def test_where_gossip_is_not_allowed_nobody_was_away(coordinator: Inside) -> None:
    stage = set_up(coordinator)
    for what, values in (("ping", {"term": 3}), ("join", {"gossip_rounds": [3, 1]})):
        problem(ask(stage, "n0", what, values), 409, "gossip.not-allowed")
        problem(ask(stage, "n0", what, values, job="nope"), 404, "job.unknown")
    assert coordinator.job("main")["mode"] == "server"
    stage.close()


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after a restart"])
def test_an_ended_job_says_so(server: Callable[..., Server], again: bool) -> None:
    running = server().start()
    running.begin("main", nodes=2, gossip=GOSSIP)
    node = by_hand(running, "n0", {"main": SIZE})  # type: ignore[arg-type]
    running.post("/jobs/main/stop", {"why": "enough"})
    if again:
        until("the end", lambda: running.job("main")["ended_at"])
        running.end()
        running.start()
    found = problem(node.ask("POST", "/jobs/main/ping", json={"term": 3}), 410, "job.over")
    assert again or "enough" in found["detail"]
    said = codec.decode(node.ask("POST", "/jobs/main/join", json={"gossip_rounds": [3, 1]}).content).message
    assert isinstance(said, Stop)
    assert again or "enough" in said.why
    node.client.close()
