"""The network between simulated machines: delays, loss, duplication and partitions, from a seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from shoal.core.protocol.message import BlobRef
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.faults import COORDINATOR, NetworkConditions
from shoal.sim.network.observer import Direction, Observer

MOVING_S = 1.0
"""Interval in seconds at which both sides learn of a model's progress."""

Moving = Callable[[int, bool], None]
"""Called with the bytes of a model that have crossed, and whether the sender is informed (else the receiver)."""


class Network:
    """The network in which every machine can send to every other, with a count of messages.

    It lists messages in transit, so that their blobs are kept. `watch` observes messages from and to the coordinator.
    """

    def __init__(
        self, clock: VirtualClock, conditions: NetworkConditions, rng: Random, watch: Observer | None = None
    ) -> None:
        self._clock, self._conditions, self._rng, self._watch = clock, conditions, rng, watch
        self._bandwidth = Bandwidth(clock, conditions.bytes_per_s) if conditions.bytes_per_s else None
        self.in_transit: dict[int, Any] = {}
        self.sent = 0
        self._count = 0

    def send(
        self,
        source: str,
        target: str,
        message: Any,
        deliver: Callable[[Any], None],
        *,
        nbytes: int = 0,
        moving: Moving | None = None,
    ) -> None:
        """Call `deliver` with the message: later, perhaps twice, perhaps never. `nbytes`: of its model."""
        rng, conditions, now = self._rng, self._conditions, self._clock.now
        self.sent += 1
        if self._watch is not None:
            self._watch.message_sent(*_route(source, target), message)
        if now >= conditions.until_s:
            self._deliver_later(conditions.latency_s, message, deliver)
            return
        if any(cut.parts(source, target, now) for cut in conditions.cuts):
            self._record_loss(source, target, message)
            return
        for _ in range(2 if rng.random() < conditions.message_duplicates else 1):
            lost = rng.random() < conditions.message_loss
            late = 0.0
            if self._bandwidth is not None and nbytes:
                late = self._bandwidth.cross(source, target, nbytes, moving, rng.random() if lost else 1.0)
            if lost:
                self._record_loss(source, target, message)
            else:
                self._deliver_later(conditions.latency_s + (late + conditions.draw_delay(rng)), message, deliver)

    def _record_loss(self, source: str, target: str, message: Any) -> None:
        if self._watch is not None:
            self._watch.message_lost(*_route(source, target), message)

    def _deliver_later(self, seconds: float, message: Any, deliver: Callable[[Any], None]) -> None:
        self._count += 1
        self.in_transit[self._count] = message
        self._clock.after(seconds, self._arrive, self._count, message, deliver)

    def _arrive(self, number: int, message: Any, deliver: Callable[[Any], None]) -> None:
        del self.in_transit[number]
        deliver(message)

    def blob_refs(self) -> list[BlobRef]:
        """Return the blobs that messages in transit refer to, those of relayed messages included."""
        inner = [getattr(message, "message", message) for message in self.in_transit.values()]
        found = [getattr(message, field, None) for message in inner for field in ("blob", "reference", "model")]
        return [ref for ref in found if isinstance(ref, BlobRef)]


class Bandwidth:
    """The rate at which each machine sends and receives models, one after the other."""

    def __init__(self, clock: VirtualClock, bytes_per_s: float) -> None:
        self._clock, self._bytes_per_s = clock, bytes_per_s
        self._free_at: dict[tuple[str, str], float] = {}  # when the way from a machine, or to it, is free again

    def cross(self, source: str, target: str, nbytes: int, moving: Moving | None, share: float) -> float:
        """Return the seconds until that share of a model has crossed, behind those before it."""
        up, down, now = ("from", source), ("to", target), self._clock.now
        begins = max(now, self._free_at.get(up, now), self._free_at.get(down, now))
        lasts = share * nbytes / self._bytes_per_s
        self._free_at[up] = self._free_at[down] = begins + lasts
        if moving is not None:
            for tick in range(int((begins - now) / MOVING_S) + 1):
                self._clock.at(now + tick * MOVING_S, moving, 0, True)  # in the sender's queue
            for tick in range(int(lasts / MOVING_S) + 1):
                crossed = int(tick * MOVING_S * self._bytes_per_s)
                for leaving in (True, False):
                    self._clock.at(begins + tick * MOVING_S, moving, crossed, leaving)
        return begins + lasts - now


def _route(source: str, target: str) -> tuple[str, Direction]:
    return (target, "down") if source == COORDINATOR else (source, "up")
