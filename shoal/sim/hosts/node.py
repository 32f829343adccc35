"""A simulated edge client: a process that dies and comes back, and a disk that may survive it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.core.client.worker import Worker
from shoal.core.errors import InvalidPayload, LearnerFailed
from shoal.core.gossip.gossip_state import LivePeers
from shoal.core.protocol.machine import (
    Amend,
    Cancel,
    Effect,
    Event,
    Memory,
    ReportRejected,
    Save,
    Send,
    TaskDone,
    TaskProgress,
    TaskResult,
    Timer,
    Wake,
    Work,
)
from shoal.core.protocol.message import BlobRef, Leave, Message, Report, Task, TaskStatus
from shoal.core.protocol.peer_message import PeerMessage
from shoal.sim.hosts.sim_process import SimulatedProcess
from shoal.sim.hosts.work import SimulatedTask
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.observer import Observer

Perform = Callable[[str, Task, BlobRef | None], SimulatedTask]
"""`(node, task, private memory)` starts the work. Raises `LearnerFailed` or `InvalidPayload` when it fails."""

NodeEvent = Event | Message | ReportRejected | PeerMessage | LivePeers

DOWN_S = 5.0
"""Longest time in seconds between a process's death and the next one."""


@dataclass
class _TaskInProgress:
    """The task in progress; `task` as amended. `waits`: a piece is done, and the next one needs the hub's word."""

    work: Work
    task: Task
    simulated: SimulatedTask | None = None
    waits: bool = False


@dataclass
class NodeDisk:
    """Durable state: the private memory; the unacknowledged report, and the memory that it leads to."""

    memory: BlobRef | None = None
    spool: tuple[Report, BlobRef | None] | None = None


class NodeMachine(Protocol):
    """The state machine of a node."""

    worker: Worker

    def start(self, process: int, disk: NodeDisk, now: float) -> Sequence[Effect]:
        """Start again over the disk, in the process of that number."""
        ...

    def on(self, event: NodeEvent, now: float) -> Sequence[Effect]: ...

    def carry_out(self, effect: Effect) -> None:
        """Carry out an effect that concerns this kind of machine alone."""
        ...

    def blob_refs(self) -> Sequence[BlobRef | None]:
        """Return the blobs that it needs in addition to its worker's."""
        ...


class WorkerMachine:
    """A worker without peers."""

    def __init__(self, name: str, heartbeat_s: float) -> None:
        self._name, self._heartbeat_s = name, heartbeat_s
        self.worker = Worker(name, heartbeat_s=heartbeat_s)

    def start(self, process: int, disk: NodeDisk, now: float) -> Sequence[Effect]:
        self._restore(disk)
        return self.worker.start(now)

    def _restore(self, disk: NodeDisk) -> None:
        self.worker = Worker(self._name, heartbeat_s=self._heartbeat_s, memory=disk.memory)
        if disk.spool is not None:
            self.worker.restore_answer(*disk.spool)

    def on(self, event: NodeEvent, now: float) -> Sequence[Effect]:
        return self.worker.on(event, now)  # type: ignore[arg-type]

    def carry_out(self, effect: Effect) -> None:
        """Ignore the effect: a worker has no others."""

    def blob_refs(self) -> Sequence[BlobRef | None]:
        return []


class NodeWork:
    """A node's task in progress. `finish(event)` takes results; `work_s(task)`: seconds that a piece takes."""

    def __init__(
        self,
        name: str,
        process: SimulatedProcess | VirtualClock,
        perform: Perform,
        work_s: Callable[[Task], float],
        *,
        watch: Observer,
        finish: Callable[[Event], None],
    ) -> None:
        self._name, self._process, self._perform, self._work_s = name, process, perform, work_s
        self._watch, self._finish = watch, finish
        self._task: _TaskInProgress | None = None
        self.tasks_started = 0
        self.held: BlobRef | None = None
        """The reference model of the task in progress, if there is one."""

    def start(self, work: Work) -> None:
        """Start a task in place of any other."""
        self._task = _TaskInProgress(work, work.task)
        self.tasks_started += 1
        self._watch.started(self._name, work)
        self._process.after(self._work_s(work.task), self._run_piece, self._task)

    def amend(self, task: Task) -> None:
        """Replace the task's text."""
        if self._task is not None:
            self._task.task = task
            self._continue()

    def drop(self) -> None:
        """Drop the task."""
        self._task = None

    def _run_piece(self, running: _TaskInProgress) -> None:
        """Do a piece of the work, after the time that it takes."""
        if self._task is not running:
            return
        try:
            if running.simulated is None:
                running.simulated = self._perform(self._name, running.task, running.work.memory)
            made = running.simulated.run_piece(running.task)
        except (LearnerFailed, InvalidPayload) as error:
            self._task = None
            self._finish(TaskDone(running.task.id, None, error.message))
            return
        self.held = running.simulated.held
        self._watch.holds(self._name, self.held)
        if isinstance(made, TaskResult):
            self._task = None
            self._watch.worked(self._name, running.task.id, made)
            self._finish(TaskDone(running.task.id, made))
            return
        if isinstance(made, TaskStatus):
            self._finish(TaskProgress(made))
        running.waits = True
        self._continue()

    def _continue(self) -> None:
        """Start the next piece, if one is done and the task allows it. A recalled task only has to report."""
        running = self._task
        if running is None or not running.waits or running.simulated is None:
            return
        if running.simulated.can_continue(running.task):
            running.waits = False
            self._process.after(0.0 if running.task.recall else self._work_s(running.task), self._run_piece, running)


class SimulatedNode:
    """One edge client. `uplink(message)` sends to the hub."""

    def __init__(
        self,
        name: str,
        process: SimulatedProcess,
        machine: NodeMachine,
        uplink: Callable[[Message], None],
        perform: Perform,
        work_s: Callable[[Task], float],
        *,
        watch: Observer,
    ) -> None:
        self.name, self.process, self.machine = name, process, machine
        self._uplink, self._watch = uplink, watch
        self.disk = NodeDisk()
        self.work = NodeWork(name, process, perform, work_s, watch=watch, finish=self.feed)

    @property
    def up(self) -> bool:
        """Return whether a process runs."""
        return self.process.up

    # Processes

    def start(self) -> None:
        """Start a new process, unless one runs. Private memory and spool come from the disk."""
        if self.up:
            return
        self.process.start()
        self._watch.node_started(self.name)
        self._carry_out(self.machine.start(self.process.number, self.disk, self.process.clock.now))

    def leave(self) -> None:
        """Leave the job, if a process runs."""
        if self.up:
            self.feed(Leave(self.name))

    def _end(self) -> None:
        self.process.end()
        self.work.drop()

    def vanish(self) -> None:
        """End the process without a message; nothing starts the next one."""
        if self.up:
            self._end()
            self._watch.node_died(self.name, self.disk.memory, True)

    def restart(self) -> None:
        """Kill the process and start another."""
        self.vanish()
        self.start()

    def _dies(self) -> bool:
        """Count a step; on a death, plan the next process over what is left of the disk."""
        crashes = self.process.crashes
        if self.up and crashes.strikes():
            self._end()
            disk_survived = crashes.disk_survives()
            if not disk_survived:
                self.disk = NodeDisk(self.disk.memory) if crashes.coin() else NodeDisk()
            self._watch.node_died(self.name, self.disk.memory, disk_survived)
            self.process.clock.after(crashes.seconds(DOWN_S), self.start)
        return not self.up

    # Events

    def receive(self, process: int, message: NodeEvent) -> None:
        """Deliver a message to that process. A connection dies with its process."""
        if self.up and process == self.process.number:
            self.feed(message)

    def feed(self, event: NodeEvent) -> None:
        """Feed an event to the machine of the running process."""
        self._carry_out(self.machine.on(event, self.process.clock.now))
        if self.up and self.machine.worker.stopped:
            self._end()

    # Effects

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        """Store new memory, then the report, then carry out the other effects: a report is durable before it is
        sent."""
        for effect in effects:
            if isinstance(effect, Save):
                if self._dies():
                    return
                self._save(effect)
        if not self._spool():
            return
        for effect in effects:
            if self._dies():
                return
            self._carry_out_one(effect)

    def _carry_out_one(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._uplink(effect.message)
            case Wake():
                self.process.wake(effect.at, self.feed, Timer())
            case Work():
                self.work.start(effect)
            case Amend():
                self.work.amend(effect.task)
            case Cancel():
                self.work.drop()
            case Save():
                pass  # stored before
            case _:
                self.machine.carry_out(effect)

    def _save(self, effect: Save) -> None:
        if isinstance(effect.what, Memory):
            self.disk.memory = effect.what.blob
            self._watch.committed(self.name, effect.what.blob)
        else:
            self.machine.carry_out(effect)

    def _spool(self) -> bool:
        """Store the worker's report; return False when the process dies first."""
        worker = self.machine.worker
        report = worker.unacknowledged
        kept = (report, worker.pending) if isinstance(report, Report) else None
        if kept != self.disk.spool:
            if self._dies():
                return False
            self.disk.spool = kept
        return True

    def blob_refs(self) -> list[BlobRef | None]:
        """Return the blobs that disk and process need."""
        worker, (spooled, pending) = self.machine.worker, self.disk.spool or (None, None)
        refs = [self.disk.memory, worker.memory, worker.pending, pending, *self.machine.blob_refs()]
        refs += [holder.blob for holder in (worker.task, spooled) if holder is not None]
        refs.append(worker.task.reference if worker.task is not None else None)
        return refs + ([worker.unacknowledged.blob] if isinstance(worker.unacknowledged, Report) else [])
