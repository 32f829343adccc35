"""How long each order took, and in which phases, by the coordinator's clock alone.

    given ── wait ── sent ── download ── have ── train ── begun ── upload ── came ── fold ── counted

A node's clock is never looked at: *train* is the time between the last byte of the model that it was sent and the first
byte of its answer, so what it spends on encoding, and half a round trip at both ends, is in it. An order that was given
by an earlier process of the coordinator has no *wait*, and none of what came before the restart.

Each order has a watch of its own: when a report makes its round close, the node's next order may be on its way before
the report has been acknowledged.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from shoal.core.message import OrderId
from shoal.core.roster import GIVEN_KEPT


class Phases(NamedTuple):
    """Seconds; None where one of its ends is not known."""

    seconds: float | None = None
    """From the first known moment to the last."""
    wait_s: float | None = None
    download_s: float | None = None
    train_s: float | None = None
    upload_s: float | None = None
    fold_s: float | None = None


UNKNOWN = Phases()


@dataclass
class Watch:
    """The moments of one order, on the job's clock."""

    given: float | None = None
    sent: float | None = None
    have: float | None = None
    begun: float | None = None
    came: float | None = None

    def phases(self, end: float) -> Phases:
        """How long each phase took; `end` is when the report was counted, or now."""
        moments = (self.given, self.sent, self.have, self.begun, self.came)
        ends = (*moments[1:], end if self.came is not None else None)
        first = next((moment for moment in moments if moment is not None), None)
        return Phases(None if first is None else end - first, *map(_between, moments, ends))

    def so_far(self, now: float) -> Phases:
        """The same of an order that is not done: the phase that it is in lasts until now."""
        phases = self.phases(now)
        moments = (self.given, self.sent, self.have, self.begun, self.came)
        current = max((place for place, moment in enumerate(moments) if moment is not None), default=None)
        if current is None:
            return phases
        name, begun = Phases._fields[1 + current], moments[current]
        return phases._replace(**{name: _between(begun, now)})


def _between(begun: float | None, ended: float | None) -> float | None:
    return None if begun is None or ended is None else max(0.0, ended - begun)


class Stopwatches:
    """Those of one job. `now`: the job's clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._watches: defaultdict[str, dict[OrderId, Watch]] = defaultdict(dict)

    def _of(self, node: str, order: OrderId) -> Watch:
        mine = self._watches[node]
        if order not in mine:
            mine[order] = Watch()
            if len(mine) > GIVEN_KEPT:
                del mine[next(iter(mine))]
        return mine[order]

    def given(self, node: str, order: OrderId) -> None:
        """The order stands."""
        watch = self._of(node, order)
        if watch.given is None and watch.sent is None:
            watch.given = self._now()

    def sent(self, node: str, order: OrderId) -> None:
        """The node is told of it, perhaps again: the first time counts."""
        watch = self._of(node, order)
        if watch.sent is None:
            watch.sent = watch.have = self._now()

    def got(self, node: str, order: OrderId) -> None:
        """The node has been sent a body that the order names."""
        watch = self._of(node, order)
        if watch.begun is None:
            watch.have = self._now()

    def begun(self, node: str, order: OrderId, since: float | None = None) -> None:
        """Its answer comes, perhaps again: the first time counts. `since`: when that began, monotonic."""
        watch = self._of(node, order)
        if watch.begun is None:
            watch.begun = self._now() - (0.0 if since is None else time.monotonic() - since)

    def came(self, node: str, order: OrderId) -> None:
        """The report is here, with its body."""
        self._of(node, order).came = self._now()

    def finish(self, node: str, order: OrderId) -> Phases:
        """The report was counted; this order is not watched any more."""
        return self._watches[node].pop(order, Watch()).phases(self._now())

    def so_far(self, node: str, order: OrderId) -> Phases:
        """An order that still stands."""
        return self._watches[node].get(order, Watch()).so_far(self._now())
