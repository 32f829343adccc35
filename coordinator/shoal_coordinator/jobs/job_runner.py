"""The runner of a job: journals events, feeds them to the hub, and carries out what follows.

    submit(event) ─ queue ─ batch ─ append + commit ─ feed in a thread ─ answer ─ project (versions, events, snapshot)

Events that arrive while a batch is on the disk form the next batch: that is the group commit. The journal has the order
in which events are fed. No event is answered before it is durable, and none is fed that is not; so a crash at any point
is repaired by `start`, which feeds the journal after the last snapshot again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from shoal.core.errors import Refused, StorageFailed, message_of
from shoal.core.protocol.machine import Effect, HubEvent, Restarted, Send, Timer, Wake
from shoal.core.protocol.message import Ack, Task
from shoal.core.server.hub import Hub
from shoal.jobs.spec import JobSpec
from shoal.runtime.blob_files import FileBlobs
from shoal_coordinator.jobs import hub_gate, journal
from shoal_coordinator.jobs.blob_use import BlobUse
from shoal_coordinator.jobs.event_queue import EventQueue, PendingEvent
from shoal_coordinator.jobs.hub_gate import HubGate, JobClock
from shoal_coordinator.jobs.hub_replay import HubReplay, JobStart
from shoal_coordinator.jobs.job_feed import JobFeed
from shoal_coordinator.jobs.journal import AppliedEntry, JournalEntry
from shoal_coordinator.nodes.wakeups import Wakeups
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.crashpoints import crashpoint
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry.event_bus import EventBus
from shoal_coordinator.telemetry.metrics import Metrics
from shoal_coordinator.telemetry.task_timing import TaskTimers
from shoal_coordinator.updates.pending_uploads import NodeByteLimit
from shoal_coordinator.updates.uploads import ReportLayouts, Uploads

log = structlog.get_logger()

BATCH_MAX = 256
"""Events that share one commit."""

NAP_S_MAX = 3600.0
"""Longest wait for an alarm (s): event loops limit their timeouts."""

RETRY_S = 2.0
"""Pause before a write that failed (a full disk) is tried again."""


@dataclass(frozen=True)
class JobServices:
    """The parts of a coordinator that the runners of all its jobs share."""

    database: Database
    event_bus: EventBus
    settings: Settings
    wakeups: Wakeups
    """By node: set when something was sent to it, in any job."""
    node_bytes: NodeByteLimit
    metrics: Metrics


class JobRunner:
    """The only writer of a job's hub. Others read the hub from the event loop while `gate` is open."""

    def __init__(self, spec: JobSpec, start: JobStart, blobs: FileBlobs, services: JobServices) -> None:
        self.spec, self.blobs, self._services = spec, blobs, services
        self._replay = HubReplay(spec, start, blobs, services.database, services.metrics)
        self.clock = JobClock()
        self.gate = HubGate(spec.name, self._replay.build(), services.wakeups)
        self.feed = JobFeed(spec.name, self.gate, services.database, services.event_bus, services.metrics)
        self.layouts = ReportLayouts(lambda: self.gate.hub)
        self._stopping = asyncio.Event()
        self.blob_use = BlobUse(spec.name, blobs, self.gate, self._owns)
        self.uploads, self.task_timers = Uploads(blobs, services.settings), TaskTimers(self.clock.now)
        self.uploads.track_pending(services.node_bytes, self.blob_use.discard)
        self._seq = 0
        self._queue = EventQueue()
        self._task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Return the job's name."""
        return self.spec.name

    @property
    def hub(self) -> Hub:
        """Return the job's hub."""
        return self.gate.hub

    def _owns(self) -> bool:
        return self._services.database.owns and not self._stopping.is_set()

    async def start(self) -> None:
        """Restore the hub from the journal and run. Returns when the job has started, or is in trouble."""
        self._task = asyncio.create_task(self._serve(), name=f"job {self.name}")
        await self.gate.started.wait()

    async def stop(self) -> None:
        """Finish the batch in progress, and stop. The journal has all that a restart needs."""
        self._stopping.set()
        self._queue.close()
        if self._task is not None:
            await self._task
        self._replay.close()

    async def submit(self, event: HubEvent, body: bytes | None = None) -> Sequence[Effect]:
        """Journal an event, feed it to the hub, and return its effects. Raises `StorageFailed`: it is not durable."""
        if self.gate.is_restoring:
            await self.gate.wait_consistent()
        return await self._enqueue(event, body)

    def submit_nowait(self, event: HubEvent) -> None:
        """Queue an event. A job that is being restored takes it afterwards."""
        self._enqueue(event)

    def _enqueue(self, event: HubEvent, body: bytes | None = None) -> asyncio.Future[Sequence[Effect]]:
        pending = PendingEvent(event, body)
        if self._task is not None and self._task.done():
            pending.fail(StorageFailed(f"job {self.name} does not run here any more", hint="send again in a moment"))
        self._queue.put(pending)
        return pending.future

    async def submit_for_ack(self, event: HubEvent, node: str, body: bytes | None = None) -> Ack:
        """Submit an event, and return the acknowledgement for its node."""
        for effect in await self.submit(event, body):
            if isinstance(effect, Send) and effect.to == node and isinstance(effect.message, Ack):
                return effect.message
        raise Refused("the hub gave no answer", code="task.none", hint="poll again")

    def check_gossip(self) -> None:
        """Raise `Refused` unless the job may go on by gossip."""
        if not self.spec.gossip.allowed:
            raise Refused(
                f"job {self.name} does not allow its nodes to continue it as peers",
                code="gossip.not-allowed",
                hint="set allowed = true under [gossip] in its file, and start it as a new job",
            )

    def task_of(self, node: str) -> Task | None:
        """Return the current task of a node."""
        member = self.hub.roster.get(node)
        return member.task if member is not None else None

    # The loop

    async def _serve(self) -> None:
        await self._rebuild()
        if not self.gate.is_restoring:
            await self._commit_batch([PendingEvent(Restarted(time.time(), incarnation=secrets.randbits(52) + 1))])
        self.gate.started.set()
        while not self.gate.is_restoring:  # only a job that was stopped meanwhile: its hub must not take any event
            batch, ends = await self._next_batch()
            if batch:
                await self._commit_batch(batch)
            if ends:
                await self._project()
                break
        self._queue.fail_all(StorageFailed("the job does not run here any more", hint="send again in a moment"))

    async def _next_batch(self) -> tuple[list[PendingEvent], bool]:
        """Return all queued events, or a Timer when the alarm is due; and whether this is the end."""
        alarm = self.clock.alarm
        delay = None if alarm is None else min(max(0.0, alarm - self.clock.now()), NAP_S_MAX)
        try:
            async with asyncio.timeout(delay):
                await self._queue.wait()
        except TimeoutError:
            if alarm is not None and alarm > self.clock.now():
                return [], False
            self.clock.alarm = None
            return [PendingEvent(Timer())], False
        batch = self._queue.take(BATCH_MAX)
        return batch, self._queue.is_closed and not self._queue

    async def _commit_batch(self, batch: list[PendingEvent]) -> None:
        """Journal a batch, feed it, and answer it."""
        now, at = self.clock.now(), time.time()
        entries = [JournalEntry(self._seq + i, now, at, one.event, one.body) for i, one in enumerate(batch, start=1)]
        try:
            await self._services.database.write(lambda c: journal.append(c, self.name, entries))
        except StorageFailed as error:
            self._fail_batch(batch, error)
            return
        self._seq += len(batch)
        self.blob_use.journaled(entries)
        if not self.feed.pending:  # else the trouble is over when that is written too
            self.gate.trouble = ""
        crashpoint("runner.journaled")
        self.gate.close()
        try:
            applied = await asyncio.to_thread(self._replay.apply_all, self.hub, entries)
        except Exception as error:  # noqa: BLE001 - after any error the hub's state is in doubt
            await self._recover(batch, error)
            return
        crashpoint("runner.fed")
        self._dispatch_effects(applied)
        for pending, one in zip(batch, applied, strict=True):
            pending.succeed(one.effects)
        for report in (one.report for one in applied if one.report is not None):  # a replay keeps what was written
            report.phases, report.at_s = self.task_timers.finish(report.node, report.task), self.clock.now()
        self.feed.pending += applied
        if not self._queue or len(self.feed.pending) >= BATCH_MAX or any(one.state is not None for one in applied):
            await self._project()  # else together with the events in the queue: answers first, and one write for both

    def _fail_batch(self, batch: list[PendingEvent], error: StorageFailed) -> None:
        """Fail a batch that was not journaled. An alarm replaces timers: no client sends them again."""
        self.gate.report_trouble(error.message)
        for pending in batch:
            pending.fail(error)
        if any(isinstance(pending.event, Timer | Restarted) for pending in batch):
            self._retry_soon()

    def _retry_soon(self) -> None:
        """Feed a timer after `RETRY_S`. One too many does no harm: the hub checks the time."""
        self.clock.wake_by(self.clock.now() + RETRY_S)

    def _dispatch_effects(self, applied: Sequence[AppliedEntry]) -> None:
        """Open the gate, wake the nodes that have a new task, and set the alarm."""
        self.feed.note_modes(applied)
        self.gate.open()
        for one in applied:
            for effect in one.effects:
                if isinstance(effect, Send) and not isinstance(effect.message, Ack):  # its submitter returns an Ack
                    self._services.wakeups[effect.to].set()
                    if isinstance(effect.message, Task):
                        self.task_timers.given(effect.to, effect.message.id)
                elif isinstance(effect, Wake):
                    self.clock.alarm = effect.at
        if self.gate.has_ended:
            self.clock.alarm = None

    async def _project(self) -> None:
        """Write what people read. If the disk refuses, it is written with the next batch."""
        try:
            written = await self.feed.write()
        except StorageFailed as error:
            self.gate.report_trouble(error.message)
            self._retry_soon()
            return
        self.gate.trouble = ""
        for one in written:
            if one.state is not None:
                self.blob_use.snapshotted(one.entry.seq, one.state)

    # Repair

    async def _recover(self, batch: list[PendingEvent], error: Exception) -> None:
        """Rebuild a hub whose state is in doubt from the journal.

        The batch's events are in the journal, and count if they can be fed then; so their submitters get an error that
        says neither.
        """
        log.error("an event broke the hub; rebuilding", job=self.name, error=repr(error), exc_info=error)
        self.gate.begin_restoring()
        self.gate.report_trouble(message_of(error))
        for pending in batch:
            pending.fail(error if isinstance(error, StorageFailed) else self.gate.unavailable())
        asyncio.get_running_loop().call_later(hub_gate.SETTLE_S, self._fail_waiting)
        await self._rebuild()
        if not self.gate.has_ended:
            self._retry_soon()  # the event that broke it may have been the timer

    def _fail_waiting(self) -> None:
        """Fail the submitters of queued events every `SETTLE_S`; the events stay in the queue."""
        if self.gate.is_restoring and not self._stopping.is_set():
            self._queue.fail_all(self.gate.unavailable())
            asyncio.get_running_loop().call_later(hub_gate.SETTLE_S, self._fail_waiting)

    async def _rebuild(self) -> None:
        """Restore the hub, however long that takes. Returns without a hub only if the coordinator stops."""
        while not self._stopping.is_set():
            try:
                await self._restore()
                return
            except StorageFailed as failure:  # a full disk, a missing blob: wait for help
                self.gate.report_trouble(failure.message)
            except Exception as failure:  # noqa: BLE001 - a bug that one event meets must not end the job
                items = await self._replay.skip_poison(failure)
                if items is not None:
                    self.feed.publish_items(items)
                    continue
                self.gate.report_trouble(f"cannot be restored: {failure!r}")
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._stopping.wait()

    async def _restore(self) -> None:
        """Replay the journal. Effects of replayed events are projected, but not sent."""
        found = await self._replay.replay()
        await self.feed.load()
        self._seq, self.feed.pending = found.seq, found.applied
        self.clock.set(found.now)
        self.blob_use.restored(found.state, found.entries)
        self.gate.replace(found.hub)
        self._dispatch_effects(found.applied)
        if found.applied:
            log.info("replayed", job=self.name, events=len(found.applied), version=self.hub.progress.version)
            await self._project()
