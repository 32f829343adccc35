"""Dynamic averaging's decisions, as tables of what the coordinator sees and what it does."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.core.errors import InvalidJob
from shoal.core.protocol.message import Metrics
from shoal.core.scheduling.schedule import Close, View
from shoal.schedules.divergence import PAUSE_S_MAX, SPAN, SPAN_MAX, STREAK_MAX, WINDOW_CHECKS, Divergence
from tests.schedules.views import FOUR, four, told


def view(reports: str = "", recalled: str = "", waiting: str = "", away: str = "", **more: Any) -> View:
    """Four nodes at work for version 3, with a threshold of 1."""
    return four(reports, recalled, waiting, away, **{"numbers": {"delta": 1.0}, **more})


def far() -> float:
    return 2.0


TABLE: dict[str, tuple[dict[str, Any], View, list[str]]] = {
    "all quiet": ({}, view(), ["wait"]),
    "too few have joined": (
        {"min_nodes": 5},
        view(version=0, asked=frozenset(), busy={}),
        ["wait"],
    ),
    "a newcomer": ({}, view(away="c"), ["ask c"]),
    "a newcomer in a balancing": ({}, view("a", away="c"), ["ask c"]),
    "all: whoever drifts": ({"balancing": "all"}, view("b"), ["recall acd"]),
    "all: however near the mean": ({"balancing": "all"}, view("ab"), ["recall cd"]),
    "all: all have answered": ({"balancing": "all"}, view("bdca", "acd"), ["close abcd rebase"]),
    "double: near": ({"balancing": "double"}, view("b"), ["close b keep"]),
    "double: two, near": ({"balancing": "double"}, view("db"), ["close bd keep"]),
    "double: far, as many again": ({"balancing": "double"}, view("b", divergence=far), ["recall c"]),
    "double: far, half are in": ({"balancing": "double"}, view("bd", divergence=far), ["recall ac"]),
    "double: asked and not answered": ({"balancing": "double"}, view("b", "c"), ["wait 160"]),
    "double: answered, near": ({"balancing": "double"}, view("bc", "c"), ["close bc keep"]),
    "double: answered, far": ({"balancing": "double"}, view("bc", "c", divergence=far), ["recall ad"]),
    "double: all answered, near": ({"balancing": "double"}, view("bcad", "cad"), ["close abcd rebase"]),
    "hedged: the first violations": ({"balancing": "hedged"}, view("b", numbers={"delta": 1.0}), ["close b keep"]),
    "hedged: the fourth violation": (
        {"balancing": "hedged"},
        view("b", numbers={"delta": 1.0, "violations": 3.0}),
        ["recall acd"],
    ),
    "late, near": ({"balancing": "double"}, view("b", "c", recalled_at=40.0), ["close b keep"]),
    "late, far": ({"balancing": "double"}, view("b", "c", recalled_at=40.0, divergence=far), ["recall d"]),
    "late, all were asked": ({}, view("b", "acd", recalled_at=40.0), ["close b rebase"]),
    "late, no node has answered": ({}, view("", "abcd", recalled_at=40.0), ["wait"]),
    "late, no node has answered, and one is new": (
        {"balancing": "double"},
        view("", "abc", recalled_at=40.0),
        ["recall d"],
    ),
    "who was asked is gone": (
        {"balancing": "double"},
        view("b", "c", members=("a", "b", "d"), busy={"a": "train", "d": "train"}),
        ["close b keep"],
    ),
    "no threshold yet: the window is over": (
        {"balancing": "double"},
        view("b", numbers={"report_after_checks": 8.0}),
        ["recall acd"],
    ),
    "in step: not all have made their check": ({"in_step": True}, view(waiting="ab"), ["wait"]),
    "in step: all have": ({"in_step": True}, view(waiting="abcd"), ["advance"]),
    "in step: one drifts, others are not there yet": ({"in_step": True}, view("b", waiting="a"), ["wait"]),
    "in step: one drifts": (
        {"in_step": True, "balancing": "double"},
        view("b", waiting="acd"),
        ["close b keep", "advance"],
    ),
    "in step: all are asked": ({"in_step": True}, view("b", waiting="acd"), ["recall acd"]),
    "the variance is another schedule's business": ({}, view(variance=lambda: 1.5), ["wait"]),
    "one has trained enough": ({}, view("b", finished=frozenset("b")), ["wait"]),
    "in step: one has trained enough": (
        {"in_step": True},
        view("b", waiting="acd", finished=frozenset("b")),
        ["advance"],
    ),
    "all have trained enough": ({}, view("abcd", finished=frozenset(FOUR)), ["close rebase last"]),
    "all that are left have": (
        {},
        view("ab", members=("a", "b"), busy={}, finished=frozenset("ab")),
        ["close rebase last"],
    ),
    "the last version: no violation": ({}, view(versions_left=0), ["recall abcd"]),
    "the last version: near is not enough": ({"balancing": "double"}, view("b", versions_left=1), ["recall acd"]),
    "double: a late answer, near": ({"balancing": "double"}, view("b", late=frozenset("b")), ["close b keep"]),
    "double: a late answer, far": (
        {"balancing": "double"},
        view("b", late=frozenset("b"), divergence=far),
        ["recall c"],
    ),
    "one rests": ({}, view(away="c", numbers={"delta": 1.0, "excluded_until.c": 130.0}), ["wait 130"]),
    "one has rested": ({}, view(away="c", numbers={"delta": 1.0, "excluded_until.c": 99.0}), ["ask c"]),
    "the fifth balancing in a row by one alone": (
        {"balancing": "double"},
        view("b", numbers={"delta": 1.0, "solo_streak.b": STREAK_MAX - 1.0}),
        ["close keep", "warn b"],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_is_decided(name: str) -> None:
    fields, seen, wanted = TABLE[name]
    assert told(Divergence(**fields).decide(seen)) == wanted


def test_who_came_first_is_no_matter() -> None:
    schedule = Divergence(balancing="double")
    assert schedule.decide(view("db")) == schedule.decide(view("bd"))
    assert schedule.decide(view("db", divergence=far)) == schedule.decide(view("bd", divergence=far))


AUTO = {"delta": 7.0, "auto.delta_min": 4.0, "auto.divergence_per_check": 2.0, "auto.span_checks": SPAN}
TWO_EACH = dict.fromkeys("abc", 2.0)

KEPT: dict[str, tuple[dict[str, Any], View, Close | None, Metrics]] = {
    "a number": ({"delta": 3.0}, view(), None, {"delta": 3.0}),
    "a first window": ({}, view(numbers={}), None, {"report_after_checks": float(WINDOW_CHECKS)}),
    "the median of the window": (
        {},
        view("abc", norms={"a": 1.0, "b": 3.0, "c": 2.0}, numbers={"report_after_checks": 8.0}),
        Close("", rebase=True),
        {"delta": 4.0, "auto.delta_min": 4.0, "auto.divergence_per_check": 4.0, "auto.span_checks": SPAN},
    ),
    "a window in which nobody moved": (
        {},
        view("ab", norms={"a": 0.0, "b": 0.0}, numbers={"report_after_checks": 8.0}),
        Close("", rebase=True),
        {"delta": 1e-12, "auto.delta_min": 1e-12, "auto.divergence_per_check": 0.0, "auto.span_checks": SPAN},
    ),
    "as fast as before: a longer span, and what happens in it": (
        {},
        view("abc", norms={"a": 1.0, "b": 3.0, "c": 2.0}, checks_since_task=TWO_EACH, numbers=AUTO),
        Close("", rebase=True),
        AUTO
        | {"delta": pytest.approx(2.0 * 1.1 * SPAN), "auto.divergence_per_check": 2.0, "auto.span_checks": 1.1 * SPAN},
    ),
    "faster: the shortest span": (
        {},
        view(
            "abc",
            norms={"a": 1.0, "b": 3.0, "c": 2.0},
            checks_since_task=TWO_EACH,
            numbers=AUTO | {"auto.divergence_per_check": 1.2},
        ),
        Close("", rebase=True),
        AUTO | {"delta": 2.0 * SPAN, "auto.divergence_per_check": 2.0, "auto.span_checks": SPAN},
    ),
    "slow: what the first window has shown": (
        {},
        view("abc", norms=dict.fromkeys("abc", 0.1), checks_since_task=TWO_EACH, numbers=AUTO),
        Close("", rebase=True),
        AUTO | {"delta": 4.0, "auto.divergence_per_check": pytest.approx(0.005), "auto.span_checks": 1.1 * SPAN},
    ),
    "a span has an end": (
        {},
        view(
            "abc",
            norms=dict.fromkeys("abc", 0.1),
            checks_since_task=TWO_EACH,
            numbers=AUTO | {"auto.span_checks": SPAN_MAX},
        ),
        Close("", rebase=True),
        AUTO | {"delta": 4.0, "auto.divergence_per_check": pytest.approx(0.005), "auto.span_checks": SPAN_MAX},
    ),
    "those who train no more tell nothing": (
        {},
        view(
            "abc",
            norms={"a": 0.0, "b": 0.0, "c": 2.0},
            checks_since_task=TWO_EACH,
            numbers=AUTO,
            finished=frozenset("ab"),
        ),
        Close("", rebase=True),
        AUTO
        | {"delta": pytest.approx(2.0 * 1.1 * SPAN), "auto.divergence_per_check": 2.0, "auto.span_checks": 1.1 * SPAN},
    ),
    "a balancing tells nothing of all": (
        {},
        view("abc", norms={"a": 1.0, "b": 3.0, "c": 2.0}, checks_since_task=TWO_EACH, numbers=AUTO),
        Close("", keep=True),
        AUTO | {"violations": 3.0},
    ),
    "relative": ({"delta": 0.01, "relative": True}, view(reference_size=lambda: 50.0), None, {"delta": 0.5}),
    "relative, anew": (
        {"delta": 0.01, "relative": True},
        view("ab", reference_size=lambda: 80.0),
        Close("", rebase=True),
        {"delta": 0.8},
    ),
    "violations are counted": (
        {"delta": 1.0},
        view("abc", "c", numbers={"delta": 1.0, "violations": 1.0}),
        Close("", keep=True),
        {"delta": 1.0, "violations": 3.0},
    ),
    "a late answer is none": (
        {"delta": 1.0},
        view("abc", late=frozenset("bc"), numbers={"delta": 1.0}),
        Close("", keep=True),
        {"delta": 1.0, "violations": 1.0, "solo_streak.a": 1.0},
    ),
    "and forgotten": (
        {"delta": 1.0},
        view("abcd", "cd", numbers={"delta": 1.0, "violations": 3.0}),
        Close("", rebase=True),
        {"delta": 1.0},
    ),
    "too many bytes: 1.44 times as many as there should be": (
        {"delta": 1.0, "bytes_per_hour": 225_000.0},
        view("ab", bytes_transferred=900),
        Close("", rebase=True),
        {"delta": pytest.approx(1.2)},
    ),
    "far too many bytes": (
        {"delta": 1.0, "bytes_per_hour": 1.0},
        view("ab", bytes_transferred=900),
        Close("", rebase=True),
        {"delta": 2.0},
    ),
    "few bytes": (
        {"delta": 1.0, "bytes_per_hour": 1e12},
        view("ab", bytes_transferred=9),
        Close("", rebase=True),
        {"delta": 0.5},
    ),
    "a streak": (
        {"delta": 1.0},
        view("b", numbers={"delta": 1.0, "solo_streak.b": 1.0}),
        Close("", rebase=True),
        {"delta": 1.0, "solo_streak.b": 2.0},
    ),
    "another node's turn": (
        {"delta": 1.0},
        view("c", numbers={"delta": 1.0, "solo_streak.b": 4.0}),
        Close("", rebase=True),
        {"delta": 1.0, "solo_streak.c": 1.0},
    ),
    "a rest, twice as long as the version took": (
        {"delta": 1.0},
        view("b", numbers={"delta": 1.0, "solo_streak.b": 4.0}),
        Close("", rebase=True),
        {"delta": 1.0, "solo_streak.b": 5.0, "excluded_until.b": 120.0},
    ),
    "the longest rest": (
        {"delta": 1.0},
        view("b", numbers={"delta": 1.0, "solo_streak.b": 40.0}),
        Close("", rebase=True),
        {"delta": 1.0, "solo_streak.b": 41.0, "excluded_until.b": 100.0 + PAUSE_S_MAX},
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept(name: str) -> None:
    fields, seen, close, wanted = KEPT[name]
    kept = Divergence(**fields).numbers(seen, close)
    assert {name: value for name, value in kept.items() if not name.startswith("total.")} == wanted


@pytest.mark.parametrize(
    "fields",
    [
        {"delta": 0.0},
        {"delta": -1.0},
        {"delta": float("nan")},
        {"delta": float("inf")},
        {"relative": True},
        {"bytes_per_hour": -1.0},
        {"bytes_per_hour": float("nan")},
        {"deadline_s": 0.0},
        {"deadline_s": float("nan")},
        {"min_nodes": 0},
    ],
)
def test_bad_settings_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match=rf"divergence: .*{next(iter(fields))}"):
        Divergence(**fields)
