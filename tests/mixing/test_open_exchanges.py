"""The parts of the pairwise mixer by themselves: open exchanges, the search for a partner, and tokens."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import pytest

from shoal.core.gossip.byte_budget import ByteBudget
from shoal.core.gossip.gossip_state import GossipState, LivePeers
from shoal.core.mixing.exchange import InDoubt, PairExchange, Prepared
from shoal.core.mixing.exchange_pacing import ModelTokens
from shoal.core.mixing.final_averaging import FinalAveraging
from shoal.core.mixing.open_exchanges import OpenExchanges
from shoal.core.mixing.partner_search import PartnerSearch
from shoal.core.protocol.message import BlobRef
from shoal.mixing.pairwise import Pairwise
from shoal.sim.hosts.toy_models import toy_tree
from shoal.sim.network.blobs import MemoryBlobs

BLOB = BlobRef("0" * 64, 8)
OWN, THEIRS = ("a", 1, 4), ("b", 2, 7)
DOUBT = InDoubt("b", BLOB, 1.0, 2.0, 3.0)
STEP = Prepared(BLOB, 1.0, 0.5, {"b": 3})


def test_each_side_of_the_exchange_in_flight_is_known() -> None:
    exchanges = OpenExchanges(10.0)
    assert exchanges.is_empty
    exchanges.current = PairExchange(OWN, "b", 10.0, begun=0.0)
    assert (exchanges.is_own(OWN), exchanges.holds_slot(OWN), exchanges.partner_in(OWN)) == (True, False, "b")
    exchanges.current = PairExchange(THEIRS, "b", 10.0)
    assert (exchanges.is_own(THEIRS), exchanges.holds_slot(THEIRS)) == (False, True)
    assert exchanges.partner_in(THEIRS) == exchanges.partner_in(OWN) == ""
    assert not exchanges.is_empty


def test_queries_are_repeated_with_growing_pauses() -> None:
    exchanges = OpenExchanges(10.0)
    assert exchanges.query_at == inf
    exchanges.add_doubt(OWN, DOUBT, 0.0)
    times, now = [], 0.0
    while len(times) < 5:
        now = exchanges.query_at
        assert list(exchanges.due_queries(now)) == [OWN]
        assert list(exchanges.due_queries(now)) == []
        times.append(now)
    assert times == [10.0, 20.0, 40.0, 80.0, 140.0], "the pause doubles up to a minute"
    exchanges.postpone_query(OWN, 195.0)
    assert exchanges.query_at == 205.0
    exchanges.postpone_query(OWN, 190.0)
    assert exchanges.query_at == 205.0
    exchanges.forget(OWN)
    assert (exchanges.query_at, exchanges.is_empty) == (inf, True)


def test_a_step_is_taken_or_aborted_once() -> None:
    exchanges = OpenExchanges(10.0)
    assert not exchanges.has_ended(THEIRS)
    exchanges.prepare(THEIRS, STEP, 0.0)
    assert exchanges.has_ended(THEIRS)
    assert exchanges.has_ended(("b", 1, 99))
    later = ("b", 2, 8)
    assert not exchanges.has_ended(later)
    exchanges.current = PairExchange(later, "b", 10.0)
    exchanges.abort(later)
    assert exchanges.has_ended(later)
    assert exchanges.current is None
    exchanges.abort(THEIRS)
    assert exchanges.has_ended(later), "an old promise takes back no newer one"


def test_a_new_process_queries_what_was_open() -> None:
    exchanges, again = OpenExchanges(10.0), OpenExchanges(10.0)
    exchanges.add_doubt(OWN, DOUBT, 50.0)
    exchanges.prepare(THEIRS, STEP, 50.0)
    again.restore(exchanges.state())
    assert (again.in_doubt, again.prepared) == ({OWN: DOUBT}, {THEIRS: STEP})
    assert again.state() == exchanges.state()
    assert again.has_ended(THEIRS)
    assert list(again.due_queries(0.0)) == [OWN, THEIRS]
    assert again.blob_refs() == [BLOB, BLOB]


def test_a_model_that_may_be_given_away_whole_must_not_move() -> None:
    exchanges = OpenExchanges(10.0)
    exchanges.add_doubt(OWN, replace(DOUBT, kept_part=0.5), 0.0)
    assert not exchanges.gives_all
    exchanges.add_doubt(("a", 1, 5), replace(DOUBT, kept_part=0.0), 0.0)
    assert exchanges.gives_all


@pytest.mark.parametrize(("crossed", "closed", "may"), [(0, False, True), (1000, False, False), (1000, True, True)])
def test_messages_are_repeated_within_the_budget_or_while_leaving(crossed: int, closed: bool, may: bool) -> None:
    exchanges, budget = OpenExchanges(10.0), ByteBudget(3600.0)
    budget.charge(crossed)
    exchanges.is_closed = closed
    assert exchanges.may_repeat(budget) == may


def test_tokens_are_limited_and_come_with_local_rounds() -> None:
    tokens = ModelTokens(Pairwise(models_per_round=0.5, burst=1.0))
    assert not tokens.is_used_up
    tokens.spend()
    assert tokens.is_used_up
    tokens.refill()
    assert tokens.is_used_up, "half a token"
    for _ in range(9):
        tokens.refill()
    tokens.spend()
    assert tokens.is_used_up, "no more than one can be saved up"


class Search:
    """A search among b and c."""

    def __init__(self, **policy: float) -> None:
        one = Pairwise(**policy)  # type: ignore[arg-type]
        model = {"model": toy_tree((1.0, 2.0, 3.0), 0)}
        self.me = GossipState("a", 1, 1.0, model, MemoryBlobs(), Random(1), peers=LivePeers(frozenset("bc")))
        self.exchanges, self.tokens = OpenExchanges(10.0), ModelTokens(one)
        self.search = PartnerSearch(one, self.exchanges, FinalAveraging(10.0), self.tokens)

    def next(self, now: float) -> str:
        """Return the next partner."""
        return self.search.next_partner(self.me, now)


def test_partners_are_called_in_turns_only() -> None:
    one = Search(partners_asked_max=2)
    assert one.next(0.0) == ""
    one.search.begin_turn(one.me, 1.0)
    assert one.search.next_try == 1.0
    assert {one.next(1.0), one.next(1.0)} <= {"b", "c"}
    assert one.next(1.0) == "", "two attempts in a turn"
    one.search.begin_turn(one.me, 2.0)
    one.search.end_turn()
    assert (one.next(2.0), one.search.next_try) == ("", inf)


def test_busy_silent_and_doubtful_partners_are_spared() -> None:
    one = Search()
    one.search.begin_turn(one.me, 0.0)
    one.search.defer("b", 5.0, 0.0)
    assert one.next(0.0) == "c"
    one.search.defer("c", 9.0, 0.0)
    assert (one.next(0.0), one.search.next_try) == ("", 5.0), "b is free first"
    one.search.reachability.record_miss("c", 10.0)
    assert {one.next(10.0) for _ in range(2)} == {"b"}
    one.exchanges.add_doubt(OWN, DOUBT, 0.0)
    assert one.next(30.0) == "c"


def test_another_attempt_follows_an_exchange_that_came_to_nothing() -> None:
    one = Search(partners_asked_max=2)
    one.search.begin_turn(one.me, 0.0)
    assert one.next(0.0)
    one.exchanges.current = PairExchange(OWN, "b", 10.0, begun=0.0)
    one.search.end_exchange(one.me, 1.0)
    assert one.exchanges.is_empty
    assert 1.0 < one.search.next_try < 1.5
    one.search.begin_turn(one.me, 2.0)
    one.search.succeed()
    one.search.next_try = inf
    one.search.end_exchange(one.me, 3.0)
    assert one.search.next_try == inf, "one exchange in a turn is enough"


def test_nothing_is_called_without_tokens() -> None:
    one = Search(burst=1.0)
    one.search.begin_turn(one.me, 0.0)
    one.tokens.spend()
    assert one.next(0.0) == ""
