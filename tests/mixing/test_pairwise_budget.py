"""A pair of which one peer has used up its bytes."""

from __future__ import annotations

from shoal.core.gossip.byte_budget import ByteBudget
from shoal.core.gossip.gossip import StopGossip
from shoal.core.gossip.gossip_state import LivePeers
from shoal.core.mixing.partner_search import WAIT_MAX_S
from shoal.core.protocol.machine import Timer
from shoal.core.protocol.peer_message import (
    ExchangeAccept,
    ExchangeCommit,
    ExchangeDeny,
    ExchangeGrant,
    ExchangeOffer,
    ExchangeQuery,
    ExchangeRequest,
    Received,
)
from shoal.sim.hosts.toy_models import toy_tree
from tests.mixing.test_pairwise import One, pair, up_to_slot

MOVED = toy_tree((4.0, 0.0, 0.0), 1)


def meter(one: One, exchanges: float) -> ByteBudget:
    """Give it a budget worth an exchange in ten seconds, and some to begin with."""
    me = one.gossip.me
    me.budget = ByteBudget(360.0 * me.exchange_bytes)
    me.budget.refresh(0.0)
    me.budget.balance = exchanges * me.exchange_bytes
    return me.budget


def test_who_has_used_it_up_says_when_to_ask_again_and_is_not_asked_before() -> None:
    a, b, _ = pair()
    meter(b, 0.5)
    a.learn(MOVED)
    b.feed(a.said(ExchangeRequest))
    busy = b.said(ExchangeDeny)
    assert "budget" in busy.why
    assert busy.wait_s == 5.0
    a.feed(busy)
    a.sent.clear()
    a.feed(Timer(), 4.9)
    assert not a.sent
    assert a.gossip.me.convergence.blocked_until == 5.0
    a.feed(Timer(), 5.0)
    b.feed(a.said(ExchangeRequest), 5.0)
    assert isinstance(b.said(ExchangeGrant), ExchangeGrant)


def test_who_has_used_it_up_begins_nothing() -> None:
    a, _, _ = pair()
    meter(a, 0.5)
    a.learn(MOVED)
    assert not a.sent
    assert 5.0 <= a.gossip.me.convergence.blocked_until <= 15.0
    a.feed(Timer(), 20.0)
    assert isinstance(a.said(ExchangeRequest), ExchangeRequest)


def test_nobody_is_silenced_for_ever() -> None:
    a, _, _ = pair()
    a.learn(MOVED)
    a.feed(ExchangeDeny("b", a.said(ExchangeRequest).id, "never come back", 1e300))
    a.feed(Timer(), WAIT_MAX_S)
    assert isinstance(a.said(ExchangeRequest), ExchangeRequest)


def test_another_is_asked_meanwhile() -> None:
    a, _, _ = pair()
    a.feed(LivePeers(frozenset("abc")))
    a.learn(MOVED)
    to, first = a.sent[-1]
    a.feed(ExchangeDeny(to, first.id, "its budget of bytes is used up", 60.0))  # type: ignore[union-attr]
    a.sent.clear()
    a.feed(Timer(), 1.0)
    assert [other for other, _ in a.sent] == list({"b", "c"} - {to})


def test_an_exchange_that_has_begun_is_finished() -> None:
    a, b, _ = pair()
    slot = up_to_slot(a, b)
    for one in (a, b):
        meter(one, -1.0)
    a.feed(slot)
    b.feed(a.said(ExchangeOffer))
    a.feed(b.said(ExchangeAccept))
    assert isinstance(a.said(ExchangeCommit), ExchangeCommit)


def test_nothing_is_said_again_over_the_budget_but_when_leaving() -> None:
    a, b, _ = pair()
    a.feed(up_to_slot(a, b))
    swap = a.said(ExchangeOffer)
    b.feed(swap)
    b.sent.clear()  # its answer is lost
    meter(a, -1.0), meter(b, -1.0)
    a.feed(Timer(), 5.0)
    assert not a.sent, "its question would be answered by a model"
    b.feed(ExchangeQuery("a", swap.id), 5.0)
    assert not b.sent
    b.feed(StopGossip("leaving"), 5.0)
    a.feed(StopGossip("leaving"), 5.0)
    a.feed(Timer(), 12.0)
    b.feed(a.said(ExchangeQuery), 12.0)
    assert isinstance(b.said(ExchangeAccept), ExchangeAccept)


def test_by_the_clock_no_model_is_sent_again() -> None:
    """A short message confirms the step; a peer without the answer asks for it."""
    a, b, _ = pair()
    a.feed(up_to_slot(a, b))
    b.feed(a.said(ExchangeOffer))
    answer = b.said(ExchangeAccept)
    b.feed(Timer(), 10.0)
    taken = b.said(Received)
    a.feed(taken, 10.0)
    b.feed(a.said(ExchangeQuery), 10.0)
    assert b.said(ExchangeAccept) == answer
    a.feed(answer, 10.0)
    a.sent.clear()  # and that it is settled is lost
    b.feed(Timer(), 40.0)
    a.feed(b.said(Received), 40.0)
    b.feed(a.said(ExchangeCommit), 40.0)
    assert not b.gossip.mixer.is_busy


def test_a_stranger_to_the_exchange_has_no_say() -> None:
    a, b, _ = pair()
    a.feed(up_to_slot(a, b))
    swap = a.said(ExchangeOffer)
    a.feed(Received("c", swap.id))
    assert not a.sent
