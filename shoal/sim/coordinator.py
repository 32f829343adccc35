"""The coordinator's shell, simulated: a journal, snapshots, leases, and death at any instant.

An event is appended and committed, then fed to the hub, then its effects are carried out one by one. The process can
die before the commit (the transaction in flight is lost, or kept all the same), between commit and feeding, and between
any two effects. A new process takes the last snapshot, feeds the rest of the journal with all sending suppressed, and
then boots. What is saved while replaying is saved again: the first time may not have come to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.core.errors import InvalidPayload, Refused
from shoal.core.hub import Hub
from shoal.core.machine import Boot, Effect, Event, Lost, Rejected, Save, Send, Timer, Wake
from shoal.core.message import Ack, Bodies, Fail, Join, Knock, Lease, Leave, Message, Order, Poll, Ref, Report, Status
from shoal.core.roster import Leases
from shoal.sim.clock import Clock
from shoal.sim.faults import Fate
from shoal.sim.watch import Watch
from shoal.wire import measure

ENDED = ("done", "stopped")

MakeHub = Callable[[dict[str, Any] | None], Hub]
"""A new hub (None), or the hub of a saved state."""


@dataclass(frozen=True)
class Timing:
    """How a coordinator's process and disk behave, in seconds."""

    lease_s: float = 15.0
    """Silence after which a node counts as lost."""
    sync_s: float = 0.0
    """How long a commit takes; what arrives in the meantime shares the next one."""
    down_s: float = 5.0
    """The longest time between a death and the new process."""
    jump_s: float = 0.0
    """A new process's clock is ahead of the old one's by up to so much."""


class Coordinator:
    """One job's coordinator. `downlink(node, message)` sends; `fate` decides when the process dies."""

    def __init__(
        self,
        clock: Clock,
        make_hub: MakeHub,
        bodies: Bodies,
        downlink: Callable[[str, Message | Rejected], None],
        *,
        watch: Watch,
        fate: Fate,
        timing: Timing,
    ) -> None:
        self.clock, self.bodies, self.timing = clock, bodies, timing
        self._make_hub, self._downlink = make_hub, downlink
        self._watch, self._fate = watch, fate
        self.up = False
        self.process = 0
        # On disk
        self.journal: list[tuple[Event, float]] = []
        self.snapshot: tuple[int, str] = (0, "null")
        self._saved_refs: list[Ref] = []
        # In the process
        self.hub = make_hub(None)
        self.fed = 0
        self._batch: list[tuple[Event, float]] = []
        self._leases = Leases(timing.lease_s)
        self._alarm = 0
        self._ahead = 0.0
        self._now = 0.0

    def time(self) -> float:
        """The hub's clock. It never goes back, but it jumps ahead when a new process starts."""
        self._now = max(self._now, self.clock.now + self._ahead)
        return self._now

    @property
    def ended(self) -> bool:
        """Whether the process runs, and the job has come to its end."""
        return self.up and self.hub.phase in ENDED

    # The life of a process

    def start(self) -> None:
        """A new process: snapshot, journal, then `Boot`."""
        self.up = True
        self.process += 1
        position, state = self.snapshot
        self.hub = self._make_hub(json.loads(state))
        self.fed = position
        while self.fed < len(self.journal):
            self._keep(self._feed())
        self._watch.restored(self.hub)
        self._grant_leases()
        self.clock.after(self.timing.lease_s / 2, self._look_for_silence, self.process)
        self.submit(Boot(self.clock.now))

    def _grant_leases(self) -> None:
        """Everybody that was there when the last process died gets the time to be heard by this one."""
        for member in self.hub.roster.here():
            self._leases.heard(member.node, self.time())

    def kill(self, down_s: float) -> None:
        """Let somebody kill the process, and nobody start another for so long."""
        if self.up:
            self._crash(down_s)

    def _crash(self, down_s: float | None = None) -> None:
        """The process dies. What was committed will be fed; let the observer see which state that should lead to."""
        self.up = False
        self._batch, self._leases = [], Leases(self.timing.lease_s)
        while self.fed < len(self.journal):
            self._feed()
        self._watch.crashed(self.hub)
        self._ahead += self._fate.seconds(self.timing.jump_s)
        self.clock.after(self._fate.seconds(self.timing.down_s) if down_s is None else down_s, self.start)

    def _dies(self) -> bool:
        if self._fate.strikes():
            self._crash()
        return not self.up

    # Events

    def receive(self, message: Message) -> None:
        """A node's request arrives. Nobody hears it while the process is down."""
        if not self.up or self._dies():
            return
        assert isinstance(message, Join | Poll | Knock | Status | Report | Fail | Leave), message
        if isinstance(message, Leave):
            self._leases.forget(message.node)
        else:
            self._leases.heard(message.node, self.time())
        if isinstance(message, Knock) and message.term < self.hub.boot and not self.ended:
            self._send(message.node, Lease(self.hub.boot))
        elif isinstance(message, Poll) and self.hub.knows(message.node):
            self._send(message.node, self.hub.standing(message.node))
        elif isinstance(message, Report):
            self._receive_report(message)
        else:
            self.submit(message)

    def _receive_report(self, report: Report) -> None:
        """Answer at once what cannot count; journal the rest, with this side's own measurement of the body."""
        try:
            answer = self.hub.verdict(report)
        except Refused as refusal:
            answer = Ack(report.order, False, refusal.message)
        if answer is not None:
            self._send(report.node, answer)
            return
        try:
            norm = self._measured(report)
        except InvalidPayload as refusal:
            self._send(report.node, Rejected(report.order, refusal.message))
        else:
            self.submit(replace(report, norm=norm))

    def _measured(self, report: Report) -> float:
        """The norm of a report's body. Raises `InvalidPayload` when a number is not finite."""
        if report.body is None:
            return 0.0
        slots = self.bodies.get(report.body)
        member = self.hub.roster[report.node]
        assert member.order is not None
        return measure(self.hub.opened(slots, member.order.kind))

    def submit(self, event: Event) -> bool:
        """Append an event to the transaction in flight; False when no process is there to do it."""
        if not self.up or self._dies():
            return False
        self._batch.append((event, self.time()))
        if not self.timing.sync_s:
            self._commit(self.process)
        elif len(self._batch) == 1:
            self.clock.after(self.timing.sync_s, self._commit, self.process)
        return True

    def _commit(self, process: int) -> None:
        if process != self.process or not self.up:
            return
        in_flight = self._batch
        if self._fate.strikes():
            if self._fate.coin():
                self.journal += in_flight  # the disk was faster than death
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
                self._send(effect.to, effect.body)
            elif isinstance(effect, Wake):
                self._alarm += 1
                self.clock.at(effect.at - self._ahead, self._ring, self.process, self._alarm, effect.at)
        self._keep(effects)

    def _keep(self, effects: Sequence[Effect]) -> None:
        """Right after the event that closed a version, the state is a snapshot."""
        if any(isinstance(effect, Save) for effect in effects):
            self.snapshot, self._saved_refs = (self.fed, json.dumps(self.hub.state())), self.hub.refs()

    def _send(self, node: str, message: Message | Rejected) -> None:
        self._watch.sent(node, message, self.hub)
        self._downlink(node, replace(message, given_in=self.hub.boot) if isinstance(message, Order) else message)

    def _ring(self, process: int, alarm: int, at: float) -> None:
        if self.up and process == self.process and alarm == self._alarm:
            self._now = max(self._now, at)  # not a rounding error too early
            self.submit(Timer())

    def _look_for_silence(self, process: int) -> None:
        if not self.up or process != self.process:
            return
        for node in self._leases.expired(self.time()):
            self.submit(Lost(node))
        self.clock.after(self.timing.lease_s / 2, self._look_for_silence, self.process)

    def names(self) -> list[Ref | None]:
        """The bodies that disk and process still need: those of the journal only if they may be fed again."""
        refs = [self.hub.plan.start, *self.hub.refs(), *self._saved_refs, *self._watch.names(self.hub)]
        first = self.snapshot[0] if self._fate.threatens or not self.up else self.fed
        waiting = [*self.journal[first:], *self._batch]
        return refs + [event.body for event, _ in waiting if isinstance(event, Report)]
