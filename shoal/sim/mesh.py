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


class Mesh:
    """Carries messages between peers, and counts them."""

    def __init__(self, clock: Clock, weather: Weather, rng: Random) -> None:
        self._clock, self._weather, self._rng = clock, weather, rng
        self.flying: dict[int, object] = {}
        self.sent = 0
        self._count = 0

    def send(self, source: str, target: str, message: M, deliver: Callable[[M], None]) -> None:
        """Have `deliver` called with the message: later, perhaps twice, perhaps never."""
        rng, weather, now = self._rng, self._weather, self._clock.now
        self.sent += 1
        if now >= weather.until_s:
            self._fly(LATENCY_S, message, deliver)
            return
        if any(split.parts(source, target, now) for split in weather.splits):
            return
        for _ in range(2 if rng.random() < weather.duplicate else 1):
            if rng.random() < weather.loss:
                continue
            late = rng.expovariate(1 / weather.delay_s) if weather.delay_s else 0.0
            if rng.random() < weather.slow:
                late += rng.random() * weather.slow_s
            self._fly(LATENCY_S + late, message, deliver)

    def _fly(self, seconds: float, message: M, deliver: Callable[[M], None]) -> None:
        self._count += 1
        self.flying[self._count] = message
        self._clock.after(seconds, self._arrive, self._count, message, deliver)

    def _arrive(self, ticket: int, message: M, deliver: Callable[[M], None]) -> None:
        del self.flying[ticket]
        deliver(message)
