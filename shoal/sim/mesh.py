"""Everybody can send to everybody: delays, loss, duplication and partitions between peers, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random
from typing import TypeVar

from shoal.sim.clock import Clock

M = TypeVar("M")

LATENCY_S = 0.001
MOVING_S = 1.0
"""How often both sides are told that a model is on its way."""


@dataclass(frozen=True)
class Split:
    """From `start` to `stop` (seconds) nothing passes between those inside and those outside."""

    inside: frozenset[str]
    start: float
    stop: float

    def parts(self, source: str, target: str, now: float) -> bool:
        """Whether a message is stopped now."""
        return self.start <= now < self.stop and (source in self.inside) != (target in self.inside)


@dataclass(frozen=True)
class Weather:
    """What can go wrong between peers. The default is a clear sky."""

    until_s: float = inf
    delay_s: float = 0.0
    """The mean delay of a message; delays vary exponentially, so messages overtake each other."""
    loss: float = 0.0
    duplicate: float = 0.0
    slow: float = 0.0
    """The share of messages that take `slow_s`: longer than anybody waits."""
    slow_s: float = 60.0
    splits: tuple[Split, ...] = ()
    bytes_per_s: float = 0.0
    """What each peer can send, and what it can receive; 0: any number. Messages without a model never wait."""


Moving = Callable[[int, bool], None]
"""Called with the bytes of a model that have crossed so far, and whether the sender is told (else the receiver)."""


class Mesh:
    """Carries messages between peers, and counts them."""

    def __init__(self, clock: Clock, weather: Weather, rng: Random) -> None:
        self._clock, self._weather, self._rng = clock, weather, rng
        self.flying: dict[int, object] = {}
        self.sent = 0
        self._count = 0
        self._free_at: dict[tuple[str, str], float] = {}  # when the way from a peer, or to it, is free again

    def send(
        self,
        source: str,
        target: str,
        message: M,
        deliver: Callable[[M], None],
        *,
        nbytes: int = 0,
        moving: Moving | None = None,
    ) -> None:
        """Have `deliver` called with the message: later, perhaps twice, perhaps never. `nbytes`: of its model."""
        rng, weather, now = self._rng, self._weather, self._clock.now
        self.sent += 1
        if now >= weather.until_s:
            self._fly(LATENCY_S, message, deliver)
            return
        if any(split.parts(source, target, now) for split in weather.splits):
            return
        for _ in range(2 if rng.random() < weather.duplicate else 1):
            lost = rng.random() < weather.loss
            if weather.bytes_per_s and nbytes:
                late = self._cross(source, target, nbytes, moving, rng.random() if lost else 1.0)
            else:
                late = 0.0
            if lost:
                continue
            late += rng.expovariate(1 / weather.delay_s) if weather.delay_s else 0.0
            if rng.random() < weather.slow:
                late += rng.random() * weather.slow_s
            self._fly(LATENCY_S + late, message, deliver)

    def _cross(self, source: str, target: str, nbytes: int, moving: Moving | None, share: float) -> float:
        """Seconds until that share of a model is through, behind those before it; both sides see it move."""
        up, down, now = ("from", source), ("to", target), self._clock.now
        begins = max(now, self._free_at.get(up, now), self._free_at.get(down, now))
        lasts = share * nbytes / self._weather.bytes_per_s
        self._free_at[up] = self._free_at[down] = begins + lasts
        if moving is not None:
            for tick in range(int((begins - now) / MOVING_S) + 1):
                self._clock.at(now + tick * MOVING_S, moving, 0, True)  # in the sender's queue
            for tick in range(int(lasts / MOVING_S) + 1):
                crossed = int(tick * MOVING_S * self._weather.bytes_per_s)
                for leaving in (True, False):
                    self._clock.at(begins + tick * MOVING_S, moving, crossed, leaving)
        return begins + lasts - now

    def _fly(self, seconds: float, message: M, deliver: Callable[[M], None]) -> None:
        self._count += 1
        self.flying[self._count] = message
        self._clock.after(seconds, self._arrive, self._count, message, deliver)

    def _arrive(self, ticket: int, message: M, deliver: Callable[[M], None]) -> None:
        del self.flying[ticket]
        deliver(message)
