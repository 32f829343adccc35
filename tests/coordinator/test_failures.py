"""Failures, attributed: who, with what, how far, why, and what was done about it; each once, and not for ever."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import create_engine, select

from shoal.core.protocol.message import TaskFailed
from shoal.wire import codec
from shoal_coordinator.storage.tables import failures as table
from shoal_coordinator.storage.tables import jobs, metadata
from shoal_coordinator.telemetry import failures
from tests.support.coordinator import Inside, inside
from tests.support.scenario import SIZE, Stage, problem, set_up, task_of
from tests.support.sse import listening
from tests.support.waiting import until

HOSTILE = "<img src=x onerror=alert(1)>\u202e" + "x" * 4096


@pytest.fixture
def stage(coordinator: Inside) -> Iterator[Stage]:
    made = set_up(coordinator)
    yield made
    made.close()


def fail(stage: Stage, node: str = "n0", **said: Any) -> None:
    """The node gives its task up."""
    message = TaskFailed(**{**asdict(TaskFailed(node, stage.tasks[node].id, "no data")), **said})
    content = codec.encode(codec.Frame(stage.job, message))
    assert stage.send(node, "POST", f"/jobs/{stage.job}/failures", content=content).status_code == 200
    task = f"{message.task[0]}.{message.task[1]}"  # it is answered first, and written for people then

    def is_told() -> bool:
        return any((row["task"], row["error"]) == (task, message.error[:1000]) for row in told(stage))

    until("the failure to be told", is_told)


def told(stage: Stage, **wanted: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stage.running.get("/failures", **wanted)["failures"]
    return found


def test_who_failed_how_far_and_why(stage: Stage) -> None:
    fail(stage, phase="train", error="ValueError: no data", traceback="File learner.py, line 3\nValueError: no data")
    (row,) = told(stage)
    task = stage.tasks["n0"]
    assert row["node"] == "n0"
    assert row["job"] == "main"
    assert row["task"] == f"{task.id[0]}.{task.id[1]}"
    assert (row["version"], row["kind"], row["phase"]) == (0, "train", "train")
    assert row["error"] == "ValueError: no data"
    assert row["traceback"].startswith("File learner.py")
    assert (row["outcome"], row["outcome_why"]) == ("replaced", "1 of 2 lost: 1 asked in their place")


def test_what_was_done(stage: Stage) -> None:
    fail(stage)
    stage.tasks["n2"], _ = task_of(stage.nodes[2], "main")
    fail(stage, "n2")
    (row, _) = told(stage)
    assert (row["outcome"], row["outcome_why"]) == ("left-out", "the others are waited for")
    assert row["phase"] == "unknown", "the node does not say"


def test_a_failure_with_which_the_round_closes_says_so(coordinator: Inside) -> None:
    stage = set_up(coordinator, schedule={"quorum": 1})
    assert stage.report(node="n1").status_code == 200
    fail(stage)
    stage.tasks["n2"], _ = task_of(stage.nodes[2], "main")
    fail(stage, "n2")
    row = told(stage, node="n2")[0]
    assert row["outcome"] == "left-out"
    assert row["outcome_why"].startswith("version 1: ")
    stage.close()


def test_the_only_node_is_asked_again_and_then_no_more(coordinator: Inside) -> None:
    made = set_up(coordinator)
    for name in ("n1", "n2"):
        made.dismiss(name)
    seen = []
    for _ in range(3):
        made.tasks["n0"], _ = task_of(made.nodes[0], "main")
        fail(made)
        seen.append(told(made)[0]["outcome"])
    assert seen == ["asked-again", "asked-again", "set-aside"]
    made.close()


def test_a_refused_report_is_one_failure_whoever_tells_it(stage: Stage) -> None:
    problem(stage.report(np.full(SIZE, np.nan, np.float32)), 422, "payload.not-finite")
    (row,) = told(stage)
    assert (row["phase"], row["outcome"]) == ("upload", "awaited")
    assert "not finite" in row["error"]
    fail(stage, error="report refused: not finite", phase="upload")
    (again,) = told(stage)
    assert again["id"] == row["id"]
    assert (again["error"], again["outcome"]) == ("report refused: not finite", "replaced")


def test_a_node_that_falls_silent_with_an_order_has_failed(tmp_path: Path) -> None:
    with inside(tmp_path / "data", lease_s=0.5) as running:
        made = set_up(running)
        rows = until("the failures of both", lambda: len(found := told(made)) >= 2 and found)
        assert {"n0", "n1"} <= {row["node"] for row in rows}, "and n2 where it was asked in their place"
        assert {row["phase"] for row in rows} == {"contact"}
        assert all("no sign of life" in row["error"] for row in rows)
        fail(made, error="back, but in vain")
        assert [row["error"] for row in told(made, node="n0")] == ["back, but in vain"]
        made.close()


def test_a_crash_before_they_were_written_loses_none(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with inside(folder) as running:
        made = set_up(running)
        fail(made, error="one", phase="train", traceback="here")
        fail(made, "n1", error="two")
        before = told(made)
        made.close()
        running.coordinator.drain()
    with closing(sqlite3.connect(folder / "shoal.db")) as connection, connection:
        assert connection.execute("DELETE FROM failures WHERE error = 'one'").rowcount == 1
    for _ in range(2):
        with inside(folder) as running:
            made.running = running
            found = sorted(told(made), key=lambda row: row["error"])
            assert [row | {"id": 0} for row in found] == [row | {"id": 0} for row in reversed(before)]


def test_an_older_word_does_not_undo_a_newer_one() -> None:
    """A replay tells again what was journaled; a refusal that came after it was not."""
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    first = failures.Failure("n0", "1.2", 0, "train", "contact", "silent")
    later = replace(first, phase="upload", error="not finite")
    with engine.begin() as connection:
        connection.execute(jobs.insert(), {"name": "main", "spec": {}, "created_at": 0.0})
        assert len(failures.store(connection, "main", 1.0, first)) == 1
        assert len(failures.store(connection, "main", 2.0, later)) == 1
        assert failures.store(connection, "main", 1.0, first) == [], "nothing new to tell"
        assert failures.store(connection, "main", 2.0, later) == []
        assert connection.execute(select(table.c.error)).scalars().all() == ["not finite"]
    engine.dispose()


def test_the_oldest_are_forgotten(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "FAILURES_KEPT", 2)
    fail(stage, error="first")
    fail(stage, "n1", error="second")
    stage.tasks["n2"], _ = task_of(stage.nodes[2], "main")
    fail(stage, "n2", error="third")
    assert [row["error"] for row in told(stage)] == ["third", "second"]


def test_pages_and_filters(stage: Stage) -> None:
    fail(stage, error="first", phase="train")
    fail(stage, "n1", error="second", phase="download")
    page = stage.running.get("/failures", limit=1)
    assert [row["error"] for row in page["failures"]] == ["second"]
    rest = stage.running.get("/failures", limit=2, before=page["before"])
    assert [row["error"] for row in rest["failures"]] == ["first"]
    assert rest["before"] is None
    assert [row["error"] for row in told(stage, node="n0")] == ["first"]
    assert [row["error"] for row in told(stage, phase="download", job="main")] == ["second"]
    assert told(stage, job="other") == []


def test_browsers_hear_of_it_at_once(stage: Stage) -> None:
    with listening(stage.running.url, job="main") as events:
        assert next(events).name == "hello"
        fail(stage, error=HOSTILE[:900])
        said = next(event for event in events if event.name == "failure")
    assert said.id is None
    assert said.data["error"] == HOSTILE[:900]
    assert [said.data] == told(stage)


def test_a_failures_text_has_a_limit(stage: Stage) -> None:
    fail(stage, error=HOSTILE)
    (row,) = told(stage)
    assert row["error"] == HOSTILE[:1000]
    content = codec.encode(codec.Frame("main", TaskFailed("n1", stage.tasks["n1"].id, "x", "train", "y" * 8001)))
    problem(stage.send("n1", "POST", "/jobs/main/failures", content=content), 422, "head.traceback")
    assert told(stage) == [row]
