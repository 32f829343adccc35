"""What goes wrong in a simulated run, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Literal, TypeVar

from shoal.core.errors import InvalidJob
from shoal.core.machine import Rejected
from shoal.core.message import Message
from shoal.sim.clock import Clock
from shoal.sim.watch import Direction, Watch

M = TypeVar("M", bound=Message | Rejected)

LATENCY_S = 0.001
"""The default of the least time that a message takes."""


@dataclass(frozen=True)
class Cut:
    """A partition: from `start` to `stop` (seconds) nothing passes between this node and the hub, one way or both."""

    node: str
    start: float
    stop: float
    direction: Direction | Literal["both"] = "both"

    def parts(self, node: str, direction: Direction, now: float) -> bool:
        """Whether a message of this node in that direction is stopped now."""
        return node == self.node and self.start <= now < self.stop and self.direction in (direction, "both")


@dataclass(frozen=True)
class Faults:
    """What can go wrong. The default is a world without faults."""

    until_s: float = inf
    """Seconds of virtual time after which nothing goes wrong any more; what is lost by then is lost."""
    latency_s: float = LATENCY_S
    """The least time that a message takes."""
    delay_s: float = 0.0
    """The mean delay of a message beyond that; delays vary exponentially, so messages overtake each other."""
    loss: float = 0.0
    """The share of messages that never arrive."""
    duplicate: float = 0.0
    """The share of messages that arrive twice."""
    cuts: tuple[Cut, ...] = ()
    hub_crashes: int = 0
    """How often the coordinator's process dies, between any two of its effects."""
    node_crashes: int = 0
    """How often each node's process dies, between any two of its effects."""
    keep: float = 1.0
    """The chance that a dead node's disk (private memory and unsent report) survives."""

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "keep"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidJob(f"faults: {name} is {getattr(self, name)}, but a share lies between 0 and 1")
        if min(self.until_s, self.latency_s, self.delay_s, self.hub_crashes, self.node_crashes) < 0:
            raise InvalidJob("faults: until_s, latency_s, delay_s and the numbers of crashes must not be negative")


class Network:
    """Carries messages between nodes and hub. Counts what is under way, so that nobody drops a body that it names."""

    def __init__(self, clock: Clock, faults: Faults, rng: Random, watch: Watch) -> None:
        self._clock, self._faults, self._rng, self._watch = clock, faults, rng, watch
        self.flying: dict[int, Message | Rejected] = {}
        self._count = 0

    def send(self, node: str, direction: Direction, message: M, deliver: Callable[[M], None]) -> None:
        """Have `deliver` called with the message: later, perhaps twice, perhaps never."""
        rng, faults, now = self._rng, self._faults, self._clock.now
        self._watch.travels(node, direction, message)
        if now >= faults.until_s:
            self._fly(faults.latency_s, message, deliver)
            return
        if faults.cuts and any(cut.parts(node, direction, now) for cut in faults.cuts):
            self._watch.vanished(node, direction, message)
            return
        for _ in range(2 if rng.random() < faults.duplicate else 1):
            if rng.random() < faults.loss:
                self._watch.vanished(node, direction, message)
                continue
            late = rng.expovariate(1 / faults.delay_s) if faults.delay_s else 0.0
            self._fly(faults.latency_s + late, message, deliver)

    def _fly(self, seconds: float, message: M, deliver: Callable[[M], None]) -> None:
        self._count += 1
        self.flying[self._count] = message
        self._clock.after(seconds, self._arrive, self._count, message, deliver)

    def _arrive(self, ticket: int, message: M, deliver: Callable[[M], None]) -> None:
        del self.flying[ticket]
        deliver(message)


class Fate:
    """Decides when a process dies, and what is left. Its steps are counted, not timed, so that every gap is hit."""

    def __init__(self, clock: Clock, rng: Random, crashes: int, faults: Faults) -> None:
        self._clock, self._rng, self._crashes = clock, rng, crashes
        self._until_s, self._keep = faults.until_s, faults.keep
        self._left = self._length()

    def _length(self) -> int:
        return self._rng.randrange(1, self._rng.choice((12, 60, 240))) if self._crashes else 0

    @property
    def threatens(self) -> bool:
        """Whether the process may still die."""
        return self._crashes > 0 and self._clock.now < self._until_s

    def strikes(self) -> bool:
        """Count one step; True when the process dies here."""
        if not self._crashes or self._clock.now >= self._until_s:
            return False
        self._left -= 1
        if self._left:
            return False
        self._crashes -= 1
        self._left = self._length()
        return True

    def spares_disk(self) -> bool:
        """Whether what was written survives this death."""
        return self._rng.random() < self._keep

    def coin(self) -> bool:
        """One of two things, equally likely."""
        return self._rng.random() < 0.5

    def seconds(self, most: float) -> float:
        """Some time, uniform up to `most`."""
        return self._rng.random() * most
