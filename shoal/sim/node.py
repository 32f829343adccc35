"""An edge client's shell, simulated: a process that dies and comes back, and a disk that may survive it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.core.errors import InvalidPayload, LearnerFailed
from shoal.core.machine import (
    Amend,
    Cancel,
    Done,
    Effect,
    Event,
    Memory,
    Progress,
    Rejected,
    Result,
    Save,
    Send,
    Standing,
    Timer,
    Version,
    Wake,
    Work,
)
from shoal.core.message import Leave, Message, Order, Ref, Report, Status
from shoal.core.worker import Worker
from shoal.sim.clock import Clock
from shoal.sim.faults import Fate
from shoal.sim.watch import Watch
from shoal.sim.work import Hand

Perform = Callable[[str, Order, Ref | None], Hand]
"""`(node, order, private memory)` begins the work. Raises `LearnerFailed` or `InvalidPayload` when it fails."""

DOWN_S = 5.0
"""The longest time between a process's death and the next one."""


@dataclass
class _Job:
    """Work in hand; `order` as it reads now. `waits`: a piece is done, and the next one needs word from the hub."""

    work: Work
    order: Order
    hand: Hand | None = None
    waits: bool = False


@dataclass
class Disk:
    """What outlives a node's process: its private memory; its unacknowledged report, and the memory that this makes."""

    memory: Ref | None = None
    spool: tuple[Report, Ref | None] | None = None


class Node:
    """One edge client. `uplink(message)` sends to the hub; `work_s(order)` says how long an order takes."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        uplink: Callable[[Message], None],
        perform: Perform,
        work_s: Callable[[Order], float],
        *,
        watch: Watch,
        fate: Fate,
        beat_s: float,
    ) -> None:
        self.name, self.clock = name, clock
        self._uplink, self._perform, self._work_s = uplink, perform, work_s
        self._watch, self._fate, self._beat_s = watch, fate, beat_s
        self.up = False
        self.process = 0
        self.begun = 0
        self.disk = Disk()
        self.worker = Worker(name, beat_s=beat_s)
        self._job: _Job | None = None
        self.held: Ref | None = None
        """What the work in hand is relative to, if that is a base."""
        self._alarm = 0

    # The life of a process

    def start(self) -> None:
        """A new process, unless one is running. Private memory and spool come from the disk."""
        if self.up:
            return
        self.up, self._job = True, None
        self.process += 1
        self._watch.rose(self.name)
        self.worker = Worker(self.name, beat_s=self._beat_s, memory=self.disk.memory)
        if self.disk.spool is not None:
            self.worker.resume(*self.disk.spool)
        self._carry_out(self._begin())

    def _begin(self) -> Sequence[Effect]:
        """What the machine of a new process wants first."""
        return self.worker.start(self.clock.now)

    def leave(self) -> None:
        """End in good order, if running."""
        if self.up:
            self._feed(Leave(self.name))

    def vanish(self) -> None:
        """Lose power; nothing starts the next process."""
        if self.up:
            self.up, self._job = False, None
            self._watch.fell(self.name, self.disk.memory, True)

    def restart(self) -> None:
        """Let somebody kill the process and start another."""
        self.vanish()
        self.start()

    def _dies(self) -> bool:
        """Count a step; when death strikes here, a new process starts a little later, on what is left of the disk."""
        if self.up and self._fate.strikes():
            self.up, self._job = False, None
            spared = self._fate.spares_disk()
            if not spared:
                self.disk = Disk(self.disk.memory) if self._fate.coin() else Disk()
            self._watch.fell(self.name, self.disk.memory, spared)
            self.clock.after(self._fate.seconds(DOWN_S), self.start)
        return not self.up

    # Events

    def receive(self, process: int, message: Message | Rejected) -> None:
        """A message to that process arrives. A connection dies with its process, so a later one never sees it."""
        if self.up and process == self.process:
            self._feed(message)

    def _ring(self, process: int, alarm: int) -> None:
        if self.up and process == self.process and alarm == self._alarm:
            self._feed(Timer())

    def _finish(self, process: int, job: _Job) -> None:
        """A piece of the work has taken its time: now it is done for real."""
        if process != self.process or self._job is not job:
            return
        try:
            if job.hand is None:
                job.hand = self._perform(self.name, job.order, job.work.memory)
            made = job.hand.piece(job.order)
        except (LearnerFailed, InvalidPayload) as error:
            self._job = None
            self._feed(Done(job.order.id, None, error.message))
            return
        self.held = job.hand.held
        self._watch.holds(self.name, self.held)
        if isinstance(made, Result):
            self._job = None
            self._watch.worked(self.name, job.order.id, made)
            self._feed(Done(job.order.id, made))
            return
        if isinstance(made, Status):
            self._feed(Progress(made))
        job.waits = True
        self._go_on()

    def _go_on(self) -> None:
        """Begin the next piece, if a piece is done and the order lets us. One that was recalled only has to report."""
        job = self._job
        if job is None or not job.waits or job.hand is None or not job.hand.may_go_on(job.order):
            return
        job.waits = False
        self.clock.after(0.0 if job.order.recall else self._work_s(job.order), self._finish, self.process, job)

    def _feed(self, event: Event) -> None:
        self._carry_out(self._take(event))
        if self.up and self.worker.stopped:
            self.up, self._job = False, None

    def _take(self, event: Event) -> Sequence[Effect]:
        return self.worker.on(event, self.clock.now)

    # Effects

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        """First what must be kept: a new memory, then the report; a report is on the disk before it is sent."""
        for effect in effects:
            if isinstance(effect, Save):
                if self._dies():
                    return
                self._save(effect.what)
        if not self._spool():
            return
        for effect in effects:
            if self._dies():
                return
            if isinstance(effect, Send):
                self._uplink(effect.body)
            elif isinstance(effect, Wake):
                self._alarm += 1
                self.clock.at(effect.at, self._ring, self.process, self._alarm)
            elif isinstance(effect, Work):
                self._job = _Job(effect, effect.order)
                self.begun += 1
                self._watch.started(self.name, effect)
                self.clock.after(self._work_s(effect.order), self._finish, self.process, self._job)
            elif isinstance(effect, Amend) and self._job is not None:
                self._job.order = effect.order
                self._go_on()
            elif isinstance(effect, Cancel):
                self._job = None
            else:
                self._do(effect)

    def _save(self, what: Version | Memory | Standing) -> None:
        assert isinstance(what, Memory)
        self.disk.memory = what.body
        self._watch.committed(self.name, what.body)

    def _do(self, effect: Effect) -> None:
        """An effect that a worker has not."""

    def _spool(self) -> bool:
        """Make the spool what the worker holds; False when the process dies first."""
        said = self.worker.said
        kept = (said, self.worker.pending) if isinstance(said, Report) else None
        if kept != self.disk.spool:
            if self._dies():
                return False
            self.disk.spool = kept
        return True

    def names(self) -> list[Ref | None]:
        """The bodies that disk and process still need."""
        worker, (spooled, pending) = self.worker, self.disk.spool or (None, None)
        refs = [self.disk.memory, worker.memory, worker.pending, pending]
        refs += [holder.body for holder in (worker.order, spooled) if holder is not None]
        refs.append(worker.order.base if worker.order is not None else None)
        return refs + ([worker.said.body] if isinstance(worker.said, Report) else [])
