"""The side of an exchange that begins it: request, offer, and its step after the partner's."""

from __future__ import annotations

from shoal.core.gossip.gossip_state import GossipState
from shoal.core.mixing.exchange import ExchangeStep, InDoubt, PairExchange
from shoal.core.mixing.exchange_pacing import NORM_TIMES_MAX, ExchangeTimeout, ModelTokens
from shoal.core.mixing.final_averaging import FinalAveraging
from shoal.core.mixing.open_exchanges import OpenExchanges
from shoal.core.mixing.partner_search import PartnerSearch
from shoal.core.mixing.step_limits import ModelSteps, is_acceptable, norm_mismatch
from shoal.core.model.tree import norm, sub
from shoal.core.model.tree_checks import statistics_doubt
from shoal.core.protocol.machine import Effect, JobEvent, Tell
from shoal.core.protocol.peer_message import (
    ExchangeAbort,
    ExchangeAccept,
    ExchangeCommit,
    ExchangeDeny,
    ExchangeGrant,
    ExchangeId,
    ExchangeOffer,
    ExchangeQuery,
    ExchangeRequest,
    Received,
)


class ExchangeInitiator:
    """One peer's part in the exchanges that it begins."""

    def __init__(
        self,
        exchanges: OpenExchanges,
        search: PartnerSearch,
        averaging: FinalAveraging,
        steps: ModelSteps,
        tokens: ModelTokens,
        timeout: ExchangeTimeout,
    ) -> None:
        self._exchanges, self._search, self._averaging = exchanges, search, averaging
        self._steps, self._tokens, self._timeout = steps, tokens, timeout
        self._count = 0

    def request(self, me: GossipState, now: float) -> list[Effect]:
        """Call the next partner, if one may be called."""
        partner = self._search.next_partner(me, now)
        if not partner:
            return []
        self._count += 1
        xid = me.node, me.process_number, self._count
        step = 0 if self._exchanges.in_doubt else self._averaging.step_for(partner, me)
        self._exchanges.current = PairExchange(xid, partner, now + self._timeout.floor_s, now, now, step)
        count = me.counts.version_vector.get(me.node, 0)
        return [Tell(partner, ExchangeRequest(me.node, xid, me.norm, count, step, self._averaging.ring_name(step)))]

    def query(self, xid: ExchangeId, me: GossipState) -> list[Effect]:
        """Query the outcome of an exchange in doubt, within the byte budget."""
        if not self._exchanges.may_repeat(me.budget):
            return []
        me.budget.charge(me.model_bytes)  # the answer carries a model
        return [Tell(self._exchanges.in_doubt[xid].partner, ExchangeQuery(me.node, xid))]

    def on(
        self,
        message: ExchangeGrant | ExchangeDeny | ExchangeAccept | ExchangeAbort | Received,
        me: GossipState,
        now: float,
    ) -> list[Effect]:
        """Handle an answer of the partner; ignore those of other peers."""
        xid, in_doubt = message.id, message.id in self._exchanges.in_doubt
        if isinstance(message, ExchangeAccept | Received) and xid[0] == me.node and not in_doubt:
            return [Tell(message.node, ExchangeCommit(me.node, xid))]
        if message.node != self._exchanges.partner_in(xid):
            return []
        if isinstance(message, Received):
            return self.query(xid, me)
        self._search.reachability.record_answer(message.node)
        match message:
            case ExchangeGrant():
                return self._offer(message, me, now)
            case ExchangeAccept():
                return self._take_step(message, me, now)
            case ExchangeAbort() if in_doubt:
                self._averaging.record_failure(self._exchanges.in_doubt[xid].step)
                self._conclude(xid, me, now)
            case ExchangeDeny() if not in_doubt:
                self._averaging.record_rounds(message, me, now)
                self._averaging.record_denial(message, now, self._timeout.timeout_s(me.exchange_bytes))
                self._search.defer(message.node, max(message.wait_s, self._averaging.pause_s(now)), now)
                self._search.end_exchange(me, now)
        return []

    def _offer(self, message: ExchangeGrant, me: GossipState, now: float) -> list[Effect]:
        """Offer the model, or repeat the offer."""
        xid, exchanges = message.id, self._exchanges
        if xid not in exchanges.in_doubt:
            assert exchanges.current is not None
            step = exchanges.current.step
            late = "the last averaging has come to its end" if self._averaging.is_late(step) else ""
            why = late or norm_mismatch(me.norm, message.norm)
            if why:
                self._search.end_exchange(me, now)
                return [Tell(message.node, ExchangeAbort(me.node, xid, why))]
            mass, weight = self._averaging.mass_of(me), self._averaging.weight(me, step)
            cap, kept_part = self._steps.limits.cap(planned=step > 0), self._averaging.kept_part(step)
            doubt = InDoubt(message.node, me.publish_model(), weight, cap, mass, step, kept_part)
            exchanges.add_doubt(xid, doubt, now)
            exchanges.current.until, exchanges.current.since = now + self._timeout.timeout_s(me.exchange_bytes), now
            self._tokens.spend()
        elif exchanges.in_flight.has(xid, now) or not exchanges.may_repeat(me.budget):
            return []  # it will be queried again
        exchanges.in_flight.record_send(xid, now)
        doubt = exchanges.in_doubt[xid]
        offer = ExchangeOffer(
            me.node, xid, doubt.weight, doubt.longest_step, doubt.shown, dict(me.counts.version_vector), doubt.step
        )
        return [Tell(doubt.partner, offer)]

    def _take_step(self, message: ExchangeAccept, me: GossipState, now: float) -> list[Effect]:
        """Take this side's step: the partner has taken its own for good. A repetition changes nothing."""
        xid, doubt, current = message.id, self._exchanges.in_doubt[message.id], self._exchanges.current
        mine, theirs = me.open_model(doubt.shown), me.open_model(message.blob)
        way = norm(sub(theirs, mine))
        effects: list[Effect] = []
        near = norm(theirs) <= NORM_TIMES_MAX * max(me.norm, 1.0) and not statistics_doubt(theirs, me.mixed)
        if near and is_acceptable(message, doubt, way):
            step = ExchangeStep(mine, theirs, doubt.weight, message.step_fraction, way)
            self._steps.take(me, message, step, doubt.kept_part, now)
            me.counts.merge(message.version_vector)
        else:
            self._steps.refused += 1
            effects.append(
                JobEvent("refusal", "its model was not mixed: not what was agreed on", me.local_rounds, message.node)
            )
        if current is not None and current.id == xid and current.begun is not None:
            self._timeout.record(me.exchange_bytes, now - current.begun)
            self._search.succeed()
        self._conclude(xid, me, now)
        return [*effects, Tell(message.node, ExchangeCommit(me.node, xid))]

    def _conclude(self, xid: ExchangeId, me: GossipState, now: float) -> None:
        self._exchanges.forget(xid)
        if self._exchanges.is_own(xid):
            self._search.end_exchange(me, now)
