"""Faults of a simulated run, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from random import Random
from typing import ClassVar, Literal

from shoal.core.errors import InvalidJob
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.observer import Direction

COORDINATOR = ""
"""The coordinator's name in the network; nodes have other names."""

LATENCY_S = 0.001
"""Default of the shortest time that a message takes."""


@dataclass(frozen=True)
class NetworkCut:
    """A partition: from `start` to `stop` (seconds) nothing passes between this node and the coordinator, one way or
    both."""

    node: str
    start: float
    stop: float
    direction: Direction | Literal["both"] = "both"

    def parts(self, source: str, target: str, now: float) -> bool:
        """Return whether a message is stopped now."""
        ends = {"up": (self.node, COORDINATOR), "down": (COORDINATOR, self.node)}
        stopped = ends.values() if self.direction == "both" else (ends[self.direction],)
        return self.start <= now < self.stop and (source, target) in stopped


@dataclass(frozen=True)
class NetworkSplit:
    """A partition: from `start` to `stop` (seconds) nothing passes between those inside and those outside."""

    inside: frozenset[str]
    start: float
    stop: float

    def parts(self, source: str, target: str, now: float) -> bool:
        """Return whether a message is stopped now."""
        return self.start <= now < self.stop and (source in self.inside) != (target in self.inside)


@dataclass(frozen=True)
class NetworkConditions:
    """Faults of the network. The default has none."""

    until_s: float = inf
    """Seconds of virtual time after which no faults happen; lost messages stay lost."""
    latency_s: float = LATENCY_S
    """Shortest time that a message takes."""
    delay_s: float = 0.0
    """Mean further delay of a message; delays are exponential, so messages overtake each other."""
    message_loss: float = 0.0
    """Share of messages that never arrive."""
    message_duplicates: float = 0.0
    """Share of messages that arrive twice."""
    cuts: tuple[NetworkCut | NetworkSplit, ...] = ()

    bytes_per_s: ClassVar[float] = 0.0

    def draw_delay(self, rng: Random) -> float:
        """Return a delay in seconds, in addition to the latency."""
        return rng.expovariate(1 / self.delay_s) if self.delay_s else 0.0


@dataclass(frozen=True)
class PeerNetworkConditions(NetworkConditions):
    """Faults of the network between peers. The default has none."""

    slow: float = 0.0
    """Share of messages that take up to `slow_s`: longer than any timeout."""
    slow_s: float = 60.0
    bytes_per_s: float = 0.0  # type: ignore[misc]
    """Rate at which each peer sends and receives models; 0: no limit. Other messages never wait."""

    def draw_delay(self, rng: Random) -> float:
        delay_s = super().draw_delay(rng)
        return delay_s + rng.random() * self.slow_s if rng.random() < self.slow else delay_s


@dataclass(frozen=True)
class Faults(NetworkConditions):
    """Faults of the network and of processes. The default has none."""

    coordinator_crashes: int = 0
    """Number of times that the coordinator's process dies, between any two of its effects."""
    node_crashes: int = 0
    """Number of times that each node's process dies, between any two of its effects."""
    disk_survival: float = 1.0
    """Probability that a dead node's disk (private memory and unsent report) survives."""

    def __post_init__(self) -> None:
        for name in ("message_loss", "message_duplicates", "disk_survival"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidJob(f"faults: {name} is {getattr(self, name)}, but a share lies between 0 and 1")
        if min(self.until_s, self.latency_s, self.delay_s, self.coordinator_crashes, self.node_crashes) < 0:
            raise InvalidJob("faults: until_s, latency_s, delay_s and the numbers of crashes must not be negative")


class CrashPlan:
    """The deaths of a process, and what is left. Steps are counted, not timed, so that every gap is hit."""

    def __init__(self, clock: VirtualClock, rng: Random, crashes: int, faults: Faults) -> None:
        self._clock, self._rng, self._crashes = clock, rng, crashes
        self._until_s, self._keep = faults.until_s, faults.disk_survival
        self._left = self._length()

    def _length(self) -> int:
        return self._rng.randrange(1, self._rng.choice((12, 60, 240))) if self._crashes else 0

    @property
    def threatens(self) -> bool:
        """Return whether the process may still die."""
        return self._crashes > 0 and self._clock.now < self._until_s

    def strikes(self) -> bool:
        """Count one step; return True when the process dies here."""
        if not self._crashes or self._clock.now >= self._until_s:
            return False
        self._left -= 1
        if self._left:
            return False
        self._crashes -= 1
        self._left = self._length()
        return True

    def disk_survives(self) -> bool:
        """Return whether the disk survives this death."""
        return self._rng.random() < self._keep

    def coin(self) -> bool:
        """Return True or False, equally likely."""
        return self._rng.random() < 0.5

    def seconds(self, most: float) -> float:
        """Return a time, uniform up to `most`."""
        return self._rng.random() * most
