"""Who takes part in a job, what stands for whom, and who has been silent for too long."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shoal.core.message import Ack, Order, OrderId, Ref

FAILURES_MAX = 3
"""Failures in a row after which a node is not asked again until its process restarts."""

GIVEN_KEPT = 8
"""Past orders of a node that are remembered, to tell a late report from a foreign one."""


@dataclass
class Member:
    """One node of a job."""

    node: str
    here: bool = True
    order: Order | None = None
    answered: Ack | None = None
    failures: int = 0
    given: list[OrderId] = field(default_factory=list)

    @property
    def suspended(self) -> bool:
        return self.failures >= FAILURES_MAX

    def give(self, order: Order) -> None:
        """Make an order stand; it replaces the one before."""
        self.order = order
        self.given = [*self.given, order.id][-GIVEN_KEPT:]

    def answer(self, ack: Ack) -> None:
        """The standing order has been dealt with."""
        self.order, self.answered = None, ack


class Roster:
    """The members of a job, in the order of their names."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}

    def get(self, node: str) -> Member | None:
        return self._members.get(node)

    def __getitem__(self, node: str) -> Member:
        return self._members[node]

    def welcome(self, node: str) -> Member:
        """The member of that name, new or old, and from now on here."""
        member = self._members.setdefault(node, Member(node))
        member.here = True
        return member

    def all(self) -> list[Member]:
        return [self._members[node] for node in sorted(self._members)]

    def here(self) -> list[Member]:
        """Members that give signs of life."""
        return [member for member in self.all() if member.here]

    def able(self) -> list[Member]:
        """Members that may be asked."""
        return [member for member in self.here() if not member.suspended]

    def state(self) -> list[dict[str, Any]]:
        """The roster as JSON values."""
        return [
            {
                "node": m.node,
                "here": m.here,
                "order": _order_state(m.order),
                "answered": [*m.answered.order, m.answered.counted, m.answered.why] if m.answered else None,
                "failures": m.failures,
                "given": [list(order) for order in m.given],
            }
            for m in self.all()
        ]

    @classmethod
    def restore(cls, state: list[dict[str, Any]]) -> Roster:
        roster = cls()
        for row in state:
            boot, n, counted, why = row["answered"] or (0, 0, False, "")
            roster._members[row["node"]] = Member(
                node=row["node"],
                here=row["here"],
                order=_order_of(row["order"]),
                answered=Ack((boot, n), counted, why) if row["answered"] else None,
                failures=row["failures"],
                given=[(order[0], order[1]) for order in row["given"]],
            )
        return roster


def _order_state(order: Order | None) -> dict[str, Any] | None:
    if order is None:
        return None
    body = [order.body.digest, order.body.nbytes] if order.body else None
    return {
        "id": list(order.id),
        "node": order.node,
        "kind": order.kind,
        "version": order.version,
        "seed": order.seed,
        "body": body,
    }


def _order_of(state: dict[str, Any] | None) -> Order | None:
    if state is None:
        return None
    body = Ref(*state["body"]) if state["body"] else None
    boot, n = state["id"]
    return Order((boot, n), state["node"], state["kind"], state["version"], state["seed"], body)


class Leases:
    """Signs of life. Not part of the hub's state: each expiry becomes a `Lost` event, and that is journaled.

    Times are seconds of the same clock that the hub lives by.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._heard: dict[str, float] = {}

    def heard(self, node: str, now: float) -> None:
        self._heard[node] = now

    def forget(self, node: str) -> None:
        self._heard.pop(node, None)

    def age(self, node: str, now: float) -> float | None:
        """Seconds since the last sign of life; None when there was none yet."""
        return now - self._heard[node] if node in self._heard else None

    def expired(self, now: float) -> list[str]:
        """Nodes that have been silent for longer than the patience; each is named once."""
        silent = sorted(node for node, heard in self._heard.items() if now - heard > self.patience_s)
        for node in silent:
            del self._heard[node]
        return silent
