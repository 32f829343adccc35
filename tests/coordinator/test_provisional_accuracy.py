"""How good a version is said to be while only some of the nodes that measure it have reported."""

from __future__ import annotations

import itertools

from tests.support.coordinator import Inside
from tests.support.scenario import SIZE, Stage, by_hand, set_up, task_of
from tests.support.sse import listening
from tests.support.waiting import until


def said(accuracy: float, examples: int) -> dict[str, dict[str, float]]:
    return {"metrics": {"eval/accuracy": accuracy, "eval/examples": float(examples)}}


def compared(running: Inside) -> tuple[float | None, float | None]:
    """(last, best) of the job on the page that compares runs."""
    (run,) = running.get("/compare", run="main")["runs"]
    return run["last"], run["best"]


def test_an_accuracy_is_provisional_until_all_have_measured(coordinator: Inside) -> None:
    """It is marked wherever it is told, and is not the best of anything; then it is both no more."""
    stage = set_up(coordinator)  # three members, of which two take part
    assert stage.report(node="n0", **said(0.9, 50)).status_code == 200
    part = {"reported": 1, "asked": 2}
    job = until("the first measurement", lambda: (found := coordinator.job("main"))["metrics"] and found)
    assert (job["metrics"]["eval/accuracy"], job["metrics_version"], job["provisional"], job["best"]) == (
        0.9,
        0,
        part,
        None,
    )
    assert coordinator.get("/jobs/main/versions")["versions"][0]["provisional"] == part
    assert compared(coordinator) == (None, None)
    with listening(coordinator.url, 0, "main") as events:
        told = next(event.data for event in events if event.name == "metrics")
    assert told["provisional"] == part
    assert stage.report(node="n1", **said(0.5, 150)).status_code == 200
    until("version 1", lambda: coordinator.job("main")["version"] == 1)
    until("its row", lambda: len(coordinator.get("/jobs/main/versions")["versions"]) == 2)
    job = coordinator.job("main")
    assert job["provisional"] is None
    assert job["best"] == {"accuracy": 0.6, "version": 0, "nodes": 2}
    assert compared(coordinator) == (0.6, 0.6)
    assert [one["provisional"] for one in coordinator.get("/jobs/main/versions")["versions"]] == [None, None]
    with listening(coordinator.url, 0, "main") as events:
        told = list(itertools.islice((event.data for event in events if event.name == "metrics"), 2))
        assert [one["provisional"] for one in told] == [None, None]
    stage.close()


def test_a_buffers_best_rests_on_all_that_were_at_work(coordinator: Inside) -> None:
    """The first to report are two by chance: what they say together is not a candidate for the best version."""
    schedule = {"name": "buffer", "size": 1, "min_nodes": 2}
    spec = {"name": "main", "rounds": 9, "algorithm": {"name": "fedbuff"}, "schedule": schedule}
    coordinator.post("/jobs", {"spec": spec})
    stage = Stage(coordinator, "main", [by_hand(coordinator, name, {"main": SIZE}) for name in ("n0", "n1")])
    task, _ = task_of(stage.nodes[0], "main")
    assert stage.nodes[0].report("main", task).counted
    stage.tasks = {node.node: task_of(node, "main")[0] for node in stage.nodes}
    for node, accuracy, best in (("n0", 0.9, None), ("n1", 0.5, {"accuracy": 0.6, "version": 1, "nodes": 2})):
        assert stage.report(node=node, **said(accuracy, 50 if node == "n0" else 150)).status_code == 200
        until(
            "its version",
            lambda before=best: len(coordinator.get("/jobs/main/versions")["versions"]) == 2 + bool(before),
        )
        assert coordinator.job("main")["best"] == best
    parts = [one["provisional"] for one in coordinator.get("/jobs/main/versions")["versions"]]
    assert parts == [{"reported": 1, "asked": 2}, None, None]
    stage.close()
