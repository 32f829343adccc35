"""Nodes whose model is not the job's, and jobs whose initial model is none of the nodes': refused by name and shape."""

from __future__ import annotations

import hashlib
from dataclasses import asdict

import numpy as np
import pytest

from shoal.core.model.tree import Layout
from shoal.core.protocol.message import Stop, Task
from shoal.wire import codec
from shoal_coordinator.alerts import alert_rules
from shoal_coordinator.composition import housekeeping
from shoal_coordinator.nodes import presence
from tests.support.coordinator import Inside
from tests.support.node import Node, body
from tests.support.scenario import SIZE, by_hand, problem, set_up, task_of
from tests.support.waiting import until

RIGHT = Layout.of([("w", "F32", (SIZE,))])
WRONG = Layout.of([("w", "F32", (SIZE + 1,)), ("bias", "F32", (2,))])
WHY = "its model differs from the job's (2 tensors, not 1): was it started with the right --learner?"
NAMED = f"{WHY} (bias is one too many, w is F32[11], not F32[10])"


def hello(node: Node, layout: Layout) -> None:
    """A node's process has started, with a learner that has such a model."""
    said = {"info": {"model": asdict(layout.form)}, "layout": layout.shown}
    assert node.ask("POST", "/hello", json=said).status_code == 200


def polled(node: Node) -> Task | Stop | None:
    found = node.ask("GET", "/work", params={"wait_s": 0.05})
    message = codec.decode(found.content).message if found.status_code == 200 else None
    assert message is None or isinstance(message, Task | Stop)
    return message


def test_a_node_with_another_model_is_told_what_differs(coordinator: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "ALERTS_S", 0.02)
    monkeypatch.setattr(alert_rules, "CLEAR_S", 0.1)
    stage = set_up(coordinator)
    late = by_hand(coordinator, "late", {"main": SIZE})
    hello(late, WRONG)
    assert polled(late) == Stop(NAMED, model_differs=True)
    assert polled(late) is None, "it knows"
    (event,) = [event for event in coordinator.events("main", "warning") if event["node"] == "late"]
    assert event["text"] == f"late takes no part: {WHY}"
    alert = until("an alert", lambda: coordinator.get("/alerts", active=True)["alerts"])[0]
    assert (alert["kind"], alert["node"], alert["text"]) == ("model-differs", "late", f"late: {NAMED}")
    monkeypatch.setattr(presence, "MISMATCH_REPEATED_S", 0.0)
    assert polled(late) == Stop(NAMED, model_differs=True), "said again, should it have been lost"
    coordinator.begin("other", nodes=1)
    task, _ = task_of(late, "other")
    assert task.kind == "init", "other jobs are not concerned"
    hello(late, RIGHT)
    until("it to be over", lambda: not coordinator.get("/alerts", active=True)["alerts"])
    assert coordinator.runner("main").hub.eligibility.foreign_models == {}
    stage.nodes.append(late)
    stage.close()


def test_an_initial_model_that_fits_no_node_is_refused_where_nodes_are_there(coordinator: Inside) -> None:
    data = body(np.zeros(SIZE, np.float32))
    digest = hashlib.sha256(data).hexdigest()
    assert coordinator.request("PUT", f"/api/v1/blobs/{digest}", content=data).status_code < 300
    wanted = {"spec": {"name": "main", "rounds": 1}, "start_model": digest}
    node = by_hand(coordinator, "n0")
    hello(node, WRONG)
    found = problem(coordinator.request("POST", "/api/v1/jobs", json=wanted), 422, "job.start-model")
    assert "1 tensor of 10 parameters; beside node n0's: bias is missing, w is F32[10], not F32[11]" in found["detail"]
    silent = by_hand(coordinator, "n2")  # it does not say what its model looks like
    problem(coordinator.request("POST", "/api/v1/jobs", json=wanted), 422, "job.start-model")
    assert coordinator.get("/jobs")["jobs"] == []
    tagged = {**wanted, "spec": {"name": "tagged", "selection": {"name": "uniform", "tags": ["ship"]}}}
    assert coordinator.post("/jobs", tagged)["state_why"].endswith("0 of 1 node ready"), "nobody who is there is asked"
    other = by_hand(coordinator, "n1")
    hello(other, RIGHT)
    assert coordinator.post("/jobs", wanted)["name"] == "main"
    assert isinstance(polled(node), Stop)
    assert coordinator.runner("main").hub.eligibility.foreign_models.keys() == {"n0"}
    for one in (node, other, silent):
        one.client.close()


def test_a_job_waits_for_a_node_that_fits_and_all_that_came_do_not(coordinator: Inside) -> None:
    data = body(np.zeros(SIZE, np.float32))
    digest = hashlib.sha256(data).hexdigest()
    coordinator.request("PUT", f"/api/v1/blobs/{digest}", content=data)
    coordinator.begin("main", nodes=1, start=digest)
    node = by_hand(coordinator, "n0", {"main": SIZE})
    hello(node, WRONG)
    said = polled(node)
    assert isinstance(said, Stop)
    assert "right --learner, or the job with the right --model? (bias is one too many" in said.why
    shown = coordinator.job("main")
    assert shown["idle"]
    assert "ready; not asked: n0: its model differs from the job's" in shown["state_why"]
    node.client.close()


def test_it_is_known_after_a_restart_that_a_node_does_not_fit(coordinator: Inside) -> None:
    stage = set_up(coordinator)
    hello(stage.nodes[2], WRONG)
    runner = coordinator.runner("main")
    coordinator.call(runner._rebuild())
    until("it to be back", lambda: not runner.gate.is_restoring)
    assert runner.hub.eligibility.foreign_models == {"n2": WHY}
    stage.close()
