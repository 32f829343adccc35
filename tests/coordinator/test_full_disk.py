"""A disk that is full, or fails now and then: nothing that was acknowledged is lost, and all goes on when it can."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from shoal.core.errors import StorageFailed
from shoal.runtime import durable_files
from shoal_coordinator.jobs import journal
from tests.support.coordinator import Inside, Server, inside
from tests.support.history import check, final, predicted
from tests.support.node import History, Node
from tests.support.scenario import problem, set_free_bytes, set_up
from tests.support.waiting import pause, until

Swarm = Callable[..., list[Node]]
SIZES = {"inline": 10, "large": 66_000}
UNBOUNDED = 1_073_741_823


def test_nothing_is_accepted_below_the_reserve(coordinator: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = set_up(coordinator)
    before = stage.picture()
    set_free_bytes(monkeypatch, 100)
    answer = stage.report(node="n0")
    found = problem(answer, 507, "storage.full")
    assert "MiB free" in found["detail"]
    assert int(answer.headers["retry-after"]) > 0
    assert stage.picture() == before
    monkeypatch.undo()
    assert stage.report(node="n0").status_code == 200
    stage.close()


def test_the_reserve_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with inside(tmp_path / "data", disk_reserve_bytes=2**60) as running:
        digest = "0" * 64
        problem(running.request("PUT", f"/api/v1/blobs/{digest}", content=b"x" * 100), 507, "storage.full")
        assert running.get("/jobs")["jobs"] == []
        said = problem(running.request("GET", "/readyz"), 503, "not-ready")["detail"]
        assert said.startswith("nothing more is accepted: ")
        assert running.request("GET", "/healthz").status_code == 200, "a restart would not help"
        set_free_bytes(monkeypatch, 2**60)
        assert running.request("GET", "/readyz").json() == {"status": "ready"}
        assert f"shoal_disk_free_bytes {float(2**60)}" in running.request("GET", "/metrics").text


class Failing:
    """The module `os` as the store sees it; every n-th call that changes the disk fails."""

    def __init__(self, every: int, code: int) -> None:
        self.every, self.code, self.calls, self.failed, self.on = every, code, 0, 0, True
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in ("write", "fsync", "truncate", "ftruncate"):
            return real

        def call(*arguments: Any) -> Any:
            with self._lock:
                self.calls += 1
                fails = self.on and self.calls % self.every == 0
                self.failed += fails
            if fails:
                raise OSError(self.code, os.strerror(self.code))
            return real(*arguments)

        return call


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("every", [5, 7, 13])
def test_every_few_writes_of_blobs_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swarm: Swarm, every: int, code: int
) -> None:
    monkeypatch.setattr("shoal_coordinator.jobs.job_runner.RETRY_S", 0.02)
    with inside(tmp_path / "data") as running:
        for job in SIZES:
            running.begin(job, nodes=2, rounds=6)
        failing, history = Failing(every, code), History()
        monkeypatch.setattr(durable_files, "os", failing)
        nodes = swarm(running, 2, SIZES, history)
        for node in nodes:
            node.finish()
        monkeypatch.setattr(durable_files, "os", os)
        assert failing.failed > 5
        check(running, history, SIZES, {}, nodes=2)
        for job, size in SIZES.items():
            assert final(running, job) == predicted(size, 6, ("n0", "n1"))
            until("the job to be done", lambda job=job: running.job(job)["ended_at"])
    with inside(tmp_path / "data") as running:
        assert {running.job(job)["state"] for job in SIZES} == {"done"}


def limit(running: Inside, pages: int | None = None) -> None:
    """Let the database grow to that many pages; None: not at all from now on."""

    def set_limit(connection: Any) -> None:
        most = connection.execute(text("PRAGMA page_count")).scalar() if pages is None else pages
        connection.execute(text(f"PRAGMA max_page_count = {most}"))

    while True:
        try:
            running.call(_write(running, set_limit))
            return
        except StorageFailed:  # another write of the same transaction has found the disk full
            continue


async def _write(running: Inside, work: Callable[[Any], None]) -> None:
    await running.coordinator.database.write(work)


def test_a_full_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swarm: Swarm) -> None:
    """SQLite says that it is full in the middle of transactions, again and again, while jobs run."""
    monkeypatch.setattr("shoal_coordinator.jobs.job_runner.RETRY_S", 0.05)
    with inside(tmp_path / "data") as running:
        history = History()
        for job in SIZES:
            running.begin(job, nodes=2, rounds=40)
        nodes = swarm(running, 2, SIZES, history)
        for _ in range(3):
            version = running.job("inline")["version"]
            until("progress", lambda version=version: running.job("inline")["version"] > version)
            limit(running)
            until("trouble", lambda: "full" in running.request("GET", "/readyz").json().get("detail", ""))
            answer = running.request("POST", "/api/v1/tokens", json={"name": "x" * 60})
            if answer.status_code != 201:
                assert problem(answer, 507, "storage.full")["hint"]
            pause(0.2)
            limit(running, UNBOUNDED)
        for node in nodes:
            node.finish()
        check(running, history, SIZES, {}, nodes=2)
        for job in SIZES:
            until("the job to be done", lambda job=job: running.job(job)["ended_at"])
        assert running.request("GET", "/readyz").status_code == 200
    with inside(tmp_path / "data") as running:
        assert {running.job(job)["state"] for job in SIZES} == {"done"}
        assert len(running.get("/jobs/inline/versions")["versions"]) == 41


def test_a_write_that_finds_the_disk_full_takes_no_other_with_it(tmp_path: Path) -> None:
    """SQLite rolls back everything when it is full; a reported success must be durable."""
    with inside(tmp_path / "data") as running:
        limit(running)
        results: dict[str, BaseException | None] = {}

        async def one(name: str, size: int) -> None:
            row = text("INSERT INTO tokens (secret, role, uses, name) VALUES (:name, 'viewer', 0, :fill)")
            write = running.coordinator.database.write
            try:
                await write(lambda c: c.execute(row, {"name": name, "fill": "x" * size}))
                results[name] = None
            except Exception as error:
                results[name] = error

        async def many() -> None:
            await asyncio.gather(*(one(f"t{i}", 60_000 if i % 3 == 1 else 1) for i in range(12)))

        running.call(many())
        limit(running, UNBOUNDED)
        there = {row[0] for row in running.rows("SELECT secret FROM tokens")}
        assert there == {name for name, error in results.items() if error is None}
        assert {getattr(error, "code", "") for error in results.values() if error is not None} == {"storage.full"}
        running.token()


def test_the_end_of_a_job_waits_until_it_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last version must not be missing because the disk was full when the job ended."""
    monkeypatch.setattr("shoal_coordinator.jobs.job_runner.RETRY_S", 0.1)
    project, full = journal.project_effects, [False]

    def unwilling(connection: Any, job: str, fed: Any) -> Any:
        if full[0]:
            raise StorageFailed("full", code="storage.full")
        return project(connection, job, fed)

    monkeypatch.setattr(journal, "project_effects", unwilling)
    with inside(tmp_path / "data", lease_s=3600) as running:
        stage = set_up(running)
        full[0] = True
        for name in ("n0", "n1"):
            assert stage.report(node=name).status_code == 200, "the journal has it"
        running.post("/jobs/main/stop", {"when": "now"})
        pause(1.2)  # twice the time after which an ended job is concluded
        assert running.job("main")["ended_at"] is None
        assert running.request("GET", "/readyz").status_code == 503
        full[0] = False
        until("the job to have ended", lambda: running.job("main")["ended_at"])
        assert running.request("GET", "/readyz").status_code == 200
        assert [version["number"] for version in running.get("/jobs/main/versions")["versions"]] == [0, 1]
        stage.close()


def test_nobody_is_told_of_an_end_that_could_not_be_written(tmp_path: Path) -> None:
    """The row with the end of the job finds the disk full: it is tried again."""
    refused, full = [0], [True]
    with inside(tmp_path / "data", lease_s=3600) as running:
        stage = set_up(running)
        write = running.coordinator.database.write

        def unwilling(work: Callable[[Any], Any]) -> Any:
            def then_full(connection: Any) -> Any:
                result = work(connection)
                if full[0] and connection.execute(text("SELECT ended_at FROM jobs")).scalar() is not None:
                    refused[0] += 1
                    raise StorageFailed("full", code="storage.full")
                return result

            return write(then_full)

        running.coordinator.database.write = unwilling  # type: ignore[method-assign]
        assert running.post("/jobs/main/stop", {"when": "now"})["state"] == "stopped"
        until("the end to be tried again", lambda: refused[0] >= 2)
        assert running.job("main")["ended_at"] is None
        full[0] = False
        until("the job to have ended", lambda: running.job("main")["ended_at"])
        told = running.job("main")
        stage.close()
    with inside(tmp_path / "data") as running:
        assert running.job("main") == told


@contextlib.contextmanager
def small_disk(place: Path, mebibytes: int) -> Iterator[bool]:
    """A file system of that size; False where mounting is not allowed."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_is_really_full_for_a_while(tmp_path: Path, server: Callable[..., Server], swarm: Swarm) -> None:
    """Where a small file system may be mounted: fill it, see refusals, kill, restart, free it, see all end well."""
    with small_disk(tmp_path / "disk", 24) as mounted:
        running = server("disk/data")
        running.log = tmp_path / "log"
        running.start()
        history = History()
        for job in SIZES:
            running.begin(job, nodes=2, rounds=200)
        nodes = swarm(running, 2, SIZES, history)
        until("progress", lambda: running.job("large")["version"] > 3)
        if mounted:
            filler = tmp_path / "disk" / "filler"
            until("refusals", lambda: fill(filler) or refuses(running))
            running.kill()
            running.start(ready=False)
            pause(1.0)  # any work in that time, on a full disk
            filler.unlink()
            if running.ended() is not None:
                running.start()
        for job in SIZES:
            until("stopping", lambda job=job: stopped(running, job))
        for node in nodes:
            node.finish()
        check(running, history, SIZES, {}, nodes=2)
        running.kill()


def fill(filler: Path) -> None:
    """Take all the room that is left; files that the coordinator deletes meanwhile make more."""
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 10):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


def refuses(running: Server) -> bool:
    """Return whether there is no room for a blob any more."""
    return running.request("PUT", f"/api/v1/blobs/{'0' * 64}", content=bytes(100_000)).status_code == 507


def stopped(running: Server, job: str) -> bool:
    """Return whether the coordinator has accepted the stop of a job after its round."""
    return running.request("POST", f"/api/v1/jobs/{job}/stop", json={"when": "round"}).status_code in (200, 409)
