"""Each node's influence on a model, and the model's accuracy for each node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.coordinator import Inside
from tests.support.scenario import Stage, problem, set_up
from tests.support.waiting import until


@pytest.fixture
def stage(coordinator: Inside) -> Iterator[Stage]:
    made = set_up(coordinator)
    yield made
    made.close()


def of_nodes(running: Inside) -> dict[str, dict[str, Any]]:
    return {one["node"]: one for one in running.get("/jobs/main/influence")["nodes"]}


def test_shares_are_of_the_weight_of_each_version(stage: Stage) -> None:
    running = stage.running
    assert running.get("/jobs/main/influence")["versions"] == 0
    assert stage.report(node="n0", weight=30.0).status_code == 200
    assert stage.report(node="n1", weight=10.0).status_code == 200
    until("the version", lambda: running.get("/jobs/main/influence")["versions"] == 1)
    found = of_nodes(running)
    assert (found["n0"]["share"], found["n1"]["share"]) == (0.75, 0.25)
    assert found["n0"]["share_most"] == 0.75
    assert found["n0"]["norm_ratio"] == pytest.approx(1.0, rel=0.5)
    assert list(found) == ["n0", "n1"], "the greatest first"


def test_refusals_are_counted_by_node_with_the_limits_that_hold(stage: Stage) -> None:
    running = stage.running
    assert stage.report(node="n1", weight=-1.0).status_code == 422
    until("the refusal", lambda: "n1" in of_nodes(running))
    assert of_nodes(running)["n1"]["refused"] == 1
    page = running.get("/jobs/main/influence")
    assert (page["norm_factor"], page["share_max"]) == (100.0, 0.75)


def test_fairness_is_by_each_nodes_last_report(stage: Stage) -> None:
    running = stage.running
    assert running.get("/jobs/main/fairness")["mean"] is None
    for node, accuracy, loss in (("n0", 0.9, 0.1), ("n1", 0.5, "NaN")):
        metrics = {"eval/accuracy": accuracy, "eval/loss": loss}
        assert stage.report(node=node, metrics=metrics).status_code == 200
    until("both", lambda: running.get("/jobs/main/fairness")["nodes"] == 2)
    found = running.get("/jobs/main/fairness")
    assert found["mean"] == pytest.approx(0.7)
    assert found["spread"] == pytest.approx(0.2)
    assert found["worst"] == {"node": "n1", "value": 0.5}
    assert found["best"] == {"node": "n0", "value": 0.9}
    assert found["decile"] == pytest.approx(0.54)
    loss = running.get("/jobs/main/fairness", metric="eval/loss")
    assert loss["nodes"] == 1, "what is not finite does not count"


def test_of_losses_the_greatest_is_the_worst(stage: Stage) -> None:
    running = stage.running
    for node, loss in (("n0", 1.0), ("n1", 3.0)):
        assert stage.report(node=node, metrics={"train/loss": loss}).status_code == 200
    until("both", lambda: running.get("/jobs/main/fairness", metric="train/loss")["nodes"] == 2)
    found = running.get("/jobs/main/fairness", metric="train/loss")
    assert (found["worst"]["node"], found["decile"]) == ("n1", pytest.approx(2.8))


def test_of_a_job_that_is_not_there(coordinator: Inside) -> None:
    for page in ("influence", "fairness"):
        problem(coordinator.request("GET", f"/api/v1/jobs/nothing/{page}"), 404, "job.unknown")
