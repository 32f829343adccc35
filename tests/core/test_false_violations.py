"""A node that reports false violations."""

from __future__ import annotations

import pytest

from shoal.core.scheduling.schedule import Advance, Close, Recall, View, Warn
from shoal.schedules.divergence import FALSE_ALARM, STREAK_MAX, Divergence
from tests.schedules.views import change, make_view

NODES = ("a", "b", "c")


def spoken(norm: float, *, streak: float = 0.0) -> View:
    """Node a has reported an update of that norm; delta is 1."""
    numbers = {"delta": 1.0, **({"solo_streak.a": streak} if streak else {})}
    return make_view(
        now=100.0,
        version=3,
        opened_at=90.0,
        population=3,
        members=NODES,
        busy={"b": "train", "c": "train"},
        asked=frozenset(NODES),
        reports=("a",),
        failed=frozenset(),
        seconds=(),
        seed=0,
        norms={"a": norm},
        numbers=numbers,
        divergence=lambda: norm**2,
    )


@pytest.mark.parametrize("balancing", ["all", "double", "hedged"])
def test_others_are_not_bothered(balancing: str) -> None:
    close, warning = Divergence(delta=1.0, balancing=balancing).decide(spoken(0.1))  # type: ignore[arg-type]
    assert isinstance(close, Close)
    assert (close.to, close.keep, close.rebase) == (("a",), True, False)
    assert warning == Warn("a", "a reports false violations; if it goes on it is left out for a while")


@pytest.mark.parametrize("norm", [FALSE_ALARM**0.5 * 1.001, 1.1])
def test_one_that_may_be_right_is_believed(norm: float) -> None:
    (decision,) = Divergence(delta=1.0).decide(spoken(norm))
    assert isinstance(decision, Recall)
    assert decision.nodes == ("b", "c")


def test_one_that_goes_on_is_left_out() -> None:
    schedule, view = Divergence(delta=1.0), spoken(0.1, streak=STREAK_MAX - 1)
    close, *said = schedule.decide(view)
    assert isinstance(close, Close)
    assert [one.why for one in said if isinstance(one, Warn)][-1].endswith("it is left out for a while")
    assert len(said) == 2
    numbers = schedule.numbers(view, close)
    assert numbers["excluded_until.a"] > view.now
    after = change(view, reports=(), norms={}, numbers=numbers)
    assert not any("a" in getattr(decision, "nodes", ()) for decision in schedule.decide(after))


@pytest.mark.parametrize(("pieces", "rests"), [(1.0, True), (2.0, False)])
def test_only_one_that_speaks_at_its_first_check_has_to_rest(pieces: float, rests: bool) -> None:
    schedule = Divergence(delta=1.0)
    view = change(spoken(1.5, streak=STREAK_MAX - 1), busy={}, reports=NODES, recalled=frozenset({"b", "c"}))
    view = change(view, norms=dict.fromkeys(NODES, 1.5), checks_since_task={"a": pieces, "b": 1.0, "c": 1.0})
    close, *said = schedule.decide(view)
    assert isinstance(close, Close)
    assert close.rebase
    assert close.to == (("b", "c") if rests else NODES)
    assert bool(said) == rests
    assert ("excluded_until.a" in schedule.numbers(view, close)) == rests


def test_in_step_all_go_on_together() -> None:
    view = change(spoken(0.1), waiting=frozenset({"b", "c"}))
    decisions = Divergence(delta=1.0, in_step=True).decide(view)
    assert isinstance(decisions[0], Close)
    assert decisions[-1] == Advance()
