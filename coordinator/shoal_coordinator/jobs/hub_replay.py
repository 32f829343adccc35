"""The construction of a job's hub, from nothing or from its journal."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import structlog

from shoal.core.errors import StorageFailed, message_of
from shoal.core.protocol.machine import Save
from shoal.core.protocol.message import BlobRef, Report
from shoal.core.server.hub import Hub
from shoal.jobs.spec import JobSpec
from shoal.runtime.blob_files import FileBlobs
from shoal_coordinator.jobs import journal
from shoal_coordinator.jobs.hub_gate import ENDED
from shoal_coordinator.jobs.journal import AppliedEntry, JournalEntry
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry import failures, job_events
from shoal_coordinator.telemetry.event_bus import Item
from shoal_coordinator.telemetry.metrics import Metrics
from shoal_coordinator.telemetry.report_store import counted

log = structlog.get_logger()


@dataclass(frozen=True)
class JobStart:
    """The start of a job: at a model that came with it, if one did, of which version and term."""

    model: BlobRef | None = None
    version: int = 0
    term: int = 0
    """0: it began here; else this coordinator goes on with it, and its own terms are above."""
    node: str = ""
    """The node that had kept that model."""
    base: BlobRef | None = None
    """The base model that nodes without it can fetch."""

    def base_of(self, digest: str) -> BlobRef | None:
        """Return the base model if it has that digest."""
        return self.base if self.base is not None and self.base.digest == digest else None

    def recovered_text(self) -> str:
        """Return the job event of a job that continues another coordinator's."""
        source = f"the checkpoint of {self.node}" if self.node else "a node's checkpoint"
        text = f"restored from {source} at version {self.version}, term {self.term + 1}"
        return f"{text}; earlier versions, measurements and byte counts are not known here"


class Replayed(NamedTuple):
    """A hub that was restored, and what it was restored from."""

    hub: Hub
    state: dict[str, Any] | None
    """The snapshot; None: there is none."""
    now: float
    seq: int
    entries: list[JournalEntry]
    """The entries after the snapshot."""
    applied: list[AppliedEntry]


class HubReplay:
    """The hubs of one job: builds them, applies entries of the journal to them, and restores them."""

    def __init__(self, spec: JobSpec, start: JobStart, blobs: FileBlobs, database: Database, metrics: Metrics) -> None:
        self._job, self._blobs, self._database, self._metrics = spec.name, blobs, database, metrics
        self.plan = spec.plan(start.model, start.version, start.term)
        self._algorithm, self._schedule = spec.build_algorithm(), spec.build_schedule()
        self._shard_pool = ThreadPoolExecutor(min(spec.shards, os.cpu_count() or 1), f"shards of {spec.name}")

    def build(self, state: dict[str, Any] | None = None) -> Hub:
        """Return a new hub, or one with the state of a snapshot."""
        hub = Hub(self.plan, self._algorithm, self._schedule, self._blobs, state)
        hub.store.map_shards = self._shard_pool.map
        return hub

    def close(self) -> None:
        """Stop the threads that fold shards."""
        self._shard_pool.shutdown()

    def apply_all(self, hub: Hub, entries: Sequence[JournalEntry]) -> list[AppliedEntry]:
        """Apply entries to a hub, and measure how long folds take. Call it in a thread: reports may be large."""
        fold = self._metrics.fold
        return [
            fold(self._job, entry.event, partial(self.apply, hub, entry))
            if isinstance(entry.event, Report)
            else self.apply(hub, entry)
            for entry in entries
        ]

    def apply(self, hub: Hub, entry: JournalEntry) -> AppliedEntry:
        """Apply one entry to a hub."""
        ended, task = hub.progress.phase in ENDED, failures.task_before(hub, entry.event)
        report = counted(hub, entry.event)
        with self._blobs.lent(entry.inline()):
            effects = hub.on(entry.event, entry.now)
        keep = any(isinstance(e, Save) for e in effects) or (hub.progress.phase in ENDED and not ended)
        failure = failures.from_event(hub, task, entry.event, effects) if task is not None else None
        report = report if report is not None and report.is_in(effects) else None
        return AppliedEntry(entry, effects, hub.snapshot() if keep else None, failure, report)

    async def replay(self) -> Replayed:
        """Restore a hub from the last snapshot and the entries after it."""
        state, now, entries, seq = await self._database.write(lambda c: journal.load(c, self._job))
        hub = self.build(state)
        applied = await asyncio.to_thread(lambda: [self.apply(hub, entry) for entry in entries])
        if self._blobs.far:  # blobs that are sent with tasks are read where no other request may wait
            await asyncio.to_thread(self._blobs.fetch, hub.state.blob_refs())
        return Replayed(hub, state, now, seq, entries, applied)

    async def skip_poison(self, failure: Exception) -> list[Item] | None:
        """Find the first entry that breaks a hub, and mark it as skipped.

        Returns what browsers are told of it, or None if no entry was found.
        """
        write = self._database.write
        try:
            state, _, entries, _ = await write(lambda c: journal.load(c, self._job))
            hub = self.build(state)
            for entry in entries:
                try:
                    await asyncio.to_thread(self.apply, hub, entry)
                except StorageFailed:  # not the entry's fault
                    raise
                except Exception as error:  # noqa: BLE001 - this is the entry
                    log.error("event set aside", job=self._job, seq=entry.seq, error=repr(error))
                    kind, node = type(entry.event).__name__, getattr(entry.event, "node", "")
                    text = f"event {entry.seq} ({kind} {node}) breaks the hub and was set aside: {message_of(error)}"
                    event = job_events.job_event("warning", text, hub.progress.version, node)
                    return await write(partial(journal.skip_event, job=self._job, seq=entry.seq, why=event))
        except Exception as error:  # noqa: BLE001 - an unreadable snapshot, or the disk
            log.error("the search for the event failed", job=self._job, error=repr(error), after=repr(failure))
        return None
