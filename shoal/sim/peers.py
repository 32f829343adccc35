"""Peers without a server on one virtual clock: processes that die, disks that stay, and the books that must balance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from shoal.core.algorithm import Algorithm
from shoal.core.drain import Drain
from shoal.core.errors import InvalidPayload, LearnerFailed
from shoal.core.filter import Filters
from shoal.core.gossip import Gossip, Halt, Holding, Learned, Live, Mixer, PeerEffect, PeerEvent
from shoal.core.learner import Learner
from shoal.core.machine import Done, Note, Result, Save, Standing, Tell, Timer, Wake, Work
from shoal.core.message import Ref
from shoal.core.meter import Meter
from shoal.core.peer_message import PeerMessage
from shoal.core.plan import Plan
from shoal.core.tree import Slots
from shoal.sim.bodies import MemoryBodies
from shoal.sim.clock import Clock
from shoal.sim.faults import Fate
from shoal.sim.work import Begun

DOWN_S = 5.0
"""The longest time between a process's death and the next one."""

SETTLE_S = 30.0
"""How long a peer that leaves waits for what is open."""

HEAD_BYTES = 400


def weighed(message: PeerMessage) -> int:
    """Bytes that a message takes on its way, about."""
    body = getattr(message, "body", None)
    return HEAD_BYTES + (body.nbytes if body is not None else 0)


Send = Callable[[str, str, PeerMessage], None]
"""`(from, to, message)`"""


class Ledger(Protocol):
    """Who watches what peers keep."""

    def keeps(self, node: str, state: dict[str, Any], learned: bool) -> None:
        """That peer's disk now holds this; `learned`: because a local round of its own has ended."""
        ...


@dataclass(frozen=True)
class Shared:
    """What all peers of a job have in common."""

    plan: Plan
    algorithm: Algorithm
    mixing: Callable[[], Mixer]
    slots: Slots
    drain: Drain
    seed: int = 0
    bytes_per_hour: float = 0.0
    """That each may send and receive; 0: any number."""
    filters: Filters = ()
    """What models go through that they show each other."""


@dataclass
class Disk:
    """What outlives a process."""

    state: dict[str, Any] | None = None
    boot: int = 0
    names: list[Ref] = field(default_factory=list)


@dataclass
class Peer:
    """One peer's shell: carries out what the machine wants, and dies between any two effects if fate strikes."""

    name: str
    weight: float
    shared: Shared
    learner: Learner
    work_s: Callable[[], float]
    clock: Clock
    bodies: MemoryBodies
    send: Send
    fate: Fate
    ledger: Ledger
    there: Callable[[], Live]
    disk: Disk = field(default_factory=Disk)
    up: bool = False
    left: bool = False
    """It has come to its end, and said goodbye."""
    learned: list[Learned] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._alarm = 0
        self.going_at = 0.0
        self.unsettled = False
        """It has left while something was open."""
        self.gossip: Gossip | None = None
        self.crossed = 0
        """Bytes that it has sent and received, over all its processes."""

    def start(self) -> None:
        """A new process over the disk."""
        if self.up or self.left:
            return
        self.up = True
        self.disk.boot += 1
        shared, rng = self.shared, Random(f"{self.shared.seed}/{self.name}/{self.disk.boot}")
        meter = Meter(shared.bytes_per_hour, lambda: self.crossed)
        me = Holding(self.name, self.disk.boot, self.weight, shared.slots, self.bodies, rng, meter=meter)
        me.filters = shared.filters
        mixer = shared.mixing()
        if self.disk.state is None:
            self.gossip = Gossip(shared.plan, shared.algorithm, me, mixer, drain=shared.drain)
        else:
            self.gossip = Gossip.restore(shared.plan, shared.algorithm, me, mixer, self.disk.state, drain=shared.drain)
        there = self.there()
        me.live, me.away, me.roster = there.nodes - {self.name}, there.away - {self.name}, there.roster
        self._carry_out(self.gossip.start(self.clock.now), False)

    def feed(self, event: PeerEvent) -> None:
        """Let the machine take an event, if a process runs."""
        if self.up and self.gossip is not None:
            self._carry_out(self.gossip.on(event, self.clock.now), isinstance(event, Done))
            self._go()

    def _go(self) -> None:
        """Leave, when all is done and settled; what a partner may have lost is not waited for without end."""
        gossip, now = self.gossip, self.clock.now
        if not self.up or gossip is None or not (gossip.drained or gossip.halted):
            return
        if not gossip.halted:
            self.going_at = now
            self.clock.after(SETTLE_S, self.see)
            self.feed(Halt("leaving"))
        elif gossip.idle or now >= self.going_at + SETTLE_S:
            self.unsettled = not gossip.idle
            self.die()
            self.left = True

    def receive(self, message: PeerMessage) -> None:
        """A message arrives."""
        self.crossed += weighed(message) if self.up else 0
        self.feed(message)  # type: ignore[arg-type]

    def see(self) -> None:
        """Look who is there."""
        self.feed(self.there())

    def die(self) -> None:
        """`kill -9`."""
        self.up = False
        self._alarm += 1

    def _dies(self) -> bool:
        if self.up and self.fate.strikes():
            self.die()
            self.clock.after(self.fate.seconds(DOWN_S), self.start)
        return not self.up

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarm:
            self.feed(Timer())

    def _carry_out(self, effects: Sequence[PeerEffect], done: bool) -> None:
        for effect in effects:
            if self._dies():
                return
            match effect:
                case Save(Standing(state)):
                    assert self.gossip is not None
                    self.disk.state, self.disk.names = state, self.gossip.names()
                    self.ledger.keeps(self.name, state, done)
                case Tell():
                    self.crossed += weighed(effect.body)
                    self.send(self.name, effect.to, effect.body)
                case Work():
                    self.clock.after(self.work_s(), self._finish, self.disk.boot, effect)
                case Wake():
                    self._alarm += 1
                    self.clock.at(effect.at, self._ring, self._alarm)
                case Learned():
                    self.learned.append(effect)
                case Note():
                    self.notes.append(effect)

    def _finish(self, boot: int, work: Work) -> None:
        if not self.up or boot != self.disk.boot:
            return
        order = work.order
        begun = Begun(self.shared.algorithm, self.learner, self.bodies, order, work.memory)
        try:
            made = begun.piece(order)
        except (LearnerFailed, InvalidPayload) as error:
            self.feed(Done(order.id, None, error.message))
            return
        assert isinstance(made, Result)
        self.feed(Done(order.id, made))

    def names(self) -> list[Ref]:
        """The bodies that disk and process need."""
        return self.disk.names + (self.gossip.names() if self.gossip is not None else [])
