"""The runner of a job, without HTTP: what is not journaled has not happened, and a restart gives the same hub."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select

from shoal.core.errors import StorageFailed
from shoal.core.protocol.machine import Timer
from shoal.core.protocol.message import BlobRef, Join, Report
from shoal.jobs.spec import parse_job
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import digest_of
from shoal_coordinator.jobs.hub_replay import JobStart
from shoal_coordinator.jobs.job_runner import JobRunner, JobServices
from shoal_coordinator.nodes.wakeups import Wakeups
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.tables import jobs
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry.event_bus import EventBus
from shoal_coordinator.telemetry.metrics import Metrics
from shoal_coordinator.updates.pending_uploads import NodeByteLimit
from tests.support.node import advance, body, displacement, initial, weight

SIZE = 10
NODES = ("n0", "n1", "n2")
SPEC = {"name": "main", "rounds": 3, "schedule": {"name": "rounds", "min_nodes": 3, "cohort": 3, "deadline_s": 3600.0}}
PASSING = ("term", "incarnation", "issued", "clock_offset_s")
"""Parts of a hub's state that each process has of its own."""


class FullDatabase(Database):
    """A database whose disk is full while `is_full`."""

    is_full = False

    def write(self, work: Any) -> Any:
        if not self.is_full:
            return super().write(work)
        failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        failed.set_exception(StorageFailed("the disk is full", code="storage.full"))
        return failed


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[JobRunner, FullDatabase]]:
    """Run the job of a folder, which may be new, in one process after another."""
    blobs = FileBlobs(folder / "blobs")
    payload = body(initial(SIZE))
    start = BlobRef(digest_of([payload]), len(payload))
    blobs.keep(start, payload)
    database = FullDatabase(f"sqlite:///{folder / 'shoal.db'}")
    row = {"name": "main", "spec": SPEC, "created_at": 0.0}
    if not await database.write(lambda c: c.execute(select(jobs)).all()):
        await database.write(lambda c: c.execute(insert(jobs).values(row)))
    services = JobServices(database, EventBus(), Settings(data=folder), Wakeups(), NodeByteLimit(2**30), Metrics())
    runner = JobRunner(parse_job(SPEC), JobStart(start), blobs, services)
    await runner.start()
    try:
        yield runner, database
    finally:
        database.is_full = False
        await runner.stop()
        await database.close()


async def report(runner: JobRunner, node: str, *, inline: bool = True) -> str:
    """Let a node report on its task; return the digest of its update."""
    task = runner.task_of(node)
    assert task is not None
    payload = body(displacement(node, task.version, SIZE))
    ref = BlobRef(digest_of([payload]), len(payload))
    if not inline:
        runner.blobs.keep(ref, payload)
    sent = replace(Report(node, task.id, task.version, weight(node), ref, {}), norm=1.0)
    assert (await runner.submit_for_ack(sent, node, payload if inline else None)).counted
    return ref.digest


def seen(runner: JobRunner) -> dict[str, Any]:
    """Return what must be the same in the next process."""
    state = runner.hub.state
    kept = {name: value for name, value in runner.hub.snapshot().items() if name not in PASSING}
    return {"state": kept, "reports": state.round.reports, "weight": state.sum.totals.weight}


def in_loop(test: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Return a test that runs its coroutine."""

    @functools.wraps(test)
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    return run


@in_loop
async def test_an_event_that_is_not_journaled_has_not_happened(tmp_path: Path) -> None:
    async with running(tmp_path) as (runner, database):
        database.is_full = True
        with pytest.raises(StorageFailed):
            await runner.submit(Join("n0"))
        assert runner.gate.trouble == "the disk is full"
        database.is_full = False
        await runner.submit(Join("n1"))
        assert [one.node for one in runner.hub.roster.all_members()] == ["n1"]


@in_loop
async def test_a_restart_feeds_each_event_once_and_in_order(tmp_path: Path) -> None:
    async with running(tmp_path) as (runner, _):
        for node in NODES:
            await runner.submit(Join(node))
        for node in ("n2", "n0"):
            await report(runner, node)
        before, term = seen(runner), runner.hub.tasks.term
    async with running(tmp_path) as (runner, _):
        assert seen(runner) == before
        assert runner.hub.tasks.term == term + 1
        await report(runner, "n1")
        assert runner.hub.progress.version == 1
        assert runner.blobs.open(runner.hub.store.model)[:] == body(advance(initial(SIZE), 0, NODES))


@in_loop
async def test_a_report_that_would_be_fed_again_keeps_its_body(tmp_path: Path) -> None:
    async with running(tmp_path) as (runner, _):
        for node in NODES:
            await runner.submit(Join(node))
        digest = await report(runner, "n0", inline=False)
        runner.blob_use.discard(digest)
        assert runner.blobs.has(digest)
    async with running(tmp_path) as (runner, _):
        assert [one.node for one in runner.hub.state.round.reports] == ["n0"]
        runner.blob_use.discard(digest)
        assert runner.blobs.has(digest)
        for node in ("n1", "n2"):
            await report(runner, node)
        await runner.submit(Timer())  # taken after the snapshot
        runner.blob_use.discard(digest)
        assert not runner.blobs.has(digest), "a snapshot contains its update"
