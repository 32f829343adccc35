"""How long a peer waits for another, what is on its way between them, and whom it does not ask for a while."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from statistics import median

from shoal.core.peer_message import ExchangeId
from shoal.core.repeat import STILL_S

NORM_TIMES_MAX = 100.0
"""A model of another's may be so many times as long as one's own, or as 1."""

REMEMBERED = 15
"""Exchanges whose rates say how fast a model usually gets through."""

RATE_UNKNOWN = 125_000.0
"""Bytes per second that are assumed before any model has got through: 1 Mbit/s."""

RATE_LEAST = 8_000.0
"""Bytes per second. A partner whose model comes more slowly loses its slot: it could hold a peer up for days."""

TIMES = 3.0
"""An exchange may take so many times as long as usual."""

CEILING_S = 3600.0
"""Nobody is waited for longer without a sign of life, however long a model is."""

SKIPPED_MAX_S = 600.0
"""A partner that does not answer is asked again after so long at the latest."""


class Patience:
    """How long something that takes bytes may take: `floor_s`, and what the measured rate says."""

    def __init__(self, floor_s: float) -> None:
        self.floor_s = floor_s
        self._rates: list[float] = []

    def learn(self, nbytes: int, seconds: float) -> None:
        """So many bytes took so long, from the question to the end."""
        self._rates = [*self._rates, nbytes / max(seconds, 1e-3)][-REMEMBERED:]

    def seconds(self, nbytes: int) -> float:
        """How long to wait for so many bytes."""
        rate = median(self._rates) if self._rates else RATE_UNKNOWN
        return min(max(self.floor_s, CEILING_S), self.floor_s + TIMES * max(0, nbytes) / rate)


class UnderWay:
    """Models of exchanges that are on their way, to this peer or from it, as far as it can see."""

    def __init__(self, still_s: float) -> None:
        self._still_s = min(still_s, STILL_S)
        self._until: dict[ExchangeId, float] = {}
        self._seen: set[ExchangeId] = set()

    def told(self, xid: ExchangeId, now: float) -> None:
        """It was handed over to be sent."""
        self._until[xid] = now + self._still_s

    def moved(self, xid: ExchangeId, now: float) -> None:
        """It has come further."""
        self.told(xid, now)
        self._seen.add(xid)

    def moving_until(self, xids: Iterable[ExchangeId]) -> float:
        """Until when one of these is believed to move."""
        return max((self._until[xid] for xid in xids if xid in self._seen), default=-inf)

    def has(self, xid: ExchangeId, now: float) -> bool:
        """Whether one is on its way; one that does not move may be lost."""
        return now < self._until.get(xid, -inf)

    def forget(self, xid: ExchangeId) -> None:
        """The exchange is over."""
        self._until.pop(xid, None)
        self._seen.discard(xid)

    @property
    def until(self) -> float:
        """Until when something is believed to be on its way."""
        return max(self._until.values(), default=-inf)


class Reach:
    """Partners that do not answer this peer's own calls: they are skipped, for longer each time, never for ever."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._missed: dict[str, tuple[int, float]] = {}

    def missed(self, node: str, now: float) -> None:
        """That one has not answered."""
        count = self._missed.get(node, (0, 0.0))[0] + 1
        self._missed[node] = count, now + min(SKIPPED_MAX_S, self._first_s * 2 ** min(count - 1, 30))

    def answered(self, node: str) -> None:
        """That one has answered."""
        self._missed.pop(node, None)

    def keep(self, live: frozenset[str]) -> None:
        """Who has gone begins anew when it comes back."""
        if self._missed.keys() - live:
            self._missed = {node: one for node, one in self._missed.items() if node in live}

    def skipped_until(self, node: str) -> float:
        """When it may be asked again."""
        return self._missed.get(node, (0, -inf))[1]

    @property
    def out(self) -> frozenset[str]:
        """Those that have not answered twice in a row."""
        return frozenset(node for node, (count, _) in self._missed.items() if count > 1)
