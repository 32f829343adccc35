"""What must hold where reports are relative to a base, and orders stand until somebody speaks.

stands      a balancing leaves the orders of those whom it does not concern as they are
step        no node is let go on from a check that it has not told of
held        a node holds the base that the hub had when it gave the order, to the last bit
weight      a report speaks for the examples that its node has trained on since the base was set; of a node that trains
            no more, for the most that these ever were
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.anchor import SYNC
from shoal.core.hub import Hub
from shoal.core.machine import Effect, Event, Result, Save, Send, Version, Work
from shoal.core.message import Amendment, Bodies, Order, OrderId, Ref, Status
from shoal.core.metric import FINISHED
from shoal.core.tree import Slots, Tree


class Violation(AssertionError):
    """An invariant does not hold."""


def require(holds: bool, what: str, *details: object) -> None:
    """Raise `Violation` unless it holds. Only then are the details put into the braces of `what`: often called."""
    if not holds:
        raise Violation(what.format(*details))


class Anchored:
    """Told by the checker of what it sees for the first time."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._standing: dict[str, OrderId] = {}
        self._told: dict[OrderId, int] = {}  # the last check that a status has told of
        self._bases: dict[OrderId, Ref | None] = {}
        self._doing: dict[str, OrderId] = {}

    def fed(self, event: Event, effects: Sequence[Effect], hub: Hub) -> None:
        """An event and what followed from it."""
        if isinstance(event, Status):
            self._told[event.order] = max(event.check, self._told.get(event.order, 0))
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.body, Order):
                self._check_order(effect.body, hub)
            elif isinstance(effect, Send) and isinstance(effect.body, Amendment):
                self._check_step(effect.body.order, effect.body.until)
            elif isinstance(effect, Save) and isinstance(effect.what, Version):
                self._check_standing(event, effect.what, hub)
        self._standing = {member.node: member.order.id for member in hub.roster.all() if member.order is not None}

    def _check_order(self, order: Order, hub: Hub) -> None:
        if order.id not in self._bases:
            self._bases[order.id] = self._bodies.put(hub.anchor.held) if hub.anchor.held else None
        self._check_step(order.id, order.until)

    def _check_step(self, order: OrderId, until: int) -> None:
        told = self._told.get(order, 0)
        require(until <= told + 1, "step: {} goes on to {}, but has told of {} checks", order, until, told)

    def _check_standing(self, event: Event, version: Version, hub: Hub) -> None:
        if hub.phase != "running" or hub.anchor.numbers.get(SYNC, 1.0):
            return
        concerned = {getattr(event, "node", ""), *(node for node, _, _, _ in version.reports)}
        for node, before in self._standing.items():
            now = hub.roster[node].order
            still = node in concerned or (now is not None and now.id == before)
            require(still, "stands: {} withdraws order {} of {}, which had no part in it", version.number, before, node)

    def started(self, node: str, work: Work) -> None:
        """A node begins an order."""
        self._doing[node] = work.order.id

    def holds(self, node: str, base: Ref | None) -> None:
        """A node has begun to hold this."""
        order = self._doing[node]
        require(
            base == self._bases[order], "held: for {} {} holds {} instead of {}", order, node, base, self._bases[order]
        )


def check_weight(order: Order, per_batch: float, before: Slots, result: Result, after: Slots) -> None:
    """`before`, `after`: a node's private memory; `per_batch`: examples of each of its mini-batches."""

    def number(slots: Slots, name: str) -> float:
        value = slots.get(name, 0.0)
        assert not isinstance(value, Tree)
        return value

    batches = number(after, "position") - number(before, "position")
    known = 0.0 if order.numbers.get(SYNC) and batches else number(before, "seen")  # without any, as it was last
    right = known + per_batch * batches
    if FINISHED in result.metrics:  # then it weighs what it weighed at most
        right = max(right, number(before, "longest"), number(before, "seen"))
    require(result.weight == max(1.0, right), "weight: {} weighs {} instead of {}", order, result.weight, right)
