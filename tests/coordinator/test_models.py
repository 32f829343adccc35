"""The models of a job, and labels: the version that people want to use, whatever comes after it."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection

from shoal.core.errors import StorageFailed
from shoal.core.protocol.machine import Save
from shoal_coordinator.jobs import journal
from tests.support.coordinator import Inside, inside
from tests.support.scenario import Stage, problem, set_up, task_of
from tests.support.sse import listening
from tests.support.waiting import PATIENCE_S, pause, pause_async, until

LABEL = "/api/v1/jobs/main/labels/production"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Two nodes that can make three versions after the initial one; only the newest two models are kept."""
    with inside(tmp_path / "data", lease_s=86_400.0, models_kept=2) as running:
        made = set_up(running)
        made.dismiss("n2")
        yield made
        made.close()


def rounds(stage: Stage, count: int) -> None:
    """Close `count` rounds, and wait until unused files are gone."""
    for _ in range(count):
        version = stage.running.job("main")["version"]
        for node in stage.nodes[:2]:
            stage.tasks[node.node], _ = task_of(node, "main")
            assert stage.report(node=node.node).status_code == 200
        until("the version", lambda version=version: stage.running.job("main")["version"] > version)
    newest = stage.running.job("main")["version"]
    every = stage.running.job("main")["spec"]["checkpoint_every"] or newest
    here = {row["version"] for row in shown(stage)["models"] if row["labels"]} | {newest, newest - 1}
    here |= set(range(every, newest, every))
    until("old models to go", lambda: {row["version"] for row in shown(stage, kept=True)["models"]} == here)


def shown(stage: Stage, **params: Any) -> Any:
    return stage.running.get("/jobs/main/models", **params)


def promote(running: Inside, version: int, label: str = "production", why: str = "") -> httpx.Response:
    return running.request("PUT", f"/api/v1/jobs/main/labels/{label}", json={"version": version, "why": why})


def test_models_are_listed_newest_first_and_paged(stage: Stage) -> None:
    rounds(stage, 2)
    rows = shown(stage)["models"]
    assert [row["version"] for row in rows] == [2, 1, 0]
    assert [row["kept"] for row in rows] == [True, True, False]
    known = {version["number"]: version for version in stage.running.get("/jobs/main/versions")["versions"]}
    for row in rows:
        version = known[row["version"]]
        assert {name: row[name] for name in ("digest", "bytes", "metrics")} == {
            name: version[name] for name in ("digest", "bytes", "metrics")
        }
    first = shown(stage, limit=2)
    assert ([row["version"] for row in first["models"]], first["next"]) == ([2, 1], 1)
    last = shown(stage, limit=2, before=first["next"])
    assert ([row["version"] for row in last["models"]], last["next"]) == ([0], None)
    assert [row["version"] for row in shown(stage, kept=True)["models"]] == [2, 1]


def test_a_promoted_model_stays_and_is_what_its_label_gives(stage: Stage) -> None:
    assert promote(stage.running, 0, why="passed the audit").json()["labels"] == {"production": 0}
    rounds(stage, 3)
    rows = {row["version"]: row for row in shown(stage)["models"]}
    assert [number for number, row in rows.items() if row["kept"]] == [3, 2, 0]
    assert [(given["label"], given["why"]) for given in rows[0]["labels"]] == [("production", "passed the audit")]
    answer = stage.running.request("GET", f"{LABEL}/model")
    assert hashlib.sha256(answer.content).hexdigest() == rows[0]["digest"]
    assert answer.headers["shoal-version"] == "0"
    assert answer.headers["cache-control"] == "private, no-cache"
    known = {"if-none-match": answer.headers["etag"]}
    assert stage.running.request("GET", f"{LABEL}/model", headers=known).status_code == 304
    promote(stage.running, 3)
    again = stage.running.request("GET", f"{LABEL}/model", headers=known)
    assert (again.status_code, again.headers["shoal-version"]) == (200, "3")


def test_what_is_promoted_outlives_restarts_and_the_sweep_of_what_nothing_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal_coordinator.models.retention.ORPHAN_AGE_S", -60.0)
    folder = tmp_path / "data"
    with inside(folder, lease_s=86_400.0, models_kept=2) as running:
        stage = set_up(running)
        stage.dismiss("n2")
        promote(running, 0, "first")
        rounds(stage, 2)
        stage.close()
    with inside(folder, models_kept=2) as running:
        assert running.job("main")["labels"] == {"first": 0}
        assert running.request("GET", "/api/v1/jobs/main/labels/first/model").headers["shoal-version"] == "0"
        assert {row["version"] for row in running.get("/jobs/main/models", kept=True)["models"]} == {0, 1, 2}
        running.post("/jobs/main/stop", {})
        until("the end", lambda: running.job("main")["ended_at"])
    with inside(folder, models_kept=2) as running:
        assert running.job("main")["labels"] == {"first": 0}
        assert promote(running, 2, "last").json()["labels"] == {"first": 0, "last": 2}, "a job that has ended"


def test_checkpoints_outlive_restarts_and_the_sweep_of_what_nothing_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal_coordinator.models.retention.ORPHAN_AGE_S", -60.0)
    folder = tmp_path / "data"
    with inside(folder, lease_s=86_400.0, models_kept=2) as running:
        stage = set_up(running, rounds=9, checkpoint_every=2)
        stage.dismiss("n2")
        rounds(stage, 6)
        stage.close()
    with inside(folder, lease_s=86_400.0, models_kept=2) as running:
        rows = running.get("/jobs/main/models")["models"]
        assert {row["version"] for row in rows if row["kept"]} == {2, 4, 5, 6}
        assert {row["version"] for row in rows if row["checkpoint"]} == {2, 4, 6}


def test_promotions_are_told_and_written_among_the_notes(stage: Stage) -> None:
    running = stage.running
    with listening(running.url, job="main") as events:
        assert next(events).name == "hello"
        promote(running, 0, why="for the trial")
        # The dismissal of n2 may still be told after the hello: what is looked for is the promotion.
        told = next(event for event in events if event.name == "job_event" and "production" in event.data["text"])
        assert told.data["text"] == "version 0 is production: for the trial"
        told = next(event for event in events if event.name == "job" and event.data["labels"])
        assert told.data["labels"] == {"production": 0}
    rounds(stage, 1)
    promote(running, 1)
    promote(running, 1)
    assert running.request("DELETE", LABEL, params={"why": "it was worse"}).json()["labels"] == {}
    assert [event["text"] for event in running.events("main", "state") if "production" in event["text"]] == [
        "version 0 is production: for the trial",
        "version 1 is production instead of version 0",
        "version 1 is production no longer: it was worse",
    ], "the second promotion has changed nothing"
    problem(running.request("GET", f"{LABEL}/model"), 404, "label.unknown")


def test_what_cannot_be_promoted_changes_nothing(stage: Stage) -> None:
    running = stage.running
    promote(running, 0, "kept")
    rounds(stage, 3)
    problem(promote(running, 1), 410, "model.gone")
    problem(promote(running, 9), 404, "model.unknown")
    problem(promote(running, -1), 422, "request.invalid")
    problem(promote(running, 2, "Not-A-Label"), 422, "request.invalid")
    problem(promote(running, 2, "12"), 422, "request.invalid")
    problem(running.request("DELETE", LABEL), 404, "label.unknown")
    problem(running.request("PUT", "/api/v1/jobs/z/labels/a", json={"version": 0}), 404, "job.unknown")
    problem(running.request("GET", "/api/v1/jobs/z/models"), 404, "job.unknown")
    assert running.job("main")["labels"] == {"kept": 0}
    for number in range(15):
        assert promote(running, 2, f"l{number}").status_code == 200
    problem(promote(running, 2, "one-too-many"), 409, "label.too-many")


def test_a_model_that_is_being_promoted_is_not_cleared_away_meanwhile(stage: Stage) -> None:
    """Promotion waits for the clearing away in hand, and then either has the file or says that it is gone."""
    running, retention = stage.running, stage.running.coordinator.parts.retention

    async def promoted_while_it_clears() -> bool:
        await retention.lock.acquire()
        act = asyncio.create_task(asyncio.to_thread(promote, running, 0))
        await pause_async(0.2)
        done = act.done()
        running.coordinator.blobs.of("main").delete(shown_digest)
        retention.lock.release()
        problem(await act, 410, "model.gone")
        return done

    rounds(stage, 1)
    promote(running, 1, "other")
    shown_digest = next(row["digest"] for row in shown(stage)["models"] if row["version"] == 0)
    assert not running.call(promoted_while_it_clears())
    assert running.job("main")["labels"] == {"other": 1}


@pytest.mark.parametrize("what", ["models", "rounds"])
def test_a_version_that_is_shown_can_be_fetched_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The writer is held while a reader fetches each version as soon as the job shows it."""
    project, go = journal.project_effects, threading.Event()

    def held(connection: Connection, job: str, fed: Sequence[journal.AppliedEntry]) -> Any:
        assert not any(isinstance(effect, Save) for one in fed for effect in one.effects) or go.wait(PATIENCE_S)
        return project(connection, job, fed)

    monkeypatch.setattr(journal, "project_effects", held)
    for number in (1, 2):
        go.clear()
        for node in stage.nodes[:2]:
            stage.tasks[node.node], _ = task_of(node, "main")
            assert stage.report(node=node.node).status_code == 200
        until("the version", lambda number=number: stage.running.job("main")["version"] == number)
        answers: list[httpx.Response] = []
        fetch = threading.Thread(target=lambda answers=answers: answers.append(newest(stage, what)))
        fetch.start()
        pause(0.5)
        early = list(answers)
        go.set()
        assert not early, f"version {number} is not written yet: {early[0].text}"
        fetch.join(PATIENCE_S)
        if what == "models":
            assert hashlib.sha256(answers[0].content).hexdigest() == stage.running.job("main")["model"]["digest"]
        else:
            assert answers[0].json()["state"] == "closed"


def test_a_version_that_cannot_be_written_is_not_said_to_be_missing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise StorageFailed("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(journal, "project_effects", full)
        broken.setattr("shoal_coordinator.jobs.hub_gate.SETTLE_S", 0.1)
        for node in stage.nodes[:2]:
            assert stage.report(node=node.node).status_code == 200
        until("the version", lambda: stage.running.job("main")["version"] == 1)
        problem(newest(stage), 503, "storage.failed")
    until("the disk to have room again", lambda: newest(stage).status_code == 200)
    problem(stage.running.request("GET", "/api/v1/jobs/main/models/7"), 404, "model.unknown")


def newest(stage: Stage, what: str = "models") -> httpx.Response:
    """The answer to a request for the model, or the round, of the version that the job shows."""
    version = stage.running.job("main")["version"]
    return stage.running.request("GET", f"/api/v1/jobs/main/{what}/{version}")
