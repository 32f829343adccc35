"""Exchanges in which masses move, by hand."""

from __future__ import annotations

import pytest

from shoal.core.gossip.gossip_state import LivePeers
from shoal.core.mixing.final_averaging import FREE
from shoal.core.mixing.pairwise_mixer import PairwiseMixer
from shoal.core.protocol.machine import Timer
from shoal.core.protocol.peer_message import (
    ExchangeAbort,
    ExchangeAccept,
    ExchangeDeny,
    ExchangeGrant,
    ExchangeOffer,
    ExchangeRequest,
)
from shoal.mixing.pairwise import Pairwise
from shoal.sim.hosts.toy_models import toy_tree
from shoal.sim.network.blobs import MemoryBlobs
from tests.mixing.test_pairwise import One, first

WEIGHTS = {"a": 1.0, "b": 3.0, "c": 4.0}


def rested(names: str) -> dict[str, One]:
    """Peers that have made their rounds, with models of 10, 20, …; all know that of all."""
    blobs, live = MemoryBlobs(), frozenset(names)
    peers = {name: One(name, WEIGHTS[name], blobs, Pairwise()) for name in names}
    for number, (name, one) in enumerate(peers.items(), 1):
        me = one.gossip.me
        me.counts.rounds, me.local_rounds, me.counts.rounds_done, me.counts.version_vector = 1, 1, True, {name: 1}
        me.mixed, me.counts.reported = toy_tree((10.0 * number, 0.0, 0.0), 0), dict.fromkeys(live - {name}, 1)
        one.live = live
    for one in peers.values():
        one.feed(LivePeers(live))
    return peers


def mass(one: One) -> float:
    mixer = one.gossip.mixer
    assert isinstance(mixer, PairwiseMixer)
    return one.weight if mixer.averaging.mass is None else mixer.averaging.mass


def up_to_swap(asks: One, other: One) -> ExchangeOffer:
    """The first has shown its model to the other, which has not seen it yet."""
    other.feed(asks.said(ExchangeRequest))
    asks.feed(other.said(ExchangeGrant))
    swap = asks.said(ExchangeOffer)
    assert isinstance(swap, ExchangeOffer)
    return swap


def test_two_models_become_one_and_the_masses_are_divided() -> None:
    peers = rested("ab")
    a, b = peers["a"], peers["b"]
    b.feed(up_to_swap(a, b))
    a.feed(b.said(ExchangeAccept))
    assert first(a) == first(b) == 17.5  # (1 * 10 + 3 * 20) / 4
    assert (mass(a), mass(b)) == (2.0, 2.0)
    assert a.gossip.me.convergence.consensus_with == b.gossip.me.convergence.consensus_with == {"a", "b"}


def test_a_step_that_is_taken_late_keeps_what_the_model_has_moved_meanwhile() -> None:
    """It weighed 1 when it was moved by 2, and weighs 2 now: the result is 1."""
    peers = rested("ab")
    a, b = peers["a"], peers["b"]
    b.feed(up_to_swap(a, b))
    a.gossip.me.mixed = toy_tree((12.0, 0.0, 0.0), 0)
    a.feed(b.said(ExchangeAccept))
    assert first(a) == 18.5
    assert mass(a) * first(a) + mass(b) * first(b) == 1 * 12 + 3 * 20


def test_who_may_have_given_all_away_meets_nobody_until_it_knows() -> None:
    peers = rested("abc")
    a, c = peers["a"], peers["c"]
    swap = up_to_swap(c, a)
    assert (swap.step, swap.weight) == (2, 4.0)
    for now in (11.0, 40.0):
        c.feed(Timer(), now)
        c.feed(ExchangeRequest("b", ("b", 1, int(now)), 20.0, 1, FREE), now)
        assert c.said(ExchangeDeny).why == "an exchange is in doubt"
        assert not [one for _, one in c.sent if isinstance(one, ExchangeRequest)]
    a.feed(Timer(), 40.0)
    a.feed(swap, 41.0)
    assert mass(a) == 1.0, "a has waited long enough"
    c.feed(a.said(ExchangeAbort), 41.0)
    c.feed(ExchangeRequest("b", ("b", 1, 42), 20.0, 1, FREE), 42.0)
    assert c.said(ExchangeGrant), "it has kept all"


@pytest.mark.parametrize("late", [False, True])
def test_who_gives_its_mass_gets_half_of_the_sum_back(late: bool) -> None:
    peers = rested("abc")
    a, b, c = peers["a"], peers["b"], peers["c"]
    a.feed(up_to_swap(c, a))
    assert (mass(a), mass(c)) == (5.0, 4.0)
    answer = a.said(ExchangeAccept)
    if not late:
        c.feed(answer)
        assert mass(c) == 0.0
    a.feed(Timer(), 1.0)
    b.feed(up_to_swap(a, b), 1.0)
    a.feed(b.said(ExchangeAccept), 1.0)
    assert (mass(a), mass(b), first(a)) == (4.0, 4.0, 23.75)  # (1 * 10 + 3 * 20 + 4 * 30) / 8
