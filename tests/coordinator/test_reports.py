"""Metrics and durations of counted reports are kept, survive restarts, and can be drawn."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import insert

from shoal.core.server.roster import GIVEN_KEPT
from shoal_coordinator.storage.tables import reports as table
from shoal_coordinator.telemetry import report_store
from shoal_coordinator.telemetry.task_timing import Phases, TaskTimer, TaskTimers
from tests.support.coordinator import Inside, Server, inside
from tests.support.node import History
from tests.support.scenario import Stage, problem, set_up
from tests.support.waiting import PATIENCE_S, until

PHASES = ("wait_s", "download_s", "train_s", "upload_s", "fold_s")


def kept(running: Inside | Server, **asked: Any) -> list[dict[str, Any]]:
    return list(running.get("/jobs/main/reports", **asked)["reports"])


def both(stage: Stage) -> list[dict[str, Any]]:
    """Two reports on the model of version 0, and what is kept of them."""
    for node, loss in (("n0", 0.5), ("n1", 1.5)):
        assert stage.report(node=node, metrics={"train/loss": loss, "eval/accuracy": 0.25}).status_code == 200
    until("both to be written down", lambda: len(kept(stage.running)) == 2)
    return kept(stage.running)


@pytest.fixture
def stage(tmp_path: Path) -> Any:
    with inside(tmp_path / "data", poll_s_max=2 * PATIENCE_S) as running:
        made = set_up(running)
        yield made
        made.close()


def test_a_report_is_kept_with_its_numbers_and_phases(stage: Stage) -> None:
    first, second = both(stage)
    assert [one["node"] for one in (first, second)] == ["n0", "n1"]
    for one in (first, second):
        assert (one["kind"], one["version"], one["round"], one["staleness"]) == ("train", 0, 1, 0)
        assert one["metrics"]["eval/accuracy"] == 0.25
        assert one["norm"] > 0
        assert one["weight"] == 5.0
        assert all(one["phases"][name] >= 0 for name in PHASES)
        assert sum(one["phases"].values()) == pytest.approx(one["seconds"])
        assert one["task"] == ".".join(map(str, stage.tasks[one["node"]].id))


def test_the_model_that_starts_a_job_is_no_report_of_a_round(stage: Stage) -> None:
    assert kept(stage.running) == []


def test_a_report_that_is_sent_again_is_one(stage: Stage) -> None:
    assert stage.report(node="n0").status_code == 200
    assert stage.report(node="n0").status_code == 200
    until("the other", lambda: both_of(stage))
    assert [one["node"] for one in kept(stage.running)] == ["n0", "n1"]


def both_of(stage: Stage) -> bool:
    stage.report(node="n1")
    return len(kept(stage.running)) >= 2


def test_an_order_that_is_overtaken_keeps_its_phases(stage: Stage) -> None:
    """The last report of a round makes the next task stand, which an open poll brings before the acknowledgement."""
    running, mine = stage.running, stage.tasks["n1"].id
    doing = running.coordinator.nodes.presence.activity["main", "n1"]
    answers: list[int] = []
    held = {"wait_s": 2 * PATIENCE_S, "held": f"main:{mine[0]}.{mine[1]}"}
    poll = threading.Thread(target=lambda: answers.append(stage.send("n1", "GET", "/work", params=held).status_code))
    finish, overtaken = type(doing).finish_task, threading.Event()

    def late(self: Any, *said: Any) -> None:  # on the coordinator's loop: by then the poll has been answered
        if self is doing and self.task != mine:
            overtaken.set()
        finish(self, *said)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(doing), "finish_task", late)
        poll.start()
        until("the poll to be open", lambda: running.coordinator.nodes.presence._open_polls["n1"])
        assert stage.report(node="n0").status_code == 200
        assert stage.report(node="n1").status_code == 200
        poll.join(PATIENCE_S)
    assert answers == [200]
    until("the reports", lambda: len(kept(running)) == 2)
    (one,) = kept(running, node="n1")
    assert all(one["phases"][name] is not None for name in PHASES)
    (row,) = [node for node in running.get("/jobs/main/nodes")["nodes"] if node["name"] == "n1"]
    assert row["seconds"] is not None
    if overtaken.is_set():
        assert row["progress"] == 0.0, "the next task is not done because the last one is"


def test_a_restart_writes_nothing_twice_and_loses_no_phase(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with inside(folder) as running:
        stage = set_up(running)
        before = both(stage)
        stage.close()
    with inside(folder) as running:
        assert kept(running) == before


def test_a_crash_loses_no_report_only_how_long_it_took(server: Callable[..., Server], swarm: Any) -> None:
    """Killed between the journal and what people read: the replay writes the row, but has not taken its time."""
    running = server().start(crash="runner.fed#14")
    running.begin("main", nodes=2, rounds=12)
    history = History()
    nodes = swarm(running, 2, {"main": 10}, history)
    until("the crash", lambda: running.ended() is not None)
    running.start()
    for node in nodes:
        node.finish()
    until("the end", lambda: running.job("main")["ended_at"])
    trained = [one for one in kept(running) if one["kind"] == "train"]
    assert [(one["version"], one["round"]) for one in trained] == [(n, n + 1) for n in range(12) for _ in range(2)]
    told = {(node, task) for _, node, task, _, counted in history.acks if counted}
    assert {(one["node"], tuple(map(int, one["task"].split(".")))) for one in trained} >= told
    assert [one["round"] for one in kept(running) if one["kind"] == "evaluate"] == [None, None]
    untimed = [one for one in trained if one["seconds"] is None]
    assert 1 <= len(untimed) <= 2
    assert all(one["phases"]["train_s"] is not None for one in trained[-2:])


def test_only_the_newest_are_kept(stage: Stage) -> None:
    both(stage)

    async def trim() -> None:
        await stage.running.coordinator.database.write(lambda c: report_store.trim_reports(c, "main", 1))

    stage.running.call(trim())
    assert [one["node"] for one in kept(stage.running)] == ["n1"]


# Phases


def test_moments_make_phases() -> None:
    phases = TaskTimer(given=1.0, sent=2.0, have=4.0, begun=8.0, came=16.0).phases(32.0)
    assert phases == Phases(31.0, 1.0, 2.0, 4.0, 8.0, 16.0)
    assert TaskTimer(sent=2.0, have=2.0).so_far(7.0) == Phases(5.0, None, 0.0, 5.0, None, None)
    assert TaskTimer(begun=3.0, came=4.0).phases(6.0) == Phases(3.0, None, None, None, 1.0, 2.0), "after a restart"


def test_orders_are_watched_apart_and_a_few_of_each_node() -> None:
    clock = iter(range(1000))
    watches = TaskTimers(lambda: float(next(clock)))
    watches.given("a", (1, 1))
    watches.sent("a", (1, 1))
    watches.given("a", (1, 2))
    watches.sent("a", (1, 2))
    watches.came("a", (1, 1))
    assert watches.finish("a", (1, 1)).wait_s == 1.0
    assert watches.finish("a", (1, 1)) == Phases(), "once"
    for n in range(3, 3 + GIVEN_KEPT):
        watches.given("a", (1, n))
    assert watches.finish("a", (1, 2)) == Phases(), "the oldest is forgotten"
    assert watches.so_far("a", (1, 3)).wait_s is not None


# Charts


_seq = itertools.count(10_000)


def fill(running: Inside, values: dict[str, list[float]], name: str = "train/loss") -> None:
    """Put reports of job main into the table: of each client one for each round."""
    rows = [
        {
            "job": "main",
            "seq": next(_seq),
            "node": node,
            "task": f"1.{number}",
            "kind": "train",
            "version": number,
            "round": number + 1,
            "staleness": number % 3,
            "weight": 1.0,
            "norm": 2.0 * number,
            "metrics": {name: value if math.isfinite(value) else "NaN"},
            "now": float(number),
            "at": 0.0,
        }
        for place, (node, of_node) in enumerate(values.items())
        for number, value in enumerate(of_node)
    ]

    async def put() -> None:
        await running.coordinator.database.write(lambda c: c.execute(insert(table), rows))

    running.call(put())


VALUES = {f"c{place}": [float(10 * place + number) for number in range(20)] for place in range(11)}


@pytest.fixture
def filled(coordinator: Inside) -> Inside:
    coordinator.begin("main", nodes=2)
    fill(coordinator, VALUES)
    return coordinator


def test_the_heat_map(filled: Inside) -> None:
    found = filled.get("/jobs/main/reports/heatmap", metric="train/loss")
    assert (found["rounds"], found["step"], found["nodes"], found["next"]) == (list(range(20)), 1, 11, None)
    assert {row["node"]: row["values"] for row in found["rows"]} == VALUES
    assert {"train/loss", "seconds", "up_bytes", "norm", "staleness"} <= set(found["metrics"])
    assert filled.get("/jobs/main/reports/heatmap", metric="norm")["rounds"] == list(range(1, 21)), (
        "the rounds that they made"
    )
    assert filled.get("/jobs/main/reports/heatmap", metric="nobody/knows")["rows"][0]["values"] == [None] * 20


def test_the_heat_map_is_thinned_and_paged(filled: Inside) -> None:
    found = filled.get("/jobs/main/reports/heatmap", metric="train/loss", points=7, limit=2)
    assert (found["rounds"], found["step"]) == (list(range(0, 20, 3)), 3)
    assert [row["node"] for row in found["rows"]] == ["c0", "c1"]
    assert found["rows"][0]["values"] == [1.0, 4.0, 7.0, 10.0, 13.0, 16.0, 18.5]
    assert found["next"] == "c1"
    rest = filled.get("/jobs/main/reports/heatmap", metric="train/loss", points=7, after="c1", limit=500)
    assert [row["node"] for row in rest["rows"]] == sorted(set(VALUES) - {"c0", "c1"})
    assert rest["next"] is None
    late = filled.get("/jobs/main/reports/heatmap", metric="train/loss", since=18)
    assert (late["rounds"], late["rows"][0]["values"]) == ([18, 19], [18.0, 19.0])


def test_what_diverged_is_told_whatever_is_thinned(filled: Inside) -> None:
    fill(filled, {"x": [1.0, 2.0, math.nan, 4.0]})
    found = filled.get("/jobs/main/reports/heatmap", metric="train/loss", points=10, after="c9")
    assert found["rows"] == [{"node": "x", "values": [1.5, "NaN", *[None] * 8]}]
    bands = filled.get("/jobs/main/reports/quantiles", metric="train/loss")
    assert bands["diverged"][:4] == [0, 0, 1, 0]
    assert bands["clients"][:5] == [12, 12, 12, 12, 11]
    assert bands["mean"][2] == pytest.approx(np.mean([of[2] for of in VALUES.values()]))
    series = filled.get("/jobs/main/nodes/x/reports/series", metric="train/loss")
    assert series["values"][:5] == [
        1.0,
        2.0,
        "NaN",
        4.0,
        None,
    ]


def test_the_bands(filled: Inside) -> None:
    found = filled.get("/jobs/main/reports/quantiles", metric="train/loss")
    of = np.array(list(VALUES.values()))
    assert found["mean"] == pytest.approx(of.mean(0).tolist())
    assert found["low"] == pytest.approx(np.percentile(of, 10, axis=0).tolist())
    assert found["high"] == pytest.approx(np.percentile(of, 90, axis=0).tolist())
    assert found["clients"] == [11] * 20


def test_late_reports_lie_at_the_version_to_whose_mean_they_counted(coordinator: Inside) -> None:
    """A buffer's mean is over each client's last measurement; so is the band beside it."""
    coordinator.post("/jobs", {"spec": {"name": "main", "rounds": 5, "preset": "fedbuff"}})
    two = {node: values[:2] for node, values in VALUES.items()}  # they count at versions 0 and 2, as the second is late
    fill(coordinator, two | {"c0": [7.0] * 3}, "eval/loss")  # at versions 0, 2 and 4
    found = coordinator.get("/jobs/main/reports/quantiles", metric="eval/loss")
    assert found["rounds"] == [0, 1, 2, 3, 4]
    assert found["clients"] == [11] * 5
    last = np.array([7.0, *(10.0 * place + 1 for place in range(1, 11))])
    assert found["mean"][2:] == pytest.approx([last.mean()] * 3)
    assert found["high"][2:] == pytest.approx([np.percentile(last, 90)] * 3)
    later = coordinator.get("/jobs/main/reports/quantiles", metric="eval/loss", since=3)
    assert (later["rounds"], later["mean"]) == ([4], found["mean"][4:])


def test_one_clients_line(filled: Inside) -> None:
    found = filled.get("/jobs/main/nodes/c3/reports/series", metric="staleness", points=10)
    assert found["rounds"] == list(range(1, 21, 2))
    assert found["values"] == [np.mean([n % 3, (n + 1) % 3]) for n in range(0, 20, 2)]


def test_report_bytes_equal_the_counted_traffic(stage: Stage) -> None:
    both(stage)
    found = stage.running.get("/jobs/main/reports/heatmap", metric="up_bytes")
    told = stage.running.get("/jobs/main/traffic", by=["version", "node"])["rows"]
    known = {row["node"]: row["bytes"] for row in told if row["version"] == 0 and row["direction"] == "up"}
    assert found["rounds"] == [1]
    shown = {row["node"]: row["values"][0] for row in found["rows"]}
    assert set(shown) == {"n0", "n1"}
    assert all(300 < shown[node] <= known[node] for node in shown)


def test_a_job_without_reports_has_empty_charts(coordinator: Inside) -> None:
    coordinator.begin("main", nodes=2)
    for kind in ("reports/heatmap", "reports/quantiles", "nodes/x/reports/series"):
        assert coordinator.get(f"/jobs/main/{kind}")["rounds"] == []
    assert coordinator.get("/nodes/x/reports") == {"reports": [], "next": None}
    problem(coordinator.request("GET", "/api/v1/jobs/none/reports/heatmap"), 404, "job.unknown")


def test_reports_are_paged_both_ways(filled: Inside) -> None:
    seen: list[int] = []
    page = filled.get("/jobs/main/reports", limit=150)
    while True:
        seen += [one["id"] for one in page["reports"]]
        if page["next"] is None:
            break
        page = filled.get("/jobs/main/reports", limit=150, after=page["next"])
    assert len(seen) == 220
    assert seen == sorted(set(seen))
    newest = filled.get("/nodes/c2/reports", limit=15)
    assert [one["version"] for one in newest["reports"]] == list(range(19, 4, -1))
    older = filled.get("/nodes/c2/reports", before=newest["next"])
    assert [one["version"] for one in older["reports"]] == list(range(4, -1, -1))


# A round


def test_a_round_while_it_is_open_and_when_it_has_closed(coordinator: Inside) -> None:
    stage = set_up(coordinator, schedule={"quorum": 2, "deadline_s": 500.0})
    assert stage.report(node="n1").status_code == 200
    until("the report", lambda: kept(coordinator))
    found = coordinator.get("/jobs/main/rounds/1")
    assert (found["state"], found["asked"], found["quorum"], found["quorum_s"]) == ("open", 2, 2, None)
    assert found["deadline_s"] == 500.0
    counted, waiting = found["clients"]
    assert (counted["node"], waiting["node"]) == ("n1", "n0")
    assert 0 <= counted["start_s"] <= counted["end_s"] <= found["seconds"]
    assert (waiting["end_s"], waiting["phases"]["upload_s"]) == (None, None)
    assert waiting["phases"]["train_s"] > 0
    problem(coordinator.request("GET", "/api/v1/jobs/main/rounds/2"), 404, "round.unknown")
    assert stage.report(node="n0").status_code == 200
    until("the version", lambda: coordinator.job("main")["version"] == 1)
    until("both", lambda: len(kept(coordinator)) == 2)
    found = coordinator.get("/jobs/main/rounds/1")
    assert (found["state"], [one["node"] for one in found["clients"]]) == ("closed", ["n1", "n0"])
    assert found["quorum_s"] == found["clients"][1]["end_s"]
    assert found["why"] == "2 of 2 reports"
    first = coordinator.get("/jobs/main/rounds/1", limit=1)
    assert [one["node"] for one in first["clients"]] == ["n1"]
    rest = coordinator.get("/jobs/main/rounds/1", limit=1, after=first["next"])
    assert ([one["node"] for one in rest["clients"]], rest["next"]) == (["n0"], None)
    coordinator.post("/jobs/main/stop")
    assert coordinator.get("/jobs/main/rounds/1")["clients"] == found["clients"], "also of a job that has ended"
    stage.close()
