"""The side of an exchange that is asked: it keeps a slot, takes its step first, and keeps it until the commit."""

from __future__ import annotations

from math import inf

from shoal.core.gossip.gossip_state import GossipState
from shoal.core.mixing.exchange import ExchangeStep, PairExchange, Prepared
from shoal.core.mixing.exchange_pacing import ExchangeTimeout, ModelTokens
from shoal.core.mixing.final_averaging import FinalAveraging
from shoal.core.mixing.open_exchanges import OpenExchanges
from shoal.core.mixing.partner_search import PartnerSearch
from shoal.core.mixing.step_limits import ModelSteps, norm_mismatch
from shoal.core.model.tree import norm, sub
from shoal.core.model.tree_checks import statistics_doubt
from shoal.core.protocol.machine import Effect, Tell
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
)

UNSETTLED_MAX = 16
"""Maximum number of prepared steps without a commit; at the limit, new exchanges are denied."""


class ExchangeResponder:
    """One peer's part in the exchanges that its partners begin. `slot_timeout_s`: seconds for which it keeps a slot."""

    def __init__(
        self,
        slot_timeout_s: float,
        exchanges: OpenExchanges,
        search: PartnerSearch,
        averaging: FinalAveraging,
        steps: ModelSteps,
        tokens: ModelTokens,
        timeout: ExchangeTimeout,
    ) -> None:
        self._slot_timeout_s, self._exchanges, self._search, self._averaging = (
            slot_timeout_s,
            exchanges,
            search,
            averaging,
        )
        self._steps, self._tokens, self._timeout = steps, tokens, timeout

    def on(
        self,
        message: ExchangeRequest | ExchangeOffer | ExchangeQuery | ExchangeCommit | ExchangeAbort,
        me: GossipState,
        now: float,
    ) -> list[Effect]:
        """Handle a message of the peer that began the exchange."""
        match message:
            case ExchangeRequest():
                return self._reserve(message, me, now)
            case ExchangeOffer():
                return self._accept(message, me, now)
            case ExchangeQuery():
                return self._resolve(message, me, now)
            case ExchangeCommit():
                self._exchanges.forget(message.id)
            case ExchangeAbort() if self._exchanges.holds_slot(message.id):
                current = self._exchanges.current
                self._averaging.record_failure(current.step if current is not None else 0)
                self._search.end_exchange(me, now)
        return []

    def deny(self, message: ExchangeRequest, why: str, me: GossipState, now: float, wait_s: float = 0.0) -> Tell:
        """Return a denial. `wait_s`: seconds for which the partner had better not ask again."""
        free = self._exchanges.current is None and not self._exchanges.in_doubt
        step = self._averaging.progress(me, now, free=free)
        return Tell(
            message.node, ExchangeDeny(me.node, message.id, why, wait_s, me.counts.version_vector.get(me.node, 0), step)
        )

    def abort(self, to: str, xid: ExchangeId, me: GossipState, why: str) -> list[Effect]:
        """Promise never to take the step of this exchange."""
        self._exchanges.abort(xid)
        return [Tell(to, ExchangeAbort(me.node, xid, why))]

    def _reserve(self, message: ExchangeRequest, me: GossipState, now: float) -> list[Effect]:
        """Keep a slot for a request, or deny it. A new request commits this initiator's earlier exchanges."""
        xid, theirs, exchanges = message.id, message.node, self._exchanges
        if exchanges.has_ended(xid):
            return [self.deny(message, "this exchange is over", me, now)]
        self._averaging.record_rounds(message, me, now)
        self._search.advance_averaging(me, now)
        for earlier in [one for one in exchanges.prepared if one[0] == theirs]:
            exchanges.forget(earlier)
        slot = exchanges.current if exchanges.current is not None and exchanges.current.begun is None else None
        if slot is not None and slot.partner == theirs and slot.id < xid:
            exchanges.current = None  # the initiator has given this slot up
        wait_s = me.budget.wait_s(me.exchange_bytes)
        why = "" if exchanges.holds_slot(xid) else self._refusal(message, wait_s, me, now)
        if why:
            return [self.deny(message, why, me, now, wait_s)]
        exchanges.current = PairExchange(xid, theirs, now + self._slot_timeout_s, since=now, step=message.step)
        return [Tell(theirs, ExchangeGrant(me.node, xid, me.norm))]

    def _refusal(self, message: ExchangeRequest, wait_s: float, me: GossipState, now: float) -> str:
        """Return why no exchange may begin now; empty: it may."""
        exchanges, in_doubt = self._exchanges, self._exchanges.in_doubt.values()
        is_doubtful = any(message.step or doubt.partner == message.node for doubt in in_doubt)
        reasons = {
            "still sending its last answer": now < exchanges.sending_until,
            "its budget of bytes is used up": wait_s > 0,
            "not mixing any more": exchanges.is_closed,
            "in an exchange": exchanges.current is not None,
            "an exchange is in doubt": exchanges.gives_all or is_doubtful,
            "too many answers have not arrived": len(exchanges.prepared) >= UNSETTLED_MAX,
        }
        why = next((reason for reason, holds in reasons.items() if holds), "") or self._averaging.refusal(
            message, me, now
        )
        if not why and self._tokens.is_used_up and self._averaging.current is None:
            why = "over budget"
        return why or norm_mismatch(message.norm, me.norm)

    def _accept(self, message: ExchangeOffer, me: GossipState, now: float) -> list[Effect]:
        """Take this side's step, if a slot is held for this exchange."""
        xid, exchanges = message.id, self._exchanges
        if xid in exchanges.prepared:
            return self._repeat(xid, me, now)
        current = exchanges.current if exchanges.holds_slot(xid) else None
        if (
            current is None
            or current.step != message.step
            or exchanges.has_ended(xid)
            or self._averaging.is_late(current.step)
        ):
            return self.abort(message.node, xid, me, "no slot is held for it")
        theirs = me.open_model(message.blob)
        shown = me.publish_model()
        mine = me.published_model(shown)
        way = norm(sub(theirs, mine))
        weight = self._averaging.weight(me, current.step)
        if (
            not way < inf
            or not message.longest_step > 0
            or not 0 <= message.weight < inf
            or not weight + message.weight > 0
        ):
            self._steps.refused += 1
            return self.abort(message.node, xid, me, "it must not be mixed: it is not finite")
        if doubt := statistics_doubt(theirs, me.mixed):
            self._steps.refused += 1
            return self.abort(message.node, xid, me, f"it must not be mixed: {doubt}")
        cap = min(self._steps.limits.cap(planned=current.step > 0), message.longest_step)
        share = min(1.0, cap / way) if way else 1.0
        exchanges.prepare(xid, Prepared(shown, weight, share, dict(me.counts.version_vector), current.step), now)
        self._tokens.spend()
        step = ExchangeStep(mine, theirs, weight, share, way)
        self._steps.take(me, message, step, self._averaging.kept_part(current.step), now)
        me.counts.merge(message.version_vector)
        self._timeout.record(me.model_bytes, now - current.since)
        exchanges.current = None
        return [Tell(message.node, self._accepted(xid, me))]

    def _accepted(self, xid: ExchangeId, me: GossipState) -> ExchangeAccept:
        kept = self._exchanges.prepared[xid]
        return ExchangeAccept(me.node, xid, kept.weight, kept.step_fraction, kept.shown, kept.version_vector, kept.step)

    def _repeat(self, xid: ExchangeId, me: GossipState, now: float) -> list[Effect]:
        """Repeat the accept, unless it is in transit; within the byte budget."""
        if self._exchanges.in_flight.has(xid, now) or not self._exchanges.may_repeat(me.budget):
            return []
        self._exchanges.in_flight.record_send(xid, now)
        return [Tell(xid[0], self._accepted(xid, me))]

    def _resolve(self, message: ExchangeQuery, me: GossipState, now: float) -> list[Effect]:
        xid = message.id
        if xid in self._exchanges.prepared:
            return self._repeat(xid, me, now)
        if self._exchanges.holds_slot(xid):  # its model is in transit
            is_moving = self._exchanges.in_flight.has(xid, now)
            return [] if is_moving else [Tell(message.node, ExchangeGrant(me.node, xid, me.norm))]
        return self.abort(message.node, xid, me, "it never came")
