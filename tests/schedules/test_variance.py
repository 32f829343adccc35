"""Functional dynamic averaging's decisions, as tables of what the coordinator sees and what it does."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.core.errors import InvalidJob
from shoal.core.protocol.message import Metrics
from shoal.core.scheduling.schedule import FULL, Close, View
from shoal.schedules.variance import WINDOW_CHECKS, Variance
from tests.schedules.views import FOUR, four, told


def view(reports: str = "", recalled: str = "", waiting: str = "", away: str = "", **more: Any) -> View:
    """Four nodes at work, with a threshold of 1 and at most 20 checks."""
    pieces = dict.fromkeys(reports, 5.0)
    return four(
        reports,
        recalled,
        waiting,
        away,
        **{"numbers": {"theta": 1.0, "report_after_checks": 20.0}, "checks_since_task": pieces, **more},
    )


def timely(reports: str, *rest: str, **more: Any) -> View:
    """The same, where those who report have made 20 checks."""
    return view(reports, *rest, checks_since_task=dict.fromkeys(reports, 20.0), **more)


TABLE: dict[str, tuple[dict[str, Any], View, list[str]]] = {
    "all quiet": ({}, view(), ["wait"]),
    "too few have joined": ({"min_nodes": 5}, view(version=0, asked=frozenset(), busy={}), ["wait"]),
    "a newcomer": ({}, view(away="c"), ["ask c"]),
    "the variance is too great": ({}, view(variance=lambda: 1.5), ["recall abcd"]),
    "the variance is not": ({}, view(variance=lambda: 1.0), ["wait"]),
    "no threshold yet, however great": (
        {},
        view(variance=lambda: 99.0, numbers={"report_after_checks": 4.0}),
        ["wait"],
    ),
    "not all have told": ({}, view(variance=lambda: None), ["wait"]),
    "it is time": ({}, timely("b"), ["recall acd"]),
    "it is time, and a newcomer": ({}, timely("b", away="c"), ["ask c"]),
    "speaks before it is time": ({}, view("b"), ["wait"]),
    "speaks though nobody ever may": ({}, timely("b", numbers={"theta": 1.0}), ["wait"]),
    "all have spoken before it is time": ({}, view("abcd"), ["close abcd rebase"]),
    "asked and not answered": ({}, view("b", "abcd"), ["wait 160"]),
    "all have answered": ({}, view("bdca", "abcd"), ["close abcd rebase"]),
    "late": ({}, view("bd", "abcd", recalled_at=40.0), ["close bd rebase"]),
    "late, no node has answered": ({}, view("", "abcd", recalled_at=40.0), ["wait"]),
    "one came while others were asked": ({}, view("bcd", "bcd"), ["recall a"]),
    "in step: not all have made their check": ({"in_step": True}, view(waiting="ab", variance=lambda: 9.0), ["wait"]),
    "in step: all have": ({"in_step": True}, view(waiting="abcd", variance=lambda: 0.5), ["advance"]),
    "in step: too great": ({"in_step": True}, view(waiting="abcd", variance=lambda: 1.5), ["recall abcd"]),
    "in step: it is time for one": ({"in_step": True}, timely("b", "", "a"), ["wait"]),
    "one has trained enough": ({}, timely("b", finished=frozenset("b")), ["wait"]),
    "all have trained enough": ({}, view("abcd", finished=frozenset(FOUR)), ["close rebase last"]),
    "the last version": ({}, view(versions_left=0), ["recall abcd"]),
    "the last version: one has spoken": ({}, view("b", versions_left=1), ["recall acd"]),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_is_decided(name: str) -> None:
    fields, seen, wanted = TABLE[name]
    assert told(Variance(**fields).decide(seen)) == wanted


REBASE = Close("", rebase=True)
KEPT: dict[str, tuple[dict[str, Any], View, Close | None, Metrics]] = {
    "a number": ({"theta": 3.0}, view(), None, {"theta": 3.0}),
    "a number stays": ({"theta": 3.0}, view("abcd"), REBASE, {"theta": 3.0}),
    "a first window": ({}, view(numbers={}), None, {"report_after_checks": float(WINDOW_CHECKS)}),
    "a first window of at most E": ({"checks_max": 2}, view(numbers={}), None, {"report_after_checks": 2.0}),
    # norms of 2 and a mean of squared norm 0.5: the variance is 3.5, after 5 checks.
    "FDA-Opt: E / 2 / n of the variance found": (
        {},
        view("abcd"),
        REBASE,
        {"theta": 20 / 2 / 5 * 3.5, "report_after_checks": 20.0},
    ),
    "more often": ({"checks_max": 8}, view("abcd"), REBASE, {"theta": 8 / 2 / 5 * 3.5, "report_after_checks": 8.0}),
    "after the longest span": ({}, timely("abcd"), REBASE, {"theta": 20 / 2 / 20 * 3.5, "report_after_checks": 20.0}),
    "a node alone": ({}, view("a", divergence=lambda: 4.0), REBASE, {"report_after_checks": 20.0}),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept(name: str) -> None:
    fields, seen, close, wanted = KEPT[name]
    kept = Variance(**fields).numbers(seen, close)
    assert {name: value for name, value in kept.items() if name != FULL} == wanted


def test_synchronizations_are_counted() -> None:
    schedule, seen = Variance(), view("abcd")
    assert schedule.numbers(seen, None)[FULL] == 0
    assert schedule.numbers(view("abcd", numbers={FULL: 6.0}), REBASE)[FULL] == 7


@pytest.mark.parametrize(
    "fields",
    [
        {"theta": 0.0},
        {"theta": -1.0},
        {"theta": float("nan")},
        {"theta": float("inf")},
        {"checks_max": 0},
        {"deadline_s": 0.0},
        {"deadline_s": float("nan")},
        {"min_nodes": 0},
    ],
)
def test_bad_settings_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match=rf"variance: .*{next(iter(fields))}"):
        Variance(**fields)
