"""The pump of a `Worker`: it feeds events and carries out their effects.

    Save Memory        stored durably, first of all
    a new report       stored durably before it is sent; deleted only when the worker has forgotten it
    Send Report/Fail   delivered until it is answered or superseded: see `report_delivery`
    Work, Amend        executed in the training thread: see `task_execution`; the end comes back as `TaskDone`
    Cancel             stops the execution; its result is dropped
    Send Status        sent once; the worker repeats it at its alarm
    Wake               sets the alarm

`Join`, `Poll` and `Leave` are sent by the node's agent, for all its jobs at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from shoal.core.client.worker import Worker
from shoal.core.errors import StorageFailed
from shoal.core.protocol.machine import (
    Amend,
    Cancel,
    Effect,
    JobEvent,
    Memory,
    ReportRejected,
    Save,
    Send,
    Timer,
    Wake,
    Work,
)
from shoal.core.protocol.message import Leave, Report, TaskFailed, TaskId, TaskStatus
from shoal.runtime.event_pump import EventPump, feed_in_thread
from shoal.runtime.report_delivery import ReportDelivery
from shoal.runtime.task_execution import BlobFetcher, TaskExecution
from shoal.runtime.worker_ports import HeldTask, WorkerPorts, task_label

ANSWERED = 2**31
"""The revision of a task whose answer exists: no amendment matters any more."""


class ReportStore:
    """The worker's memory and report on the disk. One call at a time; it blocks."""

    def __init__(self, worker: Worker, ports: WorkerPorts, submit: Callable[[ReportRejected], None]) -> None:
        self._worker, self._state, self._submit = worker, ports.state, submit
        self._saved = worker.unacknowledged if isinstance(worker.unacknowledged, Report) else None
        self.log: Any = structlog.get_logger("shoal.pump")

    def save(self, effects: Sequence[Effect]) -> bool:
        """Store what must last; return False if the worker's report could not be stored and must not be sent."""
        for effect in effects:
            if isinstance(effect, Save) and isinstance(effect.what, Memory):
                self._state.commit_memory(effect.what.blob)
        return self.save_report()

    def save_report(self) -> bool:
        """Store the worker's report, or delete one that it has forgotten; return False if a report is not stored."""
        report = self._worker.unacknowledged if isinstance(self._worker.unacknowledged, Report) else None
        if report is self._saved:
            return True
        try:
            self._state.save_report(report, self._worker.pending)
        except StorageFailed as error:
            self.log.error("cannot store the report", why=error.message, hint=error.hint)
            if report is not None:
                self._submit(ReportRejected(report.task, f"this node cannot keep it: {error.message}"))
                return False
        self._saved = report
        return True


class WorkerEffects:
    """A worker with what carries out its effects."""

    def __init__(self, worker: Worker, delivery: ReportDelivery, execution: TaskExecution) -> None:
        self.worker, self.delivery, self._execution = worker, delivery, execution
        self._settled = asyncio.Event()

    @property
    def held(self) -> TaskId | None:
        """Return the task that the worker works on or answers. Any thread may call."""
        task, report = self.worker.task, self.worker.unacknowledged  # another thread may change them: read once
        if task is not None:
            return task.id
        return report.task if report is not None else None

    @property
    def revision(self) -> int:
        """Return the task's revision; `ANSWERED` once its answer exists. Any thread may call."""
        task, report = self.worker.task, self.worker.unacknowledged
        return ANSWERED if report is not None or task is None else task.revision

    async def wait_settled(self, *, train_s: float, upload_s: float) -> bool:
        """Wait `train_s` for running work and `upload_s` for an answer; return False if a task is still held."""
        patience_s = upload_s + (train_s if self.worker.is_working else 0.0)
        if self.worker.unacknowledged is not None or (self.worker.is_working and train_s > 0):
            try:
                await asyncio.wait_for(self._settled.wait(), patience_s)
            except TimeoutError:
                return False
        return True

    def apply(self, effects: Sequence[Any], *, is_saved: bool) -> None:
        """Carry out effects. `is_saved`: the worker's report is on the disk, so that it may be sent."""
        self.delivery.stop_unless(self.worker.unacknowledged)
        for effect in effects:
            match effect:
                case Work():
                    self._execution.start(effect)
                case Amend():
                    self._execution.amend(effect.task)
                case Cancel():
                    self._execution.stop()
                case Send(message=TaskStatus() as report):
                    self.delivery.send_status(report)
                case Send(message=Report() as report) if is_saved:
                    self.delivery.deliver(report)
                case Send(message=TaskFailed() as report):
                    self.delivery.deliver(report)
        if self.held is None:
            self._settled.set()
        else:
            self._settled.clear()


class WorkerPump:
    """The pump of one job (`JobPump`)."""

    def __init__(self, job: str, worker: Worker, ports: WorkerPorts) -> None:
        self.worker, self._clock = worker, ports.clock
        self.events: EventPump[Any, tuple[Sequence[Effect], bool], bool] = EventPump(
            feed_in_thread(self._feed), self._apply, alarm_event=Timer(), answer_at_end=False, clock=ports.clock
        )
        events = self.events
        delivery = ReportDelivery(job, ports, events.submit_nowait, events.spawn)
        execution = TaskExecution(job, ports, events.submit_nowait, events.spawn, BlobFetcher(job, ports))
        self._effects = WorkerEffects(worker, delivery, execution)
        self._store = ReportStore(worker, ports, events.submit_threadsafe)
        self.log: Any = structlog.get_logger("shoal.pump").bind(job=job)

    @property
    def held(self) -> TaskId | None:
        return self._effects.held

    @property
    def revision(self) -> int:
        return self._effects.revision

    @property
    def fetching(self) -> HeldTask | None:
        return None  # a worker takes a task before it fetches its model

    @property
    def stopped(self) -> str:
        return self.worker.stopped

    async def submit(self, event: Any) -> bool:
        return await self.events.submit(event)

    async def leave(self, *, train_s: float, upload_s: float) -> None:
        if not await self._effects.wait_settled(train_s=train_s, upload_s=upload_s):
            self.log.info("leaving before the task is done", task=task_label(self.held))
        await self.submit(Leave(self.worker.node))

    async def run(self) -> str:
        await self.events.run(None)
        return self.worker.stopped

    def _feed(self, event: Any) -> tuple[Sequence[Effect], bool]:
        """Feed one event (None: the start), and store what must last; runs in a thread."""
        now = self._clock()
        effects = self.worker.start(now) if event is None else self.worker.on(event, now)
        return effects, self._store.save(effects)

    def _apply(self, event: Any, outcome: tuple[Sequence[Effect], bool]) -> bool:
        effects, is_saved = outcome
        self._effects.apply(effects, is_saved=is_saved)
        for effect in effects:
            if isinstance(effect, Wake):
                self.events.set_alarm(effect.at)
            elif isinstance(effect, JobEvent):
                self.log.info(effect.text)
        if self.worker.stopped:
            self.events.stop()
        return bool(effects or self.worker.stopped)
