"""The life of jobs: creation, restoration, transfer, end and removal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Row, select, update

from shoal.core.cluster.job_assignment import LEADER
from shoal.core.errors import InvalidJob, StorageFailed
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.metrics import stage_of
from shoal.jobs.spec import JobSpec, parse_job
from shoal.validation.message_checks import is_digest
from shoal_coordinator.composition import start_store
from shoal_coordinator.composition.start_store import StoredBlob
from shoal_coordinator.jobs import removal
from shoal_coordinator.jobs.hub_replay import JobStart
from shoal_coordinator.jobs.job_blobs import JobBlobs
from shoal_coordinator.jobs.job_registry import JobRecord, JobRegistry
from shoal_coordinator.jobs.job_runner import JobRunner, JobServices
from shoal_coordinator.jobs.journal import merge_metrics
from shoal_coordinator.models import version_history
from shoal_coordinator.models.evaluator import HeldOutEvaluator, StoredVersion
from shoal_coordinator.models.retention import Retention
from shoal_coordinator.nodes.presence import Presence
from shoal_coordinator.peers.signed_checkpoints import RecoveredJob
from shoal_coordinator.peers.trust_documents import TrustDocuments
from shoal_coordinator.presenters import job_presenter
from shoal_coordinator.presenters.job_presenter import JobPresenter
from shoal_coordinator.schemas.jobs import JobView
from shoal_coordinator.storage import job_owners
from shoal_coordinator.storage.crashpoints import crashpoint
from shoal_coordinator.storage.tables import jobs, versions
from shoal_coordinator.telemetry.event_bus import Item

log = structlog.get_logger()

HANDED_S = 5.0
"""Seconds for which a follower still serves a job that has ended."""


class JobLifecycle:
    """Start and end of jobs' runners, and their rows in the database."""

    def __init__(
        self,
        registry: JobRegistry,
        services: JobServices,
        blobs: JobBlobs,
        retention: Retention,
        presence: Presence,
        trust_documents: TrustDocuments,
        presenter: JobPresenter,
    ) -> None:
        self._registry, self._services, self._blobs, self._retention = registry, services, blobs, retention
        self._presence, self._trust_documents, self._presenter = presence, trust_documents, presenter
        self._database, self._event_bus = services.database, services.event_bus
        self._finishing = asyncio.Lock()
        self.evaluator = HeldOutEvaluator(self._store_evaluation)
        self.on_ended: Callable[[JobView], object] = bool
        """Called with the last view of a job when its end is durable."""
        self.flush: Sequence[Callable[[], Awaitable[None]]] = ()
        """Writes what is in memory about a job before its rows are deleted."""
        self.forget: Sequence[Callable[[str], object]] = ()
        """Called with the name of a job that was removed."""

    async def create_job(
        self,
        spec: JobSpec,
        start: BlobRef | None,
        given: RecoveredJob | None,
        paused: bool,
        base: StoredBlob | None = None,
    ) -> None:
        """Create a job, or continue one that another coordinator led. `paused`: pause it before nodes see it. `start`:
        an uploaded initial model. `base`: see `find_base`.

        Raises `Refused` if its name is taken.
        """
        with self._registry.claim_name(spec.name):
            if self._registry.owner:
                await self._clear_name(spec.name)
            if spec.held_out is not None:
                await asyncio.to_thread(self.evaluator.check, spec)
            for blob in filter(None, (StoredBlob(start, self._blobs.starts) if start else None, base)):
                await asyncio.to_thread(start_store.link_blob, self._blobs.of(spec.name), blob.blobs, blob.ref)
            begins = JobStart(start, base=base.ref if base is not None else None)
            if given is not None:
                begins = replace(begins, version=given.manifest.version, term=given.term, node=given.claim.node)
            await self._add_job(spec, begins, given, paused)
        self._services.wakeups.notify_all()
        self._event_bus.publish(Item("job", spec.name, {}))

    async def find_base(self, digest: str) -> StoredBlob | None:
        """Return a base model that was uploaded, or that of another job, as a clone needs; None: it is not here."""
        if not is_digest(digest):
            return None
        names = await self._database.write(partial(start_store.jobs_with_base, digest=digest))
        for blobs in (self._blobs.starts, *map(self._blobs.of, names)):
            size = await asyncio.to_thread(blobs.size, digest)
            if size is not None:
                return StoredBlob(BlobRef(digest, size), blobs)
        return None

    async def _clear_name(self, name: str) -> None:
        """Forget an earlier job of that name, which the leader has removed. Copies of its blobs would stand for stored
        ones."""
        await self._drop_handed_over(name)
        await asyncio.to_thread(self._blobs.drop_copies, name)
        self._forget_job(name)

    async def _drop_handed_over(self, name: str) -> None:
        if self._registry.has_handed_over(name):
            record = self._registry.records.pop(name)
            if record.runner is not None:
                await record.runner.stop()

    def _forget_job(self, name: str) -> None:
        for forget in (*self.forget, self._retention.forget, self._trust_documents.forget):
            forget(name)

    async def _add_job(self, spec: JobSpec, begins: JobStart, given: RecoveredJob | None, paused: bool) -> None:
        """Write the job's row, and only then show it."""
        record = JobRecord(spec, (given.claim.created_at if given is not None else None) or time.time(), begins)
        values = {"name": spec.name, "spec": spec.model_dump(mode="json"), "created_at": record.created_at}
        values |= {"start": start_store.start_row(begins), "owner": self._registry.owner}
        adding = partial(start_store.add_job, values=values, begins=begins, given=given, paused=paused)
        known = await self._database.write(adding)
        if given is not None:
            crashpoint("restore.committed")
            self._trust_documents.recover(given.documents, known)
            for node in known:
                self._presence.add_known(node)
        await self._start_runner(record, begins)

    async def restore_job(self, row: Row[Any]) -> None:
        """Restore a job from its row: run it, or show how it ended, or why this release cannot run it."""
        start = start_store.start_of(row.start)
        over = row.ended_at, row.summary, tuple(row.tags), row.labels
        try:
            spec = parse_job(row.spec)
        except InvalidJob as error:
            log.error("this release cannot run the job", job=row.name, why=error.message)
            summary = row.summary or job_presenter.fallback_view(row, "failed", error.message)
            over = row.ended_at, summary, tuple(row.tags), row.labels
            self._registry.records[row.name] = JobRecord(JobSpec(name=row.name), row.created_at, start, None, *over)
            return
        record = JobRecord(spec, row.created_at, start, None, *over)
        if row.ended_at is None:
            await self._start_runner(record, start)
        else:
            self._registry.records[row.name] = record

    async def take_over(self, row: Row[Any]) -> None:
        """Restore a job that another coordinator ran until now."""
        await asyncio.to_thread(self._blobs.drop_copies, row.name)
        await self.restore_job(row)
        self._event_bus.publish(Item("job", row.name, {}))

    async def assigned_rows(self, names: set[str]) -> list[Row[Any]]:
        """Return the rows of those jobs that this follower owns and does not run yet."""
        query = select(jobs).where(
            jobs.c.name.in_(names), jobs.c.owner == self._registry.owner, jobs.c.ended_at.is_(None)
        )
        rows = await self._database.write(lambda c: c.execute(query).all())
        known = self._registry
        return [row for row in rows if not known.has_job(row.name) and not known.is_claimed(row.name)]

    async def hand_over(self, name: str, follower: str) -> None:
        """Assign a job to a follower. On `StorageFailed` the job is stopped, and restored later."""
        record = self._registry.records.pop(name)
        assert record.runner is not None
        await record.runner.stop()
        await self._database.write(partial(job_owners.assign, job=name, follower=follower))
        crashpoint("owner.assigned")

    async def _start_runner(self, record: JobRecord, start: JobStart) -> None:
        blobs = self._blobs.of(record.spec.name)
        runner = JobRunner(record.spec, start, blobs, self._services)
        record.runner = runner
        self._registry.records[runner.name] = record
        await self._retention.remove_partials(blobs)  # first: a restoration may need the room
        await runner.start()
        await self._retention.sweep_orphans(runner.blob_use)
        await self._evaluate_newest(record.spec, runner)

    async def _evaluate_newest(self, spec: JobSpec, runner: JobRunner) -> None:
        """Start the held-out evaluation of the newest version if a crash prevented it."""
        if spec.held_out is None:
            return
        query = select(versions).where(versions.c.job == spec.name).order_by(versions.c.number.desc()).limit(1)
        row = await self._database.write(lambda c: c.execute(query).first())
        if row is not None and not any(name.startswith("held_out/") for name in row.metrics):
            stored = StoredVersion(row.number, BlobRef(row.digest, row.nbytes), stage_of(row.numbers))
            self.evaluator.add(spec, stored, runner.blobs)

    async def set_tags(self, name: str, tags: tuple[str, ...]) -> None:
        """Replace the tags of a job."""
        record = self._registry.job(name)
        row = update(jobs).where(jobs.c.name == name).values(tags=list(tags))
        await self._database.write(lambda c: c.execute(row))
        record.tags = tags
        self._event_bus.publish(Item("job", name, {}))

    async def remove_job(self, name: str) -> None:
        """Delete a job that has ended: its blobs, its rows, and what is known of it in memory.

        Raises `Refused` (`job.unknown`, `job.active`) and `StorageFailed`; then call it again.
        """
        record = self._registry.job(name)
        if record.runner is not None and record.runner.gate.has_ended:
            await record.runner.feed.wait_written()
            await self._finish_if_ended(record, record.runner)  # else a job that shows its end is active until a tick
        async with self._retention.lock:
            record = self._registry.job(name)
            await removal.delete_job(record, self._blobs.of(name), self._database, self.flush)
            del self._registry.records[name]
            self._forget_job(name)
        log.info("job removed", job=name)

    async def process_closed_versions(self) -> None:
        """Evaluate closed versions, delete old models, and finish jobs that have ended."""
        for record in list(self._registry.records.values()):
            runner = record.runner
            if runner is None:
                continue
            closed, runner.feed.closed_versions = runner.feed.closed_versions, []
            for version in closed:
                stored = StoredVersion(version.number, version.model, stage_of(version.numbers))
                self.evaluator.add(record.spec, stored, runner.blobs)
            if closed:
                await self._retention.sweep_closed(runner.blob_use, closed)
            try:
                await self._finish_if_ended(record, runner)
            except StorageFailed as error:
                log.error("end of job not written; trying again", job=runner.name, error=repr(error))
            if record.ended_at is not None and time.time() - record.ended_at > HANDED_S:
                await self._drop_handed_over(runner.name)

    async def _finish_if_ended(self, record: JobRecord, runner: JobRunner) -> None:
        """Finish a job that has ended, once, unless its effects or evaluations are still to be written."""
        async with self._finishing:
            waiting = runner.feed.pending or self.evaluator.is_busy(runner.name)
            if runner.gate.has_ended and record.ended_at is None and not waiting:
                await self._finish_job(record, runner)

    async def _finish_job(self, record: JobRecord, runner: JobRunner) -> None:
        """Write the last view of a job that has ended, and publish its end once that is durable."""
        ended_at = time.time()
        await self._database.write(lambda c: version_history.mark_complete(c, runner.name))
        job = await self._presenter.job(replace(record, ended_at=ended_at))
        nodes = [node.model_dump(mode="json") for node in self._presenter.job_nodes(runner)]
        summary = {"job": job.model_dump(mode="json"), "nodes": nodes}
        row = update(jobs).where(jobs.c.name == runner.name).values(ended_at=ended_at, summary=summary, owner=LEADER)
        await self._database.write(lambda c: c.execute(row))
        record.ended_at, record.summary = ended_at, summary
        self.on_ended(job)
        self._event_bus.publish(Item("job", runner.name, {}))

    async def _store_evaluation(self, job: str, number: int, metrics: dict[str, Any]) -> None:
        """Store the held-out metrics of a version. If the job moved, its new owner evaluates again."""
        record = self._registry.records.get(job)
        if record is not None and record.runner is not None:
            await self._database.write(lambda c: merge_metrics(c, job, number, metrics))
            await record.runner.feed.publish("metrics", {"number": number, "metrics": metrics})
