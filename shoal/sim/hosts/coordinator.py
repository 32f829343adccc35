"""A simulated coordinator process: a journal, snapshots, leases, and death at any instant.

An event is appended and committed, then fed to the hub, then its effects are carried out one by one. The process can
die before the commit (the transaction is lost, or kept), between commit and feeding, and between any two effects. A new
process loads the last snapshot, feeds the rest of the journal without sending, and then starts. Saves are repeated
during the replay, because the first attempt may have failed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.core.errors import InvalidPayload, Refused
from shoal.core.membership.life_signs import LifeSigns
from shoal.core.protocol.machine import Effect, Event, NodeLost, ReportRejected, Restarted, Save, Send, Timer, Wake
from shoal.core.protocol.message import (
    Ack,
    BlobRef,
    Blobs,
    CoordinatorAlive,
    CoordinatorPing,
    Leave,
    Message,
    NodeMessage,
    Poll,
    Report,
    Task,
)
from shoal.core.server.hub import Hub
from shoal.sim.hosts.sim_process import SimulatedProcess
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.observer import Observer
from shoal.wire.payload import measure

ENDED = ("done", "stopped")

MakeHub = Callable[[dict[str, Any] | None], Hub]
"""Returns a new hub (None), or the hub of a saved state."""


@dataclass(frozen=True)
class CoordinatorTiming:
    """Times of a coordinator's process and disk, in seconds."""

    lease_s: float = 15.0
    """Silence after which a node counts as lost."""
    sync_s: float = 0.0
    """Duration of a commit; events that arrive meanwhile share the next one."""
    down_s: float = 5.0
    """Longest time between a death and the new process."""
    jump_s: float = 0.0
    """A new process's clock is ahead of the old one's by up to this."""


class HubClock:
    """The hub's clock. It never goes back, but it jumps ahead when a new process starts."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.ahead_s = 0.0
        self._now = 0.0

    def now(self) -> float:
        """Return the time in seconds."""
        return self.reach(self._clock.now + self.ahead_s)

    def reach(self, at: float) -> float:
        """Set the clock to that time, unless it is later already; return its time."""
        self._now = max(self._now, at)
        return self._now


def check_report(hub: Hub, blobs: Blobs, report: Report) -> Report | Ack | ReportRejected:
    """Return a report with the norm of its blob, or the answer to one that cannot count."""
    try:
        answer = hub.reports.check(report)
    except Refused as refusal:
        answer = Ack(report.task, False, refusal.message)
    if answer is not None:
        return answer
    if report.blob is None:
        return report.with_norm(0.0)
    task = hub.roster[report.node].task
    assert task is not None
    try:
        return report.with_norm(measure(hub.reports.unfilter(blobs.get(report.blob), task.kind)))
    except InvalidPayload as refusal:
        return ReportRejected(report.task, f"{refusal.message} ({refusal.hint})" if refusal.hint else refusal.message)


class SimulatedCoordinator:
    """One job's coordinator. `downlink(node, message)` sends; `process` decides when it dies."""

    def __init__(
        self,
        process: SimulatedProcess,
        make_hub: MakeHub,
        blobs: Blobs,
        downlink: Callable[[str, Message | ReportRejected], None],
        *,
        watch: Observer,
        timing: CoordinatorTiming,
    ) -> None:
        self.process, self.blobs, self.timing = process, blobs, timing
        self._make_hub, self._downlink, self._watch = make_hub, downlink, watch
        # On disk
        self.journal: list[tuple[Event, float]] = []
        self.snapshot: tuple[int, str] = (0, "null")
        self._saved_refs: list[BlobRef] = []
        # In the process
        self.hub = make_hub(None)
        self.clock = HubClock(process.clock)
        self.fed = 0
        self._batch: list[tuple[Event, float]] = []
        self._leases = LifeSigns(timing.lease_s)

    @property
    def ended(self) -> bool:
        """Return whether the process runs, and the job has ended."""
        return self.process.up and self.hub.progress.phase in ENDED

    # Processes

    def start(self) -> None:
        """Start a new process: snapshot, journal, then `Restarted`."""
        self.process.start()
        position, state = self.snapshot
        self.hub = self._make_hub(json.loads(state))
        self.fed = position
        while self.fed < len(self.journal):
            self._keep(self._feed())
        self._watch.restored(self.hub)
        self._grant_leases()
        self.process.after(self.timing.lease_s / 2, self._look_for_silence)
        self.submit(Restarted(self.process.clock.now))

    def _grant_leases(self) -> None:
        """Renew the leases of all nodes that were present when the last process died."""
        for member in self.hub.roster.present_members():
            self._leases.record(member.node, self.clock.now())

    def kill(self, down_s: float) -> None:
        """Kill the process, and start the next one after `down_s`."""
        if self.process.up:
            self._crash(down_s)

    def _crash(self, down_s: float | None = None) -> None:
        """End the process. The observer sees the state that all committed events lead to."""
        self.process.end()
        self._batch, self._leases = [], LifeSigns(self.timing.lease_s)
        while self.fed < len(self.journal):
            self._feed()
        self._watch.crashed(self.hub)
        crashes = self.process.crashes
        self.clock.ahead_s += crashes.seconds(self.timing.jump_s)
        self.process.clock.after(crashes.seconds(self.timing.down_s) if down_s is None else down_s, self.start)

    def _dies(self) -> bool:
        if self.process.crashes.strikes():
            self._crash()
        return not self.process.up

    # Events

    def receive(self, message: Message) -> None:
        """Handle a node's request; requests are lost while the process is down."""
        if not self.process.up or self._dies():
            return
        assert isinstance(message, NodeMessage), message
        if isinstance(message, Leave):
            self._leases.forget(message.node)
        else:
            self._leases.record(message.node, self.clock.now())
        if isinstance(message, CoordinatorPing) and message.term < self.hub.tasks.term and not self.ended:
            self._send(message.node, CoordinatorAlive(self.hub.tasks.term))
        elif isinstance(message, Poll) and self.hub.is_poll_repeated(message.node):
            self._send(message.node, self.hub.poll_reply(message.node))
        elif isinstance(message, Report):
            self._receive_report(message)
        else:
            self.submit(message)

    def _receive_report(self, report: Report) -> None:
        """Reject at once what cannot count; journal the rest, with the norm as measured here."""
        checked = check_report(self.hub, self.blobs, report)
        if isinstance(checked, Report):
            self.submit(checked)
        else:
            self._send(report.node, checked)

    def submit(self, event: Event) -> bool:
        """Append an event to the open transaction; return False when no process runs."""
        if not self.process.up or self._dies():
            return False
        self._batch.append((event, self.clock.now()))
        if not self.timing.sync_s:
            self._commit()
        elif len(self._batch) == 1:
            self.process.after(self.timing.sync_s, self._commit)
        return True

    def _commit(self) -> None:
        in_flight = self._batch
        if self.process.crashes.strikes():
            if self.process.crashes.coin():
                self.journal += in_flight  # the commit completed before the death
            self._crash()
            return
        self.journal += in_flight
        self._batch = []
        while self.fed < len(self.journal) and not self._dies():
            self._carry_out(self._feed())

    def _feed(self) -> Sequence[Effect]:
        event, now = self.journal[self.fed]
        effects = self.hub.on(event, now)
        self._watch.fed(self.fed, event, now, effects, self.hub)
        self.fed += 1
        return effects

    # Effects

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if self._dies():
                return
            if isinstance(effect, Send):
                self._send(effect.to, effect.message)
            elif isinstance(effect, Wake):
                self.process.wake(effect.at - self.clock.ahead_s, self._ring, effect.at)
        self._keep(effects)

    def _keep(self, effects: Sequence[Effect]) -> None:
        """Take a snapshot right after the event that closed a version."""
        if any(isinstance(effect, Save) for effect in effects):
            self.snapshot, self._saved_refs = (self.fed, json.dumps(self.hub.snapshot())), self.hub.state.blob_refs()

    def _send(self, node: str, message: Message | ReportRejected) -> None:
        self._watch.sent(node, message, self.hub)
        self._downlink(
            node, replace(message, issued_in_term=self.hub.tasks.term) if isinstance(message, Task) else message
        )

    def _ring(self, at: float) -> None:
        self.clock.reach(at)  # rounding must not make it early
        self.submit(Timer())

    def _look_for_silence(self) -> None:
        for node in self._leases.expired(self.clock.now()):
            self.submit(NodeLost(node))
        self.process.after(self.timing.lease_s / 2, self._look_for_silence)

    def names(self) -> list[BlobRef | None]:
        """Return the blobs that disk and process need: those of the journal only if they may be fed again."""
        refs = [
            self.hub.settings.plan.initial_model,
            *self.hub.state.blob_refs(),
            *self._saved_refs,
            *self._watch.names(self.hub),
        ]
        first = self.snapshot[0] if self.process.crashes.threatens or not self.process.up else self.fed
        waiting = [*self.journal[first:], *self._batch]
        return refs + [event.blob for event, _ in waiting if isinstance(event, Report)]
