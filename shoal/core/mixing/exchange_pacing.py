"""The pace of exchanges: timeouts, models in transit, and the number of models that a peer may send."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from statistics import median
from typing import Protocol

from shoal.core.membership.retransmission import STILL_S
from shoal.core.protocol.peer_message import ExchangeId

NORM_TIMES_MAX = 100.0
"""Greatest ratio of two models' norms (of at least 1) that may be exchanged."""

REMEMBERED = 15
"""Recent exchanges whose rates give the expected transfer time."""

RATE_UNKNOWN = 125_000.0
"""Bytes per second assumed before the first transfer: 1 Mbit/s."""

RATE_LEAST = 8_000.0
"""Bytes per second. A slower partner loses its slot, which it could otherwise hold for days."""

TIMES = 3.0
"""An exchange may take this many times the expected time."""

CEILING_S = 3600.0
"""Longest timeout in seconds without progress, however large a model is."""


class PairwisePolicy(Protocol):
    """The configuration of a job: see `shoal.mixing.pairwise.Pairwise`."""

    @property
    def delta(self) -> float: ...
    @property
    def partners_asked_max(self) -> int: ...
    @property
    def models_per_round(self) -> float: ...
    @property
    def burst(self) -> float: ...
    @property
    def exchange_timeout_s(self) -> float: ...
    @property
    def slot_timeout_s(self) -> float: ...
    @property
    def clip_long_steps(self) -> bool: ...


class ModelTokens:
    """A token bucket of models that a peer may send. Local rounds fill it."""

    def __init__(self, policy: PairwisePolicy) -> None:
        self._per_round, self._capacity = policy.models_per_round, policy.burst
        self._count = policy.burst

    @property
    def is_used_up(self) -> bool:
        return self._count < 1

    def refill(self) -> None:
        """Add the tokens of a local round."""
        self._count = min(self._capacity, self._count + self._per_round)

    def spend(self) -> None:
        """Take one for a model that is sent."""
        self._count -= 1


class ExchangeTimeout:
    """A timeout for transfers: `floor_s` plus the time that the measured rate predicts."""

    def __init__(self, floor_s: float) -> None:
        self.floor_s = floor_s
        self._rates: list[float] = []

    def record(self, nbytes: int, seconds: float) -> None:
        """Record a transfer, from the request to its end. One of no bytes says nothing about the rate."""
        if nbytes > 0:
            self._rates = [*self._rates, nbytes / max(seconds, 1e-3)][-REMEMBERED:]

    def timeout_s(self, nbytes: int) -> float:
        """Return the timeout for `nbytes`."""
        rate = median(self._rates) if self._rates else RATE_UNKNOWN
        return min(max(self.floor_s, CEILING_S), self.floor_s + TIMES * max(0, nbytes) / rate)


class InFlight:
    """Models of exchanges that are in transit, to this peer or from it."""

    def __init__(self, still_s: float) -> None:
        self._still_s = min(still_s, STILL_S)
        self._until: dict[ExchangeId, float] = {}
        self._seen: set[ExchangeId] = set()

    def record_send(self, xid: ExchangeId, now: float) -> None:
        """Record that a model was handed over to be sent."""
        self._until[xid] = now + self._still_s

    def record_progress(self, xid: ExchangeId, now: float) -> None:
        """Record that more of a model has crossed."""
        self.record_send(xid, now)
        self._seen.add(xid)

    def moving_until(self, xids: Iterable[ExchangeId]) -> float:
        """Return until when one of these is assumed to move."""
        return max((self._until[xid] for xid in xids if xid in self._seen), default=-inf)

    def has(self, xid: ExchangeId, now: float) -> bool:
        """Return whether it is in transit; a model that does not move may be lost."""
        return now < self._until.get(xid, -inf)

    def forget(self, xid: ExchangeId) -> None:
        """Forget an exchange that is over."""
        self._until.pop(xid, None)
        self._seen.discard(xid)

    @property
    def until(self) -> float:
        """Until when a model is assumed to be in transit."""
        return max(self._until.values(), default=-inf)
