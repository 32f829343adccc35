"""One peer's exchanges that are not over, and the identifiers of those that are."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from shoal.core.gossip.byte_budget import ByteBudget
from shoal.core.mixing.exchange import InDoubt, PairExchange, Prepared
from shoal.core.mixing.exchange_pacing import InFlight
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.peer_message import ExchangeId

QUERY_S_MAX = 60.0
"""Longest pause in seconds between two queries of one exchange."""


class OpenExchanges:
    """Exchanges in flight, in doubt, and prepared. All but the one in flight is durable."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.current: PairExchange | None = None
        """The exchange in flight."""
        self.in_doubt: dict[ExchangeId, InDoubt] = {}
        self.prepared: dict[ExchangeId, Prepared] = {}
        self.in_flight = InFlight(timeout_s / 2)
        self.is_closed = False
        """True if no new exchange may begin."""
        self._ended: dict[str, tuple[int, int]] = {}
        # (process number, number) of each initiator's last exchange that was either made here or aborted for ever
        self._queries: dict[ExchangeId, tuple[float, float]] = {}  # (next one, pause)

    @property
    def is_empty(self) -> bool:
        return self.current is None and not self.in_doubt and not self.prepared

    @property
    def gives_all(self) -> bool:
        """Return whether a partner may have taken all of this model's mass; if so, the model must not move."""
        return any(doubt.kept_part == 0 for doubt in self.in_doubt.values())

    @property
    def sending_until(self) -> float:
        """Return until when a model of this peer's steps is assumed to move to its partner."""
        return self.in_flight.moving_until(self.prepared)

    def may_repeat(self, budget: ByteBudget) -> bool:
        """Return whether a message may be repeated: within the byte budget, or while leaving."""
        return self.is_closed or budget.is_positive

    # Sides of an exchange

    def is_own(self, xid: ExchangeId) -> bool:
        """Return whether it is in flight, and this peer began it."""
        return self.current is not None and self.current.id == xid and self.current.begun is not None

    def holds_slot(self, xid: ExchangeId) -> bool:
        """Return whether it is in flight, and its partner began it."""
        return self.current is not None and self.current.id == xid and self.current.begun is None

    def partner_in(self, xid: ExchangeId) -> str:
        """Return the partner in an exchange that this peer began; "" if it did not, or it is over."""
        if xid in self.in_doubt:
            return self.in_doubt[xid].partner
        return self.current.partner if self.is_own(xid) and self.current is not None else ""

    # Progress

    def add_doubt(self, xid: ExchangeId, doubt: InDoubt, now: float) -> None:
        """Add an exchange whose partner may take its step."""
        self.in_doubt[xid] = doubt
        self._queries[xid] = now + self._timeout_s, self._timeout_s

    def prepare(self, xid: ExchangeId, step: Prepared, now: float) -> None:
        """Add a step of this peer that the initiator has not committed."""
        self.prepared[xid], self._ended[xid[0]] = step, xid[1:]
        self._queries[xid] = now + self._timeout_s, 2 * self._timeout_s
        self.in_flight.record_send(xid, now)

    def abort(self, xid: ExchangeId) -> None:
        """Refuse that step for ever."""
        self._ended[xid[0]] = max(xid[1:], self._ended.get(xid[0], (-1, -1)))
        if self.holds_slot(xid):
            self.current = None

    def has_ended(self, xid: ExchangeId) -> bool:
        """Return whether this exchange, or a later one of its initiator, was made here or aborted."""
        return xid[1:] <= self._ended.get(xid[0], (-1, -1))

    def forget(self, xid: ExchangeId) -> None:
        """Forget an exchange that both sides have agreed on."""
        for one in (self.in_doubt, self.prepared, self._queries):
            one.pop(xid, None)
        self.in_flight.forget(xid)

    # Queries

    @property
    def query_at(self) -> float:
        """Return the time of the next query; infinite: there is none."""
        return min((at for at, _ in self._queries.values()), default=inf)

    def due_queries(self, now: float) -> Iterable[ExchangeId]:
        """Yield the exchanges whose outcome must be queried now, and plan their next queries."""
        for xid, (due, pause) in sorted(self._queries.items()):
            if now >= due:
                self._queries[xid] = now + pause, min(QUERY_S_MAX, 2 * pause)
                yield xid

    def postpone_query(self, xid: ExchangeId, now: float) -> None:
        """Wait for a timeout before the next query."""
        if xid in self._queries:
            at, pause = self._queries[xid]
            self._queries[xid] = max(at, now + self._timeout_s), pause

    # Stored state

    def state(self) -> dict[str, Any]:
        """Return the durable state as JSON values."""
        return {
            "doubts": [[list(xid), *one.values()] for xid, one in sorted(self.in_doubt.items())],
            "answers": [[list(xid), *one.values()] for xid, one in sorted(self.prepared.items())],
            "over": {node: list(last) for node, last in sorted(self._ended.items())},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the durable state; all that was in flight is in doubt, and queried at once."""
        for xid, *values in state["doubts"]:
            self.in_doubt[(xid[0], xid[1], xid[2])] = InDoubt.of(*values)
        for xid, *values in state["answers"]:
            self.prepared[(xid[0], xid[1], xid[2])] = Prepared.of(*values)
        self._ended = {node: (last[0], last[1]) for node, last in state["over"].items()}
        self._queries = dict.fromkeys([*self.in_doubt, *self.prepared], (0.0, self._timeout_s))

    def blob_refs(self) -> list[BlobRef]:
        """Return the blobs of models that were offered or accepted."""
        return [one.shown for one in self.in_doubt.values()] + [one.shown for one in self.prepared.values()]
