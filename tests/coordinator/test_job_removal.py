"""Removing a job that has ended: nothing of it stays, and another job may have its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal_coordinator.composition import housekeeping
from shoal_coordinator.jobs.removal import ABOUT_A_JOB
from shoal_coordinator.storage.blobs.store import BlobStore
from shoal_coordinator.storage.tables import metadata
from tests.support.coordinator import Inside, inside
from tests.support.scenario import problem, set_up
from tests.support.waiting import until


def ended(running: Inside) -> None:
    """A job, main, that was stopped after its first version, with a report that counted, and its folder of bodies."""
    stage = set_up(running)
    assert stage.report().status_code == 200
    running.post("/jobs/main/stop")
    until("the end to be written", lambda: running.get("/jobs/main")["ended_at"])
    stage.close()


def rows_about(running: Inside, job: str) -> dict[str, int]:
    """How many rows of each table name a job."""
    named = [table for table in metadata.sorted_tables if "job" in table.c]
    counts = {one.name: running.rows(f"SELECT count(*) FROM {one.name} WHERE job = '{job}'")[0][0] for one in named}
    return {name: count for name, count in counts.items() if count}


def test_every_table_about_jobs_is_cleared() -> None:
    assert {table for table in metadata.sorted_tables if "job" in table.c} == set(ABOUT_A_JOB)


@pytest.mark.parametrize("blobs", ["", "memory://removal"])
def test_nothing_of_a_removed_job_stays(tmp_path: Path, blobs: str) -> None:
    with inside(tmp_path / "data", blobs=blobs) as running:
        running.begin("other", nodes=2, rounds=3)
        running.post("/jobs/other/stop")
        ended(running)
        other, store = rows_about(running, "other"), running.coordinator.blobs.store
        assert held(store, "main")
        assert rows_about(running, "main")
        assert running.request("DELETE", "/api/v1/jobs/main").status_code == 204
        assert (held(store, "main"), rows_about(running, "main")) == ([], {})
        assert not (tmp_path / "data/blobs/main").exists()
        assert not (tmp_path / "data/blob-cache/main").exists()
        problem(running.request("GET", "/api/v1/jobs/main"), 404, "job.unknown")
        problem(running.request("DELETE", "/api/v1/jobs/main"), 404, "job.unknown")
        assert rows_about(running, "other") == other != {}
    with inside(tmp_path / "data", blobs=blobs) as running:
        assert [job["name"] for job in running.get("/jobs")["jobs"]] == ["other"]
        running.begin("main", nodes=2, rounds=3)
        fresh = running.get("/jobs/main")
        assert (fresh["state"], fresh["version"], fresh["up_bytes"], fresh["down_bytes"]) == ("waiting", 0, 0, 0)


def held(store: BlobStore, job: str) -> list[str]:
    return [kept.key for kept in store.list(job)]


def test_another_job_may_have_the_name_at_once(tmp_path: Path) -> None:
    with inside(tmp_path / "data") as running:
        ended(running)
        assert running.request("DELETE", "/api/v1/jobs/main").status_code == 204
        running.begin("main", nodes=2, rounds=3)
        fresh = running.get("/jobs/main")
        assert (fresh["state"], fresh["version"], fresh["up_bytes"], fresh["down_bytes"]) == ("waiting", 0, 0, 0)
        assert running.get("/jobs/main/versions")["versions"] == []


def test_a_job_is_removed_at_once_after_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tick has written its end yet."""
    monkeypatch.setattr(housekeeping, "TICK_S", 3600.0)
    with inside(tmp_path / "data") as running:
        running.begin("main", nodes=2, rounds=3)
        assert running.post("/jobs/main/stop")["state"] == "stopped"
        assert running.request("DELETE", "/api/v1/jobs/main").status_code == 204
        assert rows_about(running, "main") == {}


def test_a_job_that_runs_is_not_removed(tmp_path: Path) -> None:
    with inside(tmp_path / "data") as running:
        stage = set_up(running)
        before = stage.picture()
        found = problem(running.request("DELETE", "/api/v1/jobs/main"), 409, "job.active")
        assert "shoal jobs stop main" in found["hint"]
        assert stage.picture() == before
        stage.close()
