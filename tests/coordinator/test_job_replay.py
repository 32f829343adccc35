"""While a job is being restored, or an event is half-way through its hub: no client sees an uncertain state."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal.core.algorithm.algorithm import Algorithm, Update
from shoal.core.errors import StorageFailed
from shoal.core.model.aggregation import Totals
from shoal.core.protocol.machine import Timer
from shoal.core.protocol.message import Report, Stop, Task, TaskFailed
from shoal.core.server.hub import Hub
from shoal.runtime.blob_files import FileBlobs
from shoal.wire import codec
from shoal_coordinator.jobs import journal
from shoal_coordinator.jobs.hub_replay import HubReplay
from shoal_coordinator.jobs.journal import AppliedEntry, JournalEntry
from tests.support.coordinator import Inside, inside
from tests.support.node import body, initial
from tests.support.scenario import Stage, by_hand, problem, set_up, task_of
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal_coordinator.jobs.hub_gate.SETTLE_S", 0.2)
    monkeypatch.setattr("shoal_coordinator.jobs.job_runner.RETRY_S", 0.05)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While it is set, no hub can be restored."""
    flag, build = threading.Event(), HubReplay.build

    def unwilling(replay: HubReplay, state: dict[str, Any] | None = None) -> Hub:
        if state is not None and flag.is_set():
            raise StorageFailed("no space left", code="storage.full")
        return build(replay, state)

    monkeypatch.setattr(HubReplay, "build", unwilling)
    yield flag
    flag.clear()


@contextmanager
def again(stage: Stage, folder: Path, **settings: Any) -> Iterator[Inside]:
    """The coordinator's next life, with the same nodes."""
    with inside(folder, **settings) as running:
        stage.running = running
        for node in stage.nodes:
            node.where = lambda: running.url
        yield running


def poll(stage: Stage, node: str, **params: Any) -> httpx.Response:
    return stage.send(node, "GET", "/work", params={"wait_s": 0.1, **params})


def holding(task: Task) -> str:
    return f"main:{task.id[0]}.{task.id[1]}"


def test_an_order_that_was_given_stays_given(tmp_path: Path, full: threading.Event) -> None:
    """A hub that is being restored knows of no task: its nodes are told to come again, not that they are wrong."""
    folder = tmp_path / "data"
    with inside(folder) as running:
        stage = set_up(running, size=70_000)
    task = stage.tasks["n0"]
    assert task.blob is not None
    model = f"/jobs/main/blobs/{task.blob.digest}"
    failed = codec.encode(codec.Frame("main", TaskFailed("n0", task.id, "no luck")))
    full.set()
    with again(stage, folder) as running:
        problem(running.request("GET", "/readyz"), 503, "not-ready")
        problem(stage.send("n0", "POST", "/jobs/main/reports", content=stage.frame()[0]), 503, "storage.failed")
        problem(stage.send("n0", "GET", model), 503, "storage.failed")
        problem(stage.send("n0", "PUT", f"/jobs/main/blobs/{'0' * 64}", content=b"x"), 503, "storage.failed")
        problem(stage.send("n0", "POST", "/jobs/main/failures", content=failed), 503, "storage.failed")
        assert poll(stage, "n0", held=holding(task)).status_code == 204, "neither Stop nor Idle"
        assert poll(stage, "n0").status_code == 204
        full.clear()
        until("the job to be restored", lambda: running.request("GET", "/readyz").status_code == 200)
        assert task_of(stage.nodes[0], "main")[0] == task
        assert stage.send("n0", "GET", model).content == body(initial(70_000))
        assert poll(stage, "n0", held=holding(task)).status_code == 204
        assert stage.send("n0", "POST", "/jobs/main/failures", content=failed).status_code == 200
        stage.close()


def test_a_poll_that_was_passed_over_is_answered_once_the_job_is_restored(
    tmp_path: Path, full: threading.Event
) -> None:
    """The tasks are in the snapshot: no event is fed again that would ring a bell."""
    folder = tmp_path / "data"
    with inside(folder) as running:
        stage = set_up(running)
        for node in ("n0", "n1"):
            assert stage.report(node=node).status_code == 200
        until("the version", lambda: running.job("main")["version"] == 1)
        task = next(
            member.task for member in running.runner("main").hub.roster.all_members() if member.task is not None
        )
    full.set()
    with again(stage, folder, poll_s_max=PATIENCE_S) as running:
        answers: list[httpx.Response] = []
        polling = threading.Thread(target=lambda: answers.append(poll(stage, task.node, wait_s=PATIENCE_S)))
        polling.start()
        until("the poll to be open", lambda: running.coordinator.nodes.presence._open_polls[task.node])
        full.clear()
        polling.join(PATIENCE_S / 2)
        assert codec.decode(answers[0].content).message == task
        stage.close()


@contextmanager
def breaking(monkeypatch: pytest.MonkeyPatch, breaks: Callable[[JournalEntry], bool]) -> Iterator[threading.Event]:
    """Such an event changes the hub, and then breaks it: but only when the block is left. Set while it is half-way."""
    half_way, go_on, feed = threading.Event(), threading.Event(), HubReplay.apply

    def buggy(self: HubReplay, hub: Hub, entry: JournalEntry) -> AppliedEntry:
        fed = feed(self, hub, entry)
        if breaks(entry):
            half_way.set()
            assert go_on.wait(PATIENCE_S)
            raise ZeroDivisionError("planted")
        return fed

    monkeypatch.setattr(HubReplay, "apply", buggy)
    try:
        yield half_way
    finally:
        go_on.set()


def test_no_order_leaves_a_hub_that_may_forget_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The close of a round breaks when the next one's tasks stand in memory: who polls meanwhile must not get one."""
    answers: list[httpx.Response] = []
    with inside(tmp_path / "data") as running:
        stage = set_up(running)
        assert stage.report(node="n0").status_code == 200
        closing = threading.Thread(target=lambda: answers.append(stage.report(node="n1", weight=13.0)))
        bad = Report
        with breaking(monkeypatch, lambda e: isinstance(e.event, bad) and e.event.weight == 13.0) as half_way:
            closing.start()
            assert half_way.wait(PATIENCE_S)
            assert running.runner("main").hub.progress.version == 1, "in memory alone"
            assert poll(stage, "n0").status_code == 204
            assert poll(stage, "n1", held=holding(stage.tasks["n1"])).status_code == 204, "not withdrawn"
        closing.join(PATIENCE_S)
        problem(answers[0], 503, "storage.failed")
        until("the job to be sound", lambda: running.request("GET", "/readyz").status_code == 200)
        assert running.job("main")["version"] == 0
        assert task_of(stage.nodes[1], "main")[0] == stage.tasks["n1"]
        assert stage.report(node="n1").status_code == 200
        until("the version", lambda: running.job("main")["version"] == 1)
        stage.close()


def test_who_was_in_line_when_the_hub_broke_is_not_kept_waiting(
    tmp_path: Path, full: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests take effect in order when the job is restored; their senders were told to come again."""
    answers: list[httpx.Response] = []
    with inside(tmp_path / "data") as running:
        stage = set_up(running)
        closing = threading.Thread(target=lambda: stage.report(node="n1", weight=13.0))
        pause = "/api/v1/jobs/main/pause"
        pausing = threading.Thread(target=lambda: answers.append(running.request("POST", pause, json={})))
        bad = Report
        with breaking(monkeypatch, lambda e: isinstance(e.event, bad) and e.event.weight == 13.0) as half_way:
            closing.start()
            assert half_way.wait(PATIENCE_S)
            pausing.start()
            until("the pause to be in line", lambda: running.runner("main")._queue)
            full.set()
        pausing.join(PATIENCE_S / 2)
        problem(answers[0], 503, "storage.failed")
        assert running.runner("main").gate.is_restoring
        full.clear()
        until("the job to be sound", lambda: running.request("GET", "/readyz").status_code == 200)
        until("the pause", lambda: running.job("main")["state"] == "paused")
        closing.join(PATIENCE_S)
        stage.close()


def test_no_end_is_told_that_may_be_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[httpx.Response] = []
    with inside(tmp_path / "data") as running:
        stage = set_up(running)
        stop = "/api/v1/jobs/main/stop"
        stopping = threading.Thread(target=lambda: answers.append(running.request("POST", stop, json={})))
        with breaking(monkeypatch, lambda e: isinstance(e.event, Stop)) as half_way:
            stopping.start()
            assert half_way.wait(PATIENCE_S)
            assert running.runner("main").hub.progress.phase == "stopped", "in memory alone"
            assert poll(stage, "n0", held=holding(stage.tasks["n0"])).status_code == 204
        stopping.join(PATIENCE_S)
        problem(answers[0], 503, "storage.failed")
        until("the job to be sound", lambda: running.request("GET", "/readyz").status_code == 200)
        assert codec.decode(stage.report(node="n0").content).message.counted  # type: ignore[union-attr]
        stage.close()


def test_a_bug_at_a_deadline_does_not_silence_the_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer's event is set aside, and nothing else of that round would make the hub look at the time again."""
    feed, broken = HubReplay.apply, [True]

    def buggy(self: HubReplay, hub: Hub, entry: JournalEntry) -> AppliedEntry:
        if isinstance(entry.event, Timer) and broken[0]:
            raise ZeroDivisionError("planted")
        return feed(self, hub, entry)

    monkeypatch.setattr(HubReplay, "apply", buggy)
    monkeypatch.setattr(journal, "skip_event", mending(broken, journal.skip_event))
    with inside(tmp_path / "data", lease_s=3600) as running:
        nodes = [by_hand(running, f"n{i}", {"main": 10}) for i in range(3)]
        running.begin("main", nodes=2, schedule={"deadline_s": 1.0, "min_nodes": 3})
        for node in nodes:
            assert node.ask("POST", "/hello", json={}).status_code == 200
        assert nodes[0].report("main", task_of(nodes[0], "main")[0]).counted
        (warning,) = until("the warning", lambda: running.events("main", "warning"))
        assert "(Timer " in warning["text"]
        until("the third to be asked in their place", lambda: len(running.runner("main").hub.state.round.asked) == 3)
        for node in nodes:
            node.client.close()


def mending(broken: list[bool], set_aside: Callable[..., Any]) -> Callable[..., Any]:
    """The bug is gone when the event has been set aside."""

    def mend(*arguments: Any, **more: Any) -> Any:
        broken[0] = False
        return set_aside(*arguments, **more)

    return mend


def test_no_event_is_set_aside_for_a_fault_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fails while the event that breaks the hub is looked for: an innocent report must not pay for that."""
    fold, folds = Algorithm.fold, [0]

    def buggy(self: Algorithm, totals: Totals, update: Update, discount: float) -> Totals:
        if update.weight == 13.0:
            raise ZeroDivisionError("planted")
        folds[0] += 1
        if folds[0] == 3:  # 1: when it came; 2: the first attempt to restore; 3: the search
            raise StorageFailed("no space left", code="storage.full")
        return fold(self, totals, update, discount)

    monkeypatch.setattr(Algorithm, "fold", buggy)
    with inside(tmp_path / "data") as running:
        stage = set_up(running)
        assert stage.report(node="n0").status_code == 200
        problem(stage.report(node="n1", weight=13.0), 503, "storage.failed")
        until("the job to be sound", lambda: running.request("GET", "/readyz").status_code == 200)
        assert folds[0] > 3
        ((event,),) = running.rows("SELECT event FROM journal WHERE skipped")
        assert '"n1"' in event
        assert [report.node for report in running.runner("main").hub.state.round.reports] == ["n0"]
        stage.close()


def test_the_end_comes_before_the_job_is_restored(tmp_path: Path, full: threading.Event) -> None:
    """A hub that knows nothing must take no event: its snapshot would take the place of the job's."""
    folder = tmp_path / "data"
    with inside(folder) as running:
        stage = set_up(running)
        for node in ("n0", "n1"):
            assert stage.report(node=node).status_code == 200
        until("the version", lambda: running.job("main")["version"] == 1)
    written = "SELECT seq, event FROM journal ORDER BY seq"
    before = running.rows(written), running.rows("SELECT seq FROM snapshots")
    full.set()
    with again(stage, folder) as running:
        problem(running.request("GET", "/readyz"), 503, "not-ready")
    assert (running.rows(written), running.rows("SELECT seq FROM snapshots")) == before
    full.clear()
    with again(stage, folder) as running:
        assert running.job("main")["version"] == 1
        tasks = [member.task for member in running.runner("main").hub.roster.all_members() if member.task is not None]
        assert [task.version for task in tasks] == [1, 1]
        stage.close()


def test_what_a_replay_needs_is_not_cleared_away(tmp_path: Path, full: threading.Event) -> None:
    """Until the job is restored, it is unknown which reports it will fold, however old their blobs are."""
    folder = tmp_path / "data"
    with inside(folder) as running:
        stage = set_up(running)
        assert stage.report(node="n0").status_code == 200
        blobs = FileBlobs(folder / "blobs" / "main")
        before = blobs.digests()
    for digest in before:
        os.utime(blobs.path(digest), (0, 0))
    full.set()
    with again(stage, folder) as running:
        problem(running.request("GET", "/readyz"), 503, "not-ready")
        assert blobs.digests() == before
        full.clear()
        until("the job to be restored", lambda: running.request("GET", "/readyz").status_code == 200)
        assert [report.node for report in running.runner("main").hub.state.round.reports] == ["n0"]
        assert stage.report(node="n1").status_code == 200
        until("the version", lambda: running.job("main")["version"] == 1)
        stage.close()


def test_members_of_a_job_that_was_restored_late_are_not_waited_for_for_ever(
    tmp_path: Path, full: threading.Event
) -> None:
    folder = tmp_path / "data"
    with inside(folder) as running:
        stage = set_up(running)
        stage.close()
    full.set()
    with again(stage, folder, lease_s=0.5) as running:
        problem(running.request("GET", "/readyz"), 503, "not-ready")
        full.clear()
        until("all to be lost", lambda: running.request("GET", "/readyz").status_code == 200 and not here(running))


def here(running: Inside) -> list[str]:
    return [member.node for member in running.runner("main").hub.roster.present_members()]


def test_one_job_that_cannot_be_restored_holds_up_nobody(tmp_path: Path, full: threading.Event) -> None:
    """Nodes come, work for the other job, and go; the job hears of missed events afterwards."""
    folder = tmp_path / "data"
    with inside(folder) as running:
        stage = set_up(running)
    full.set()
    with again(stage, folder) as running:
        running.begin("other", nodes=1)
        late = by_hand(running, "late", {"other": 10})
        task, _ = task_of(late, "other")
        assert late.report("other", task).counted
        assert stage.send("n0", "POST", "/leave").status_code == 204
        running.request("DELETE", "/api/v1/nodes/n1")
        problem(running.request("POST", "/api/v1/jobs/main/pause", json={}), 503, "storage.failed")
        full.clear()
        until(
            "n0 to have left",
            lambda: running.request("GET", "/readyz").status_code == 200 and "n0" not in here(running),
        )
        until("n1 to be lost", lambda: "n1" not in here(running))
        assert "late" in here(running), "its hello was kept"
        assert running.job("main")["state"] == "running", "a pause that was refused does not come later"
        late.client.close()
        stage.close()
