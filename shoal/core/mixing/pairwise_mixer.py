"""The mixer of conserving pairwise exchange: see `shoal.mixing.pairwise`."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, ClassVar

from shoal.core.gossip.gossip_state import GossipState
from shoal.core.gossip.transfer import Transfer
from shoal.core.mixing.exchange_initiator import ExchangeInitiator
from shoal.core.mixing.exchange_pacing import RATE_LEAST, ExchangeTimeout, ModelTokens, PairwisePolicy
from shoal.core.mixing.exchange_responder import ExchangeResponder
from shoal.core.mixing.final_averaging import FinalAveraging
from shoal.core.mixing.open_exchanges import OpenExchanges
from shoal.core.mixing.partner_search import PartnerSearch
from shoal.core.mixing.step_limits import ModelSteps
from shoal.core.protocol.machine import Effect, Tell
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.peer_message import (
    ExchangeAbort,
    ExchangeAccept,
    ExchangeCommit,
    ExchangeDeny,
    ExchangeGrant,
    ExchangeOffer,
    ExchangeQuery,
    ExchangeRequest,
    MixingMessage,
    Received,
)


class PairwiseMixer:
    """One peer's exchanges, from both sides. Durable: the open exchanges and the mass; a new process loses the rest."""

    synchronous: ClassVar[bool] = False

    def __init__(self, policy: PairwisePolicy) -> None:
        self.alarm = inf
        self.exchanges = OpenExchanges(policy.exchange_timeout_s)
        self.averaging = FinalAveraging(policy.exchange_timeout_s)
        self._slot_timeout_s = policy.slot_timeout_s
        self._tokens, self._timeout = ModelTokens(policy), ExchangeTimeout(policy.exchange_timeout_s)
        self._steps = ModelSteps(policy, self.averaging)
        self._search = PartnerSearch(policy, self.exchanges, self.averaging, self._tokens)
        parts = self.exchanges, self._search, self.averaging, self._steps, self._tokens, self._timeout
        self._initiator, self._responder = ExchangeInitiator(*parts), ExchangeResponder(policy.slot_timeout_s, *parts)

    @property
    def is_waiting(self) -> bool:
        return False

    @property
    def is_busy(self) -> bool:
        return not self.exchanges.is_empty

    @property
    def moving_until(self) -> float:
        return self.exchanges.in_flight.until

    def halt(self) -> None:
        self.exchanges.is_closed = True
        self._search.end_turn()

    def resume(self) -> None:
        self.exchanges.is_closed = False

    def begin_turn(self, me: GossipState, now: float) -> Sequence[Effect]:
        """Look for a partner, if the model has moved enough and the budget allows it."""
        self._tokens.refill()
        if not me.counts.rounds_done and self._steps.is_near_last(me.mixed):
            return []
        self._search.begin_turn(me, now)
        return self.on_timer(me, now)

    def on_timer(self, me: GossipState, now: float) -> Sequence[Effect]:
        """Give up silent partners, query exchanges in doubt, call the next partner: all that is due."""
        effects: list[Effect] = []
        exchanges, search = self.exchanges, self._search
        search.reachability.retain(me.peers.nodes)
        self._give_up(me, now)
        search.advance_averaging(me, now)
        me.convergence.unanswering = search.reachability.unanswering
        for xid in exchanges.due_queries(now):
            is_own = xid in exchanges.in_doubt  # else the partner has not committed the step that is taken here
            effects += self._initiator.query(xid, me) if is_own else [Tell(xid[0], Received(me.node, xid))]
        if now >= search.next_try and exchanges.current is None:
            effects += self._initiator.request(me, now)
        self.alarm = min(exchanges.current.until if exchanges.current else search.next_try, exchanges.query_at)
        return effects

    def _give_up(self, me: GossipState, now: float) -> None:
        """Stop waiting for a partner that is silent or has gone."""
        one = self.exchanges.current
        if one is None:
            return
        gone = one.begun is not None and one.partner not in me.peers.nodes
        if gone or now >= one.until:
            if one.begun is not None and one.id not in self.exchanges.in_doubt:
                self._search.reachability.record_miss(one.partner, now)
            self.averaging.record_failure(one.step)
            self._search.end_exchange(me, now)

    def on_transfer(self, transfer: Transfer, me: GossipState, now: float) -> Sequence[Effect]:
        """Wait longer for an exchange whose models move, unless they move too slowly."""
        xid, exchanges, one = transfer.id, self.exchanges, self.exchanges.current
        other = xid[0] if xid[0] != me.node else exchanges.partner_in(xid)
        is_open = xid in exchanges.in_doubt or xid in exchanges.prepared or exchanges.holds_slot(xid)
        if other == transfer.node and is_open:
            exchanges.in_flight.record_progress(xid, now)
            exchanges.postpone_query(xid, now)
            is_own = exchanges.is_own(xid)
            crossed = transfer.nbytes + (me.model_bytes if is_own and not transfer.leaving else 0)
            whole = me.exchange_bytes if is_own else me.model_bytes
            if one is not None and one.id == xid and now <= one.since + self._slot_timeout_s + crossed / RATE_LEAST:
                one.until = max(one.until, now + self._timeout.timeout_s(whole - crossed))
        return self.on_timer(me, now)

    def on(self, message: MixingMessage, me: GossipState, now: float) -> Sequence[Effect]:
        """Handle a message of one of an exchange's two sides; ignore all others."""
        effects: list[Effect] = []
        match message:
            case ExchangeRequest() | ExchangeOffer() | ExchangeQuery() | ExchangeCommit() | ExchangeAbort() if (
                message.id[0] == message.node
            ):
                effects = self._responder.on(message, me, now)
            case ExchangeGrant() | ExchangeDeny() | ExchangeAccept() | ExchangeAbort() | Received():
                effects = self._initiator.on(message, me, now)
        return [*effects, *self.on_timer(me, now)]

    def reject(self, message: MixingMessage, why: str, me: GossipState, now: float) -> Sequence[Effect]:
        """Deny a request and abort an offer. Other messages are handled: their exchange is agreed on."""
        match message:
            case ExchangeRequest() if message.id[0] == message.node:
                return [self._responder.deny(message, why, me, now), *self.on_timer(me, now)]
            case ExchangeOffer() if message.id[0] == message.node and message.id not in self.exchanges.prepared:
                self._steps.refused += 1
                aborted = self._responder.abort(message.node, message.id, me, why)
                return [*aborted, *self.on_timer(me, now)]
        return self.on(message, me, now)

    def state(self) -> dict[str, Any]:
        return {**self.exchanges.state(), "last": self.averaging.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the durable state; all that was in flight is in doubt, and queried at once."""
        self.exchanges.restore(state)
        self.averaging.restore(state["last"])
        self.alarm = 0.0

    def blob_refs(self) -> list[BlobRef]:
        return self.exchanges.blob_refs()

    def counters(self) -> dict[str, int]:
        in_doubt, prepared = self.exchanges.in_doubt, self.exchanges.prepared
        return {"in_doubt": len(in_doubt), "unsettled": len(prepared), "refused": self._steps.refused}
