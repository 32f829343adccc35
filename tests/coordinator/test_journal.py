"""The journal: what is in it is what happened, whatever became of the process, the hub or a row."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shoal.core.algorithm.algorithm import Algorithm, Update
from shoal.core.model.aggregation import Totals
from shoal.core.protocol.message import Join
from shoal.core.server.round_control import RoundControl
from shoal_coordinator.jobs.job_runner import JobRunner
from shoal_coordinator.jobs.journal import skip_event
from tests.support.coordinator import Inside, inside
from tests.support.history import check, final, predicted
from tests.support.node import History, Node
from tests.support.scenario import Stage, problem, set_up, task_of
from tests.support.waiting import PATIENCE_S, until

Swarm = Callable[..., list[Node]]


def seen(stage: Stage) -> dict[str, Any]:
    """Return the state that must survive a restart. Tasks stand; that the process is a new one is not part of it."""
    hub = stage.running.runner(stage.job).hub
    state = hub.snapshot()
    for passing in ("term", "incarnation", "issued", "clock_offset_s"):
        state.pop(passing)
    return {
        "state": state,
        "reports": hub.state.round.reports,
        "weight": hub.state.sum.totals.weight,
        "means": repr(hub.state.sum.means),
    }


@pytest.mark.parametrize("reported", [(), ("n0",), ("n0", "n1"), ("n1", "n0")])
def test_a_restart_restores_the_hub(tmp_path: Path, reported: tuple[str, ...]) -> None:
    folder = tmp_path / "data"
    with inside(folder) as running:
        stage = set_up(running)
        for node in reported:
            assert stage.report(node=node).status_code == 200
        before, tasks = seen(stage), dict(stage.tasks)
        stage.close()
    for term in (2, 3):
        with inside(folder) as running:
            stage.running = running
            assert seen(stage) == before
            assert running.runner("main").hub.tasks.term == term
            for name in set(tasks) - set(reported):
                assert running.runner("main").task_of(name) == tasks[name], "the task stands as it was given"


def test_what_people_read_is_written_again_if_a_crash_prevented_it(tmp_path: Path, swarm: Swarm) -> None:
    """Versions, job events and metrics follow from the journal: lost rows come back, and nothing is told twice."""
    folder = tmp_path / "data"
    with inside(folder) as running:
        stage = set_up(running)
        assert stage.report(node="n0").status_code == 200
        stage.close()
        running.coordinator.drain()
    tables = {"feed": "SELECT seq, part, topic, data FROM job_events WHERE seq > 0 ORDER BY seq, part"}
    tables["versions"] = "SELECT number, digest, reports, metrics FROM versions"
    with closing(sqlite3.connect(folder / "shoal.db")) as connection:
        before = {name: connection.execute(query).fetchall() for name, query in tables.items()}
    last = max(row[0] for row in before["feed"])
    for seq in range(last + 1, 0, -1):
        with closing(sqlite3.connect(folder / "shoal.db")) as connection, connection:
            snapshot = connection.execute("SELECT max(seq) FROM snapshots").fetchone()[0]
            connection.execute("DELETE FROM job_events WHERE seq >= ? AND seq > ?", (seq, snapshot or 0))
        with inside(folder) as running:
            found = {name: running.rows(query) for name, query in tables.items()}
        for row in before["feed"]:
            assert row in found["feed"]
        assert found["versions"] == before["versions"]
        assert len(found["feed"]) == len({row[:2] for row in found["feed"]})


def planted(folder: Path, event: str) -> int:
    """Append an event to the journal that should never have got there; its number."""
    with closing(sqlite3.connect(folder / "shoal.db")) as connection, connection:
        seq, now = connection.execute("SELECT max(seq) + 1, max(now) FROM journal").fetchone()
        row = ("main", seq, now, 0.0, event, False)
        connection.execute("INSERT INTO journal (job, seq, now, at, event, skipped) VALUES (?, ?, ?, ?, ?, ?)", row)
    return int(seq)


@pytest.mark.parametrize(
    "event",
    [
        '{"type": "nonsense"}',
        '{"type": "report", "node": "n0"}',
        '{"type": "timer", "more": 1}',
        "[]",
        "null",
        '{"type": "poll", "node": "../x"}',
    ],
)
def test_an_event_that_nobody_understands_is_set_aside(tmp_path: Path, event: str) -> None:
    """A later release's, or a damaged one: the job goes on, and says so."""
    folder = tmp_path / "data"
    with inside(folder) as running:
        stage = set_up(running)
        assert stage.report(node="n0").status_code == 200
        stage.close()
    seq = planted(folder, event)
    with inside(folder) as running:
        assert running.rows("SELECT seq FROM journal WHERE skipped") == [(seq,)]
        warnings = until("the warning", lambda: running.events("main", "warning"))
        assert f"event {seq} " in warnings[-1]["text"]
        assert [report.node for report in running.runner("main").hub.state.round.reports] == ["n0"]
    with inside(folder) as running:
        assert len(running.events("main", "warning")) == 1


def test_an_event_that_breaks_the_hub_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swarm: Swarm
) -> None:
    """A bug that one report meets must not end the job, nor stop the coordinator from starting."""
    fold = Algorithm.fold

    def buggy(self: Algorithm, totals: Totals, update: Update, discount: float) -> Totals:
        if update.weight == 13.0:
            raise ZeroDivisionError("planted")
        return fold(self, totals, update, discount)

    monkeypatch.setattr(Algorithm, "fold", buggy)
    folder = tmp_path / "data"
    with inside(folder) as running:
        stage = set_up(running)
        assert stage.report(node="n1").status_code == 200
        problem(stage.report(node="n0", weight=13.0), 503, "storage.failed")
        warnings = until("the warning", lambda: running.events("main", "warning"))
        assert "planted" in warnings[-1]["text"]
        assert "n0" in warnings[-1]["text"]
        until("the job to be sound again", lambda: running.request("GET", "/readyz").status_code == 200)
        assert stage.report(node="n0", weight=1.0).status_code == 200, "another report on the same order counts"
        until("the version", lambda: running.job("main")["version"] == 1)
        stage.close()
    with inside(folder) as running:
        assert running.job("main")["version"] == 1
        assert len(running.rows("SELECT seq FROM journal WHERE skipped")) == 1


def test_nothing_is_acknowledged_by_a_broken_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub has noted the report as counted when the close breaks it; a repeated report must not be told so."""
    step, broken = Algorithm.step, [True]

    def buggy(self: Algorithm, slots: Any, totals: Any) -> Any:
        if broken[0]:
            raise RuntimeError("planted")
        return step(self, slots, totals)

    monkeypatch.setattr("shoal_coordinator.jobs.journal.skip_event", held(skip_event, go := threading.Event()))
    monkeypatch.setattr(Algorithm, "step", buggy)
    with inside(tmp_path / "data") as running:
        stage = set_up(running)
        assert stage.report(node="n0").status_code == 200
        assert stage.report(node="n1").status_code == 503
        again = stage.report(node="n1")  # while the job is being restored; its event is set aside meanwhile
        go.set()
        assert again.status_code == 503, again.content
        until("the warning", lambda: running.events("main", "warning"))
        broken[0] = False
        until("the job to be sound again", lambda: running.request("GET", "/readyz").status_code == 200)
        assert stage.report(node="n1").status_code == 200
        (row,) = until("the version", lambda: running.rows("SELECT reports FROM versions WHERE number = 1"))
        assert [report[0] for report in json.loads(row[0])] == ["n0", "n1"]
        stage.close()


def held(work: Callable[..., None], go: threading.Event) -> Callable[..., None]:
    """The same, as soon as the event is set."""

    def later(*arguments: Any, **more: Any) -> None:
        assert go.wait(PATIENCE_S)
        work(*arguments, **more)

    return later


def test_a_damaged_snapshot_stops_one_job_and_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with inside(folder) as running:
        set_up(running).close()
        running.begin("other", nodes=1)
    with closing(sqlite3.connect(folder / "shoal.db")) as connection, connection:
        connection.execute("""UPDATE snapshots SET state = '{"phase": "running"}' WHERE job = 'main'""")
    with inside(folder) as running:
        found = running.request("GET", "/readyz")
        problem(found, 503, "not-ready")
        assert "main: cannot be restored" in found.json()["detail"]
        assert running.job("other")["state"] == "waiting"
        assert running.job("main")["state_why"].startswith("cannot be restored")


def test_a_bug_at_a_close_is_not_fatal_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, broken = Algorithm.step, [True]

    def buggy(self: Algorithm, slots: Any, totals: Any) -> Any:
        if broken[0]:
            raise RuntimeError("planted")
        return step(self, slots, totals)

    monkeypatch.setattr(Algorithm, "step", buggy)
    with inside(tmp_path / "data") as running:
        stage = set_up(running)
        assert stage.report(node="n0").status_code == 200
        assert stage.report(node="n1").status_code == 503
        until("the warning", lambda: running.events("main", "warning"))
        broken[0] = False
        assert stage.report(node="n1").status_code == 200
        until("the version", lambda: running.job("main")["version"] == 1)
        stage.close()


def test_a_poll_sees_no_half_fed_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the hub is rebuilt after a bug, no node is told anything that is not so."""
    step = RoundControl.close

    def buggy(self: RoundControl, close: Any, now: float) -> Any:
        effects = step(self, close, now)
        if len(running_now.rows("SELECT seq FROM journal WHERE skipped")) == 0:
            raise RuntimeError("planted, with the version closed in memory alone")
        return effects

    with inside(tmp_path / "data") as running:
        running_now = running
        stage = set_up(running)
        assert stage.report(node="n0").status_code == 200
        monkeypatch.setattr(RoundControl, "close", buggy)
        assert stage.report(node="n1").status_code == 503
        until("the warning", lambda: running.events("main", "warning"))
        until("the hub to be rebuilt", lambda: running.job("main")["version"] == 0)
        assert task_of(stage.nodes[1], "main")[0] == stage.tasks["n1"]
        assert stage.report(node="n1").status_code == 200
        until("the version", lambda: running.job("main")["version"] == 1)
        stage.close()


def test_the_journal_is_trimmed(coordinator: Inside, swarm: Swarm) -> None:
    """Two snapshots are kept, and the events since the older one."""
    history = History()
    coordinator.begin("a", nodes=2, rounds=30)
    for node in swarm(coordinator, 2, {"a": 10}, history):
        node.finish()
    until("the job to have ended", lambda: coordinator.job("a")["ended_at"])
    check(coordinator, history, {"a": 10}, {}, nodes=2)
    snapshots = [row[0] for row in coordinator.rows("SELECT seq FROM snapshots ORDER BY seq")]
    events = [row[0] for row in coordinator.rows("SELECT seq FROM journal ORDER BY seq")]
    assert len(snapshots) == 2
    assert all(seq > snapshots[0] for seq in events)
    assert len(events) < 20


def test_the_clock_of_a_job_does_not_run_while_nobody_does(tmp_path: Path) -> None:
    """A deadline is a time in which nodes could have worked; it also survives a change of the wall clock."""
    folder = tmp_path / "data"
    with inside(folder) as running:
        stage = set_up(running, schedule={"deadline_s": 1000.0})
        before = running.runner("main").clock.now()
        opened = running.runner("main").hub.state.round.opened_at
        stage.close()
    with inside(folder) as running:
        runner = running.runner("main")
        assert runner.hub.state.round.opened_at == opened
        assert runner.clock.now() - before < 5
        assert runner.clock.alarm == pytest.approx((opened or 0) + 1000.0)


def test_a_deadline_rings_also_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with inside(folder) as running:
        stage = set_up(running, schedule={"deadline_s": 2.0, "quorum": 1})
        assert stage.report(node="n0").status_code == 200
        stage.close()
    with inside(folder) as running:
        (row,) = until("the deadline", lambda: running.rows("SELECT reports FROM versions WHERE number = 1"))
        assert [report[0] for report in json.loads(row[0])] == ["n0"]


def test_events_that_come_together_share_a_commit(coordinator: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group commit: many answers for one wait for the disk; each still waits for it."""
    batches: list[int] = []
    take = JobRunner._commit_batch

    async def counting(self: JobRunner, batch: Any) -> None:
        batches.append(len(batch))
        await take(self, batch)

    monkeypatch.setattr(JobRunner, "_commit_batch", counting)
    coordinator.begin("a", nodes=40)

    async def many() -> None:
        await asyncio.gather(*(coordinator.runner("a").submit(Join(f"n{i}")) for i in range(40)))

    coordinator.call(many())
    assert sum(batches) >= 41
    assert len(batches) <= 8
    assert coordinator.job("a")["nodes"] == 40


def test_predictions_hold(coordinator: Inside, swarm: Swarm) -> None:
    """The checker itself: it must not find fault with a run that was undisturbed, and must with one that was."""
    history = History()
    coordinator.begin("a", nodes=2, rounds=3)
    for node in swarm(coordinator, 2, {"a": 10}, history):
        node.finish()
    check(coordinator, history, {"a": 10}, {}, nodes=2)
    assert final(coordinator, "a") == predicted(10, 3, ("n0", "n1"))
    assert final(coordinator, "a") != predicted(10, 3, ("n0",))
    forged = History(acks=[*history.acks, ("a", "n0", (7, 7), 2, True)])
    with pytest.raises(AssertionError, match="acknowledged, not in any version"):
        check(coordinator, forged, {"a": 10}, {}, nodes=2)
