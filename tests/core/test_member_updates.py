"""The semilattice of beliefs, how long a suspicion lasts, and what is told next."""

from math import log10

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.peer_message import Rumour
from shoal.core.rumours import ACCUSERS_MAX, INCARNATION_MAX, RANK, Retelling, merge, patience, rank, wrong_with

ACCUSERS = st.lists(st.sampled_from("abcdefg"), max_size=ACCUSERS_MAX).map(tuple)
RUMOURS = st.builds(Rumour, st.just("x"), st.sampled_from(sorted(RANK)), st.integers(0, 3), ACCUSERS)
BELIEFS = RUMOURS.map(lambda rumour: merge(rumour, rumour))
"""Rumours as they are held: the accusers sorted, each once, and none of one who is not a suspect."""


@given(BELIEFS)
def test_what_is_known_already_changes_nothing(held: Rumour) -> None:
    assert merge(held, held) == held


@given(RUMOURS, RUMOURS)
def test_the_order_of_two_rumours_does_not_matter(a: Rumour, b: Rumour) -> None:
    held_a, held_b = merge(a, a), merge(b, b)
    assert merge(held_a, b) == merge(held_b, a) == merge(held_a, held_b)


@given(BELIEFS, BELIEFS, BELIEFS)
def test_nor_does_who_has_merged_what_before(a: Rumour, b: Rumour, c: Rumour) -> None:
    assert merge(merge(a, b), c) == merge(a, merge(b, c))


@given(BELIEFS, RUMOURS)
def test_beliefs_only_rise(held: Rumour, heard: Rumour) -> None:
    merged = merge(held, heard)
    assert rank(merged) == max(rank(held), rank(heard))
    assert merge(merged, held) == merge(merged, heard) == merged
    assert wrong_with(merged) == ""


@given(BELIEFS, RUMOURS)
def test_accusers_are_those_of_this_suspicion(held: Rumour, heard: Rumour) -> None:
    merged = merge(held, heard)
    said = [r.accusers for r in (held, heard) if rank(r) == rank(merged) and merged.state == "suspect"]
    assert merged.accusers == tuple(sorted({name for names in said for name in names})[:ACCUSERS_MAX])


def test_a_peer_answers_for_itself_by_a_higher_incarnation() -> None:
    worst = Rumour("x", "left", 4)
    for state in RANK:
        assert merge(worst, Rumour("x", state, 4)) == worst
    assert merge(worst, Rumour("x", "alive", 5)).state == "alive"


@pytest.mark.parametrize(
    ("rumour", "why"),
    [
        (Rumour("x", "ill", 1), "'ill' is no state"),  # type: ignore[arg-type]
        (Rumour("x", "alive", -1), "incarnation -1"),
        (Rumour("x", "alive", INCARNATION_MAX + 1), "incarnation 9007199254740992"),
        (Rumour("x", "suspect", 1, ("a",) * (ACCUSERS_MAX + 1)), "5 accusers"),
    ],
)
def test_what_nobody_can_have_said(rumour: Rumour, why: str) -> None:
    assert why in wrong_with(rumour)


def test_suspicions_shorten_with_the_logarithm_of_who_confirms_them() -> None:
    lasts = [patience(100, accusers, 3.0, 4.0) for accusers in (1, 2, 3, 4, 5)]
    assert patience(100, 0, 3.0, 4.0) == lasts[0]
    shortest = 3.0 * log10(100)
    assert lasts[0] == 4.0 * shortest
    assert lasts[1] == pytest.approx(2.5 * shortest)  # one of three: half of the way, as log 2 is half of log 4
    assert lasts[2] == pytest.approx(shortest * (4 - 3 * 0.7924812503605781))
    assert lasts[3] == lasts[4] == pytest.approx(shortest)


def test_few_peers_need_fewer_confirmations() -> None:
    assert [patience(n, 1, 3.0, 4.0) for n in (1, 2, 3, 10)] == [3.0, 3.0, 12.0, 12.0]
    assert patience(3, 2, 3.0, 4.0) == 3.0  # suspect, accuser, and the only other one


def test_told_least_goes_first_and_of_those_the_newest() -> None:
    news = Retelling(4.0)
    for node in "abc":
        news.fresh(node)
    assert news.pick(2, 9, ()) == ["c", "b"]
    assert news.pick(2, 9, ()) == ["a", "c"]
    assert news.pick(2, 9, {"b"}) == ["a", "c"]
    news.fresh("c")
    assert news.pick(1, 9, ()) == ["c"]


def test_rumours_are_told_so_many_times_and_no_more() -> None:
    for peers, times in ((1, 2), (9, 4), (99, 8), (999, 12)):
        news = Retelling(4.0)
        news.fresh("a")
        told = [news.pick(5, peers, ()) for _ in range(20)]
        assert told == [["a"]] * times + [[]] * (20 - times)


def test_news_of_others_is_dropped() -> None:
    news = Retelling(4.0)
    news.fresh("a")
    news.fresh("b")
    news.keep({"b"})
    assert news.pick(5, 9, ()) == ["b"]
