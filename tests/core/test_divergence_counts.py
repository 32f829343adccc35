"""Counters of dynamic averaging for users, and the nodes that it sets aside."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.core.protocol.message import Metrics
from shoal.core.scheduling.schedule import FULL, VIOLATIONS, Close, View
from shoal.schedules.divergence import STREAK_MAX, Divergence
from tests.schedules.views import make_view

CREW = ("a", "b", "c")
FULLY, PARTLY = Close("full", CREW, rebase=True), Close("balanced", ("a", "b"), keep=True)


def view(numbers: Metrics, **changes: Any) -> View:
    plain: dict[str, Any] = {
        "now": 10.0,
        "version": 3,
        "opened_at": 8.0,
        "population": 3,
        "members": CREW,
        "busy": {},
        "asked": frozenset(CREW),
        "reports": ("a", "b"),
        "failed": frozenset(),
        "seconds": (),
        "seed": 0,
        "numbers": numbers,
    }
    return make_view(**plain | changes)


@pytest.mark.parametrize(("close", "full"), [(FULLY, 1), (PARTLY, 0)])
def test_violations_and_full_synchronizations_are_counted(close: Close, full: int) -> None:
    drift = Divergence(delta=0.5)
    begun = drift.numbers(view({}), None)
    assert (begun[VIOLATIONS], begun[FULL]) == (0, 0)
    first = drift.numbers(view(begun, recalled=frozenset("b")), close)  # b was asked, so only a has violated
    assert (first[VIOLATIONS], first[FULL]) == (1, full)
    second = drift.numbers(view(first), close)
    assert (second[VIOLATIONS], second[FULL]) == (3, 2 * full)


def test_reports_of_the_first_window_and_of_those_who_are_done_violate_nothing() -> None:
    measured = Divergence().numbers(view(Divergence().numbers(view({}), None), norms={"a": 0.5, "b": 1.0}), FULLY)
    assert (measured[VIOLATIONS], measured[FULL]) == (0, 1)
    later = Divergence().numbers(view(measured, finished=frozenset("a"), norms={"a": 0.0, "b": 1.0}), FULLY)
    assert later[VIOLATIONS] == 1


def test_a_node_rests_until_its_time() -> None:
    drift, alone = Divergence(delta=0.5), {"reports": CREW, "recalled": frozenset("bc")}
    numbers = drift.numbers(view({}), None)
    for _ in range(STREAK_MAX):
        assert not drift.is_backed_off(numbers, "a", 10.0)
        numbers = drift.numbers(view(numbers, **alone), FULLY)
    assert drift.is_backed_off(numbers, "a", 10.0)  # it was open for 2 s, so it rests for 4
    assert drift.is_backed_off(numbers, "a", 13.9)
    assert not drift.is_backed_off(numbers, "a", 14.0)
    assert not drift.is_backed_off(numbers, "b", 10.0)
