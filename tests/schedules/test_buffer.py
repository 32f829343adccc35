"""A buffer of reports: its requests, its closing, and no waiting for the slowest."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.core.errors import InvalidJob
from shoal.core.scheduling.schedule import Ask, Close, View, Wait
from shoal.schedules.buffer import Buffer
from tests.schedules.views import make_view

NODES = ("a", "b", "c", "d")


def view(**given: Any) -> View:
    nothing: dict[str, Any] = {
        "now": 100.0,
        "version": 3,
        "opened_at": None,
        "population": 4,
        "members": NODES,
        "busy": {},
        "asked": frozenset(),
        "reports": (),
        "failed": frozenset(),
        "seconds": (),
        "seed": 7,
    }
    return make_view(**nothing | given)


def working(*nodes: str) -> dict[str, str]:
    return dict.fromkeys(nodes, "train")


def test_all_begin() -> None:
    assert Buffer(size=2).decide(view()) == [Ask(NODES, "train", "4 begin from version 3")]


def test_only_so_many_train_at_once() -> None:
    (ask,) = Buffer(size=2, concurrency=3).decide(view(busy=working("a")))
    assert isinstance(ask, Ask)
    assert len(ask.nodes) == 2
    assert "a" not in ask.nodes
    (wait,) = Buffer(size=2, concurrency=3).decide(view(busy=working("a", "b", "c"), opened_at=99.0))
    assert isinstance(wait, Wait)


def test_so_many_reports_make_a_version_and_the_others_train_on() -> None:
    busy = working("c", "d")
    assert Buffer(size=2).decide(view(busy=busy, reports=("b", "a"), opened_at=99.0)) == [Close("2 reports", keep=True)]
    given = {"asked": frozenset("ab"), "failed": frozenset("ab"), "opened_at": 99.0}
    (wait,) = Buffer(size=3).decide(view(busy=busy, reports=("b", "a"), **given))
    assert wait == Wait("2 of 3 reports", 699.0)


def test_who_has_reported_begins_again_at_once() -> None:
    """From a version that it has not seen, or, with nothing newer, from the same."""
    given = {"busy": working("a", "b"), "reports": ("d", "c"), "opened_at": 99.0}
    assert Buffer(size=3).decide(view(**given)) == [Ask(("c", "d"), "train", "2 begin from version 3")]
    (ask,) = Buffer(size=3).decide(view(**given, asked=frozenset("abd")))
    assert ask == Ask(("c",), "train", "1 begin from version 3")
    (ask,) = Buffer(size=3).decide(view(**given, asked=frozenset(NODES)))
    assert ask == Ask(("c", "d"), "train", "2 begin again from version 3")


def test_whoever_was_not_asked_yet_comes_first() -> None:
    given = {"reports": ("a",), "asked": frozenset("ab"), "opened_at": 99.0, "busy": working("b")}
    (ask,) = Buffer(size=3, concurrency=2).decide(view(**given))
    assert isinstance(ask, Ask)
    assert set(ask.nodes) < {"c", "d"}
    (wait,) = Buffer(size=3, concurrency=1).decide(view(**given))
    assert isinstance(wait, Wait), "there is no room"


def test_fewer_make_a_version_when_nobody_is_left_or_the_deadline_is_over() -> None:
    given = {"reports": ("a",), "asked": frozenset(NODES), "failed": frozenset("a"), "opened_at": 99.0}
    (close,) = Buffer(size=3).decide(view(**given))
    assert close == Close("1 of 3 reports: no node is left to wait for", keep=True)
    late = {**given, "busy": working("b"), "now": 800.0}
    (close,) = Buffer(size=3).decide(view(**late))
    assert close == Close("1 of 3 reports: the deadline of 600 s", keep=True)


def test_who_failed_is_asked_again_when_nobody_else_works() -> None:
    given = {"asked": frozenset(NODES), "failed": frozenset({"b"}), "opened_at": 99.0}
    assert Buffer(size=2).decide(view(**given)) == [Ask(("b",), "train", "1 are asked again")]
    (wait,) = Buffer(size=2).decide(view(**given, busy=working("a")))
    assert isinstance(wait, Wait)


def test_those_who_hang_do_not_keep_the_others_out() -> None:
    """One deadline without a report: as many more; twice that long: again as many."""
    given = {"busy": working("a"), "asked": frozenset("a"), "opened_at": 99.0}
    schedule = Buffer(size=2, concurrency=1, deadline_s=60.0)
    assert schedule.decide(view(**given)) == [Wait("no report of 2 yet", 159.0)]
    (ask,) = schedule.decide(view(**given, now=159.0))
    assert isinstance(ask, Ask)
    assert len(ask.nodes) == 1
    more = {"busy": working("a", "b"), "asked": frozenset("ab"), "opened_at": 99.0}
    assert schedule.decide(view(**more, now=159.0)) == [Wait("no report of 2 yet", 219.0)]
    (ask,) = schedule.decide(view(**more, now=219.0))
    assert isinstance(ask, Ask)
    assert len(ask.nodes) == 1


def test_ages_are_bounded() -> None:
    assert Buffer(staleness_max=5).accepts_staleness(5)
    assert not Buffer(staleness_max=5).accepts_staleness(6)


def test_it_waits_for_the_first_nodes() -> None:
    assert Buffer(min_nodes=5).decide(view(version=0)) == [Wait("4 of 5 nodes ready")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"concurrency": -1},
        {"staleness_max": -1},
        {"deadline_s": 0.0},
        {"min_nodes": 0},
    ],
    ids=str,
)
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match="buffer"):
        Buffer(**wrong)
