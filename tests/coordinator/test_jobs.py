"""Jobs from beginning to end: the model that comes out, and what operators may do to them on the way."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from tests.support.clients import client
from tests.support.coordinator import OPERATOR, Inside, Server, inside
from tests.support.history import check, final, predicted
from tests.support.node import History, Node, advance, body, initial
from tests.support.scenario import problem, set_up, task_of
from tests.support.sse import listening
from tests.support.waiting import pause, until

Swarm = Callable[..., list[Node]]


def done(running: Any, *jobs: str) -> None:
    for job in jobs:
        until("the job to have ended", lambda job=job: running.job(job)["ended_at"])


@pytest.mark.parametrize(("size", "sums"), [(1, "float64"), (66_000, "float64"), (66_000, "fixed")])
def test_the_model_is_the_predicted_one(coordinator: Inside, swarm: Swarm, sums: str, size: int) -> None:
    history = History()
    coordinator.begin("a", nodes=3, rounds=4, aggregation_precision=sums)
    for node in swarm(coordinator, 3, {"a": size}, history):
        node.finish()
    done(coordinator, "a")
    check(coordinator, history, {"a": size}, {"a": sums}, nodes=3)
    assert final(coordinator, "a") == predicted(size, 4, ("n0", "n1", "n2"), sums)


def test_what_is_told_of_a_job_is_so(coordinator: Inside, swarm: Swarm) -> None:
    made = coordinator.begin("a", nodes=2, rounds=4, title="A title", algorithm={"name": "fedavg", "lr": 0.5})
    assert made["state"] == "waiting"
    assert made["title"] == "A title"
    assert made["spec"]["algorithm"]["lr"] == 0.5
    for node in swarm(coordinator, 2, {"a": 10}):
        node.finish()
    done(coordinator, "a")
    job, versions = coordinator.job("a"), coordinator.get("/jobs/a/versions")["versions"]
    assert (job["state"], job["version"], job["versions"], job["progress"]) == ("done", 4, 4, 1.0)
    assert job["state_why"] == "4 versions, measured by 2 nodes"
    assert job["model"] == {"digest": versions[-1]["digest"], "bytes": versions[-1]["bytes"], "parameters": 10}
    assert [version["number"] for version in versions] == [0, 1, 2, 3, 4]
    assert [version["reports"] for version in versions] == [0, 2, 2, 2, 2]
    for version in versions:  # nodes say version/1024 of the model that they were sent
        assert version["metrics"]["eval/accuracy"] == version["number"] / 1024
        assert version["metrics"]["eval/examples"] == 16
    assert job["best"] == {"accuracy": 4 / 1024, "version": 4, "nodes": 2}
    assert job["started_at"] <= versions[1]["opened_at"] <= versions[1]["closed_at"] <= job["ended_at"]
    assert coordinator.get("/jobs/a/versions", after=2)["versions"] == versions[3:]
    thin = [version["number"] for version in coordinator.get("/jobs/a/versions", points=2)["versions"]]
    assert thin == [0, 4]
    model = load(coordinator.request("GET", "/api/v1/jobs/a/models/4").content)
    assert set(model) == {"w"}
    nodes = coordinator.get("/jobs/a/nodes")["nodes"]
    assert [(node["name"], node["failures"]) for node in nodes] == [("n0", 0), ("n1", 0)]
    assert sorted(node["reports"] for node in nodes) == [5, 6]  # four updates and an evaluation; one made the model


def lasting(value: Any) -> Any:
    """Return the views that do not change after a job's end: nodes still ask once whether it has ended."""
    if isinstance(value, list):
        return [lasting(inner) for inner in value]
    if isinstance(value, dict):
        passing = ("up_bytes", "down_bytes", "last_seen_s", "rows", "total")
        return {name: lasting(inner) for name, inner in value.items() if name not in passing}
    return value


def test_an_ended_job_is_told_of_the_same_after_a_restart(server: Callable[..., Server], swarm: Swarm) -> None:
    running = server().start()
    running.begin("a", nodes=2, rounds=2)
    for node in swarm(running, 2, {"a": 10}):
        node.finish()
    done(running, "a")
    paths = ["/jobs/a", "/jobs/a/versions", "/jobs/a/events", "/jobs/a/nodes", "/jobs/a/traffic"]
    before = {path: lasting(running.get(path)) for path in paths}
    running.end()
    running.start()
    for path in paths:
        assert lasting(running.get(path)) == before[path], path
    for what in ("pause", "resume", "stop"):
        problem(running.request("POST", f"/api/v1/jobs/a/{what}", json={}), 409, "job.ended")
    assert hashlib.sha256(running.request("GET", "/api/v1/jobs/a/models/2").content).hexdigest() == final(running, "a")
    problem(running.request("POST", "/api/v1/jobs", json={"spec": {"name": "a"}}), 409, "job.exists")


def test_an_ended_job_takes_no_more_orders_from_people(coordinator: Inside) -> None:
    coordinator.begin("a", nodes=1)
    assert coordinator.post("/jobs/a/stop", {"why": "never mind"})["state"] == "stopped"
    for what in ("pause", "resume", "stop"):
        problem(coordinator.request("POST", f"/api/v1/jobs/a/{what}", json={}), 409, "job.ended")
    done(coordinator, "a")
    assert "never mind" in coordinator.events("a", "state")[-1]["text"]


def test_pause_and_resume(coordinator: Inside) -> None:
    stage = set_up(coordinator)
    paused = coordinator.post("/jobs/main/pause", {"why": "lunch"})
    assert (paused["state"], paused["state_why"], paused["version"]) == ("paused", "lunch", 0)
    for name in ("n0", "n1"):
        assert stage.report(node=name).status_code == 200, "reports that come still count"
    assert coordinator.job("main")["version"] == 0
    again = coordinator.post("/jobs/main/pause", {"why": "more lunch"})
    assert again["state"] == "paused"
    assert coordinator.post("/jobs/main/resume")["state"] == "running"
    assert coordinator.job("main")["version"] == 1
    until("the events", lambda: len(coordinator.events("main", "state")) == 3)
    texts = [event["text"] for event in coordinator.events("main", "state")]
    assert texts[1:] == ["paused: lunch", "resumed: by an operator"]
    stage.close()


def test_a_pause_outlives_the_process(server: Callable[..., Server], swarm: Swarm) -> None:
    running, history = server().start(), History()
    running.begin("a", nodes=2, rounds=30)
    nodes = swarm(running, 2, {"a": 10}, history)
    until("a version", lambda: running.job("a")["version"] > 2)
    running.post("/jobs/a/pause", {"why": "lunch"})
    running.kill()
    running.start()
    paused = running.job("a")
    assert (paused["state"], paused["state_why"]) == ("paused", "lunch")
    pause(0.2)
    assert running.job("a")["version"] == paused["version"]
    running.post("/jobs/a/resume")
    for node in nodes:
        node.finish()
    check(running, history, {"a": 10}, {}, nodes=2)
    assert final(running, "a") == predicted(10, 30, ("n0", "n1"))


@pytest.mark.parametrize("when", ["now", "round"])
def test_stop(coordinator: Inside, when: str) -> None:
    stage = set_up(coordinator)
    assert stage.report(node="n0").status_code == 200
    answer = coordinator.post("/jobs/main/stop", {"why": "enough", "when": when})
    assert answer["state"] == ("stopped" if when == "now" else "running")
    assert answer["state_why"] == ("enough" if when == "now" else "stops after this round: enough")
    assert stage.report(node="n1").status_code == 200
    if when == "round":
        for node in stage.nodes[:2]:
            task, _ = task_of(node, "main")
            assert task.kind == "evaluate"
            assert node.report("main", task).counted
        task, _ = task_of(stage.nodes[2], "main")
        assert stage.nodes[2].report("main", task).counted
    done(coordinator, "main")
    job = coordinator.job("main")
    assert (job["state"], job["version"]) == ("stopped", int(when == "round"))
    assert job["state_why"] == "enough"  # the reason alone: the state stands beside it
    stage.close()


def put_model(running: Inside, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    assert running.request("PUT", f"/api/v1/blobs/{digest}", content=data).status_code == 201
    return digest


@pytest.mark.parametrize("size", [10, 66_000])
def test_a_start_model(coordinator: Inside, swarm: Swarm, size: int) -> None:
    start = np.linspace(-1, 1, size, dtype=np.float32)
    digest = put_model(coordinator, body(start))
    assert coordinator.request("PUT", f"/api/v1/blobs/{digest}", content=body(start)).status_code == 200
    coordinator.begin("a", nodes=2, rounds=1, start=digest)
    for node in swarm(coordinator, 2, {"a": size}):
        node.finish()
    done(coordinator, "a")
    versions = coordinator.get("/jobs/a/versions")["versions"]
    assert versions[0]["digest"] == digest
    assert versions[0]["why"] == "initial model given with the job"
    found = coordinator.request("GET", "/api/v1/jobs/a/models/1").content
    assert found == body(advance(start, 0, ("n0", "n1")))


def test_a_start_model_survives_a_kill_before_the_first_node(server: Callable[..., Server], swarm: Swarm) -> None:
    running = server().start()
    digest = hashlib.sha256(body(initial(10))).hexdigest()
    assert running.request("PUT", f"/api/v1/blobs/{digest}", content=body(initial(10))).status_code == 201
    running.begin("a", nodes=2, rounds=2, start=digest)
    running.kill()
    running.start()
    for node in swarm(running, 2, {"a": 10}):
        node.finish()
    assert final(running, "a") == predicted(10, 2, ("n0", "n1"))


def test_reading_while_jobs_are_made(coordinator: Inside) -> None:
    """A job in the making must not break those who look."""
    statuses: set[int] = set()
    stop = threading.Event()

    def look() -> None:
        with client(headers={"Authorization": f"Bearer {OPERATOR}"}) as asking:
            while not stop.is_set():
                for path in ("/jobs", "/jobs/j5", "/jobs/j5/nodes", "/jobs/j5/versions"):
                    statuses.add(asking.get(f"{coordinator.url}/api/v1{path}").status_code)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(10):
        coordinator.begin(f"j{number}", nodes=1)
    stop.set()
    for thread in threads:
        thread.join()
    assert statuses == {200, 404}


def test_two_operators_make_one_job(coordinator: Inside) -> None:
    answers: list[httpx.Response] = []

    def make() -> None:
        with client(headers={"Authorization": f"Bearer {OPERATOR}"}) as asking:
            answers.append(asking.post(f"{coordinator.url}/api/v1/jobs", json={"spec": {"name": "one"}}))

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 5


def test_a_patience_beyond_all_timers_does_no_harm(coordinator: Inside, swarm: Swarm) -> None:
    coordinator.begin("a", nodes=2, rounds=2, init_timeout_s=1e9)
    for node in swarm(coordinator, 2, {"a": 10}):
        node.finish()
    assert final(coordinator, "a") == predicted(10, 2, ("n0", "n1"))


def test_a_node_that_fails_too_often_is_not_asked_again(coordinator: Inside) -> None:
    stage = set_up(coordinator, schedule={"cohort": 2, "min_nodes": 2})
    node = stage.nodes[0]
    node.fail("main", stage.tasks["n0"])
    found = next(n for n in coordinator.get("/jobs/main/nodes")["nodes"] if n["name"] == "n0")
    assert (found["failures"], found["last_error"]) == (1, "no luck")
    warned = until("the warning", lambda: coordinator.events("main", "warning"))
    assert warned[-1]["text"].startswith("n0 failed: no luck")
    stage.close()


def test_the_held_out_evaluation_is_made_up_for_after_a_crash(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A job must not end without the measurement of its last version because the process did."""
    folder = tmp_path_factory.mktemp("held") / "data"
    held_out = {"learner": "tests.support.learners:evaluating"}
    with inside(folder) as running:
        stage = set_up(running, held_out=held_out)
        until("the first measurement", lambda: "held_out/accuracy" in running.job("main")["metrics"])
        running.coordinator.parts.lifecycle.evaluator.add = lambda *_: None  # type: ignore[method-assign] - the crash comes before it
        for name in ("n0", "n1"):
            assert stage.report(node=name).status_code == 200
        until("the version", lambda: len(running.rows("SELECT 1 FROM versions")) == 2)
        pause(0.6)
        stage.close()
    with inside(folder) as running:
        until(
            "the measurement of version 1",
            lambda: "held_out/accuracy" in running.get("/jobs/main/versions")["versions"][1]["metrics"],
        )
    assert json.loads(running.rows("SELECT metrics FROM versions WHERE number = 1")[0][0])["held_out/accuracy"] == 0.5


def test_a_job_that_waits_says_so_and_not_when_it_will_end(coordinator: Inside) -> None:
    with listening(coordinator.url) as events:
        stage = set_up(coordinator, rounds=9)
        running = coordinator.job("main")
        assert (running["idle"], running["state_why"]) == (False, "round 1: 0 of 2 reports")
        for node in ("n0", "n1"):
            assert stage.report(node=node).status_code == 200
        until("the first round", lambda: coordinator.job("main")["version"] == 1)
        assert coordinator.job("main")["eta_s"] is not None
        stage.dismiss("n1")
        stage.dismiss("n2")
        stage.dismiss("n0")
        waits = coordinator.job("main")
        assert (waits["state"], waits["idle"], waits["eta_s"]) == ("running", True, None)
        assert waits["state_why"] == "round 2: no node is ready"
        for event in events:
            if event.name == "job" and event.data["idle"] and event.data["state_why"] == waits["state_why"]:
                break
        stage.close()
