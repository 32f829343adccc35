"""The semilattice of beliefs, how long a suspicion lasts, and what is told next."""

from math import log10

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.membership.dissemination import (
    INCARNATION_MAX,
    RANK,
    SUSPECTED_BY_MAX,
    Dissemination,
    fault_in,
    merge,
    precedence,
    suspicion_periods,
)
from shoal.core.protocol.peer_message import MemberUpdate

ACCUSERS = st.lists(st.sampled_from("abcdefg"), max_size=SUSPECTED_BY_MAX).map(tuple)
MEMBER_UPDATES = st.builds(MemberUpdate, st.just("x"), st.sampled_from(sorted(RANK)), st.integers(0, 3), ACCUSERS)
BELIEFS = MEMBER_UPDATES.map(lambda update: merge(update, update))
"""Updates as a table holds them: accusers sorted and unique, and only for suspects."""


@given(BELIEFS)
def test_what_is_known_already_changes_nothing(held: MemberUpdate) -> None:
    assert merge(held, held) == held


@given(MEMBER_UPDATES, MEMBER_UPDATES)
def test_the_order_of_two_updates_does_not_matter(a: MemberUpdate, b: MemberUpdate) -> None:
    held_a, held_b = merge(a, a), merge(b, b)
    assert merge(held_a, b) == merge(held_b, a) == merge(held_a, held_b)


@given(BELIEFS, BELIEFS, BELIEFS)
def test_nor_does_who_has_merged_what_before(a: MemberUpdate, b: MemberUpdate, c: MemberUpdate) -> None:
    assert merge(merge(a, b), c) == merge(a, merge(b, c))


@given(BELIEFS, MEMBER_UPDATES)
def test_beliefs_only_rise(held: MemberUpdate, heard: MemberUpdate) -> None:
    merged = merge(held, heard)
    assert precedence(merged) == max(precedence(held), precedence(heard))
    assert merge(merged, held) == merge(merged, heard) == merged
    assert fault_in(merged) == ""


@given(BELIEFS, MEMBER_UPDATES)
def test_accusers_are_those_of_this_suspicion(held: MemberUpdate, heard: MemberUpdate) -> None:
    merged = merge(held, heard)
    said = [r.suspected_by for r in (held, heard) if precedence(r) == precedence(merged) and merged.state == "suspect"]
    assert merged.suspected_by == tuple(sorted({name for names in said for name in names})[:SUSPECTED_BY_MAX])


def test_a_peer_answers_for_itself_by_a_higher_incarnation() -> None:
    worst = MemberUpdate("x", "left", 4)
    for state in RANK:
        assert merge(worst, MemberUpdate("x", state, 4)) == worst
    assert merge(worst, MemberUpdate("x", "alive", 5)).state == "alive"


@pytest.mark.parametrize(
    ("update", "why"),
    [
        (MemberUpdate("x", "ill", 1), "'ill' is not a state"),  # type: ignore[arg-type]
        (MemberUpdate("x", "alive", -1), "incarnation -1"),
        (MemberUpdate("x", "alive", INCARNATION_MAX + 1), "incarnation 9007199254740992"),
        (MemberUpdate("x", "suspect", 1, ("a",) * (SUSPECTED_BY_MAX + 1)), "5 peers suspect one"),
    ],
)
def test_what_nobody_can_have_said(update: MemberUpdate, why: str) -> None:
    assert why in fault_in(update)


def test_suspicions_shorten_with_the_logarithm_of_who_confirms_them() -> None:
    lasts = [suspicion_periods(100, accusers, 3.0, 4.0) for accusers in (1, 2, 3, 4, 5)]
    assert suspicion_periods(100, 0, 3.0, 4.0) == lasts[0]
    shortest = 3.0 * log10(100)
    assert lasts[0] == 4.0 * shortest
    assert lasts[1] == pytest.approx(2.5 * shortest)  # one of three: half of the way, as log 2 is half of log 4
    assert lasts[2] == pytest.approx(shortest * (4 - 3 * 0.7924812503605781))
    assert lasts[3] == lasts[4] == pytest.approx(shortest)


def test_few_peers_need_fewer_confirmations() -> None:
    assert [suspicion_periods(n, 1, 3.0, 4.0) for n in (1, 2, 3, 10)] == [3.0, 3.0, 12.0, 12.0]
    assert suspicion_periods(3, 2, 3.0, 4.0) == 3.0  # suspect, accuser, and the only other one


def test_told_least_goes_first_and_of_those_the_newest() -> None:
    news = Dissemination(4.0)
    for node in "abc":
        news.enqueue(node)
    assert news.pick(2, 9, ()) == ["c", "b"]
    assert news.pick(2, 9, ()) == ["a", "c"]
    assert news.pick(2, 9, {"b"}) == ["a", "c"]
    news.enqueue("c")
    assert news.pick(1, 9, ()) == ["c"]


def test_updates_are_told_so_many_times_and_no_more() -> None:
    for peers, times in ((1, 2), (9, 4), (99, 8), (999, 12)):
        news = Dissemination(4.0)
        news.enqueue("a")
        told = [news.pick(5, peers, ()) for _ in range(20)]
        assert told == [["a"]] * times + [[]] * (20 - times)


def test_news_of_others_is_dropped() -> None:
    news = Dissemination(4.0)
    news.enqueue("a")
    news.enqueue("b")
    news.retain({"b"})
    assert news.pick(5, 9, ()) == ["b"]
