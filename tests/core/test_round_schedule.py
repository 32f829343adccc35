"""Decisions of the schedule, and every reason that it gives."""

from typing import ClassVar

import pytest

from shoal.core.errors import InvalidJob
from shoal.core.scheduling.schedule import Ask, Close, Schedule, View, Wait
from shoal.core.scheduling.selection import Candidate
from shoal.schedules.rounds import Rounds
from shoal.selection.power_of_choice import PowerOfChoice
from tests.schedules.views import change, make_view

FOUR = ("a", "b", "c", "d")
NONE = frozenset[str]()


def view(**what) -> View:
    """Version 2 of a job with four idle members, at 100 s, not opened yet; lists become what the view wants."""
    known = {
        "now": 100.0,
        "version": 2,
        "opened_at": None,
        "population": 4,
        "members": FOUR,
        "busy": {},
        "asked": NONE,
        "reports": (),
        "failed": NONE,
        "seconds": (4.0,),
        "seed": 7,
    }
    busy = dict.fromkeys(what.pop("busy", ()), "train")
    asked = frozenset({*busy, *what.get("reports", ()), *what.get("failed", ()), *what.pop("gone", ())})
    return make_view(**{**known, "busy": busy, "asked": asked, **what, "failed": frozenset(what.get("failed", ()))})


def told(schedule: Schedule, seen: View) -> str:
    """Decisions in a line: what, whom, why."""
    parts = []
    for decision in schedule.decide(seen):
        if isinstance(decision, Ask):
            assert decision.kind == "train"
            parts.append(f"ask {' '.join(decision.nodes)}: {decision.why}")
        elif isinstance(decision, Close):
            parts.append(f"close: {decision.why}")
        else:
            assert isinstance(decision, Wait)
            until = "" if decision.until is None else f" until {decision.until:g}"
            parts.append(f"wait{until}: {decision.why}")
    return "; ".join(parts)


ALL = Rounds(deadline_s=10.0)
HALF = Rounds(fraction=0.5, deadline_s=10.0)
OVER = Rounds(cohort=2, over_select=1, deadline_s=10.0)
QUORUM = Rounds(quorum=2, deadline_s=10.0)


@pytest.mark.parametrize(
    ("schedule", "seen", "decided"),
    [
        # Opening
        (Rounds(min_nodes=5), view(), "wait: 4 of 5 nodes ready"),
        (Rounds(quorum=5), view(), "wait: 4 of 5 nodes ready"),
        (ALL, view(members=()), "wait: 0 of 1 node ready"),
        (Rounds(min_nodes=4), view(), "ask a b c d: round 3 opens with 4 of 4 nodes"),
        (ALL, view(), "ask a b c d: round 3 opens with 4 of 4 nodes"),
        (HALF, view(), "ask b c: round 3 opens with 2 of 4 nodes, drawn at random"),
        (OVER, view(), "ask a b c: round 3 opens with 2 + 1 over of 4 nodes, drawn at random"),
        (Rounds(cohort=3, over_select=5), view(), "ask a b c d: round 3 opens with 3 + 1 over of 4 nodes"),
        (Rounds(cohort=9), view(), "ask a b c d: round 3 opens with 4 of 4 nodes"),
        # In time
        (ALL, view(opened_at=99.0, busy=FOUR), "wait until 109: 0 of 4 reports"),
        (ALL, view(opened_at=99.0, busy="cd", reports=("a", "b")), "wait until 109: 2 of 4 reports"),
        (ALL, view(opened_at=99.0, reports=FOUR), "close: 4 of 4 reports"),
        (OVER, view(opened_at=99.0, busy="b", reports=("c", "a")), "close: 2 of 2 reports"),
        # Missing nodes
        (
            HALF,
            view(opened_at=99.0, busy="a", members=("a", "b", "c"), gone="d"),
            "ask b: 1 of 2 lost: 1 asked in their place, drawn at random",
        ),
        (HALF, view(opened_at=99.0, members=("b", "c"), gone="ad"), "ask b c: 2 of 2 lost: 2 asked in their place"),
        (HALF, view(opened_at=99.0, members=("b",), gone="ad"), "ask b: 2 of 2 lost: 1 asked in their place"),
        (
            HALF,
            view(opened_at=99.0, busy="a", failed="b"),
            "ask c: 1 of 2 lost: 1 asked in their place, drawn at random",
        ),
        (
            ALL,
            view(opened_at=99.0, reports=("a",), members="a", gone="bcd"),
            "close: 1 of 4: no node is left to wait for",
        ),
        (ALL, view(opened_at=99.0, reports=("a", "d"), failed="bc"), "close: 2 of 4: no node is left to wait for"),
        (
            ALL,
            view(opened_at=99.0, reports=("a",), failed="bcd"),
            "ask b c d: 1 of 4, below the quorum of 2: ask 3 again",
        ),
        (  # those that are set aside are there, and may not be asked
            ALL,
            view(opened_at=99.0, reports=("a",), failed="bcd", members="a", present=4),
            "wait until 109: below the quorum: 1 of 2",
        ),
        (ALL, view(members="a", present=3), "wait: 1 of 2 nodes ready"),
        (HALF, view(members="a", present=3), "wait: 1 of 2 nodes ready"),
        (Rounds(fraction=0.1), view(members="a", present=9), "ask a: round 3 opens with 1 of 1 nodes"),
        (QUORUM, view(opened_at=99.0, busy="b", reports=("a",), failed="cd"), "wait until 109: 1 of 4 reports"),
        (
            QUORUM,
            view(opened_at=99.0, reports=("a",), failed="cd", gone="b"),
            "ask c d: 1 of 4, below the quorum of 2: ask 2 again",
        ),
        (
            QUORUM,
            view(opened_at=99.0, reports=("a",), members=("a",), gone="bcd"),
            "wait until 109: below the quorum: 1 of 2",
        ),
        # Late
        (ALL, view(opened_at=90.0, busy="cd", reports=("a", "b")), "close: deadline of 10 s with 2 of 4"),
        (
            ALL,
            view(opened_at=90.0, busy="bcd", reports=("a",)),
            "wait until 110: below the quorum: 1 of 2, deadline extended",
        ),
        (  # the median of the last rounds, not to the millisecond
            Rounds(),
            view(opened_at=80.0, busy="cd", reports=("a", "b"), seconds=(6.08493,)),
            "close: deadline of 18.3 s with 2 of 4",
        ),
        (ALL, view(opened_at=90.1, busy="bcd", reports=("a",)), "wait until 100.1: 1 of 4 reports"),
        (
            QUORUM,
            view(opened_at=90.0, busy="bcd", reports=("a",)),
            "wait until 110: below the quorum: 1 of 2, deadline extended",
        ),
        (
            QUORUM,
            view(opened_at=71.0, busy="bcd", reports=("a",)),
            "wait until 111: below the quorum: 1 of 2, deadline extended",
        ),
        (
            QUORUM,
            view(opened_at=90.0, busy="bc", reports=("a",), failed="d"),
            "ask d: 1 of 4, below the quorum of 2: ask 1 again",
        ),
        # Late, and some have not been asked yet
        (HALF, view(opened_at=99.0, busy="ab"), "wait until 109: 0 of 2 reports"),
        (HALF, view(opened_at=90.0, busy="ab"), "ask c d: deadline of 10 s with 0 of 2: 2 asked in their place"),
        (HALF, view(opened_at=90.0, busy="abc"), "ask d: deadline of 10 s with 0 of 2: 1 asked in their place"),
        (HALF, view(opened_at=90.0, busy=FOUR), "wait until 110: below the quorum: 0 of 2, deadline extended"),
        (Rounds(cohort=1, deadline_s=10.0), view(opened_at=95.0, busy="a"), "wait until 105: 0 of 1 report"),
        (
            Rounds(cohort=1, deadline_s=10.0),
            view(opened_at=90.0, busy="a"),
            "ask b: deadline of 10 s with 0 of 1: 1 asked in their place, drawn at random",
        ),
        (
            Rounds(cohort=1, deadline_s=10.0),
            view(opened_at=90.0, busy="ab"),
            "wait until 110: below the quorum: 0 of 1, deadline extended",
        ),
        (
            Rounds(cohort=1, deadline_s=10.0),
            view(opened_at=80.0, busy="ab"),
            "ask c: deadline of 10 s with 0 of 1: 1 asked in their place, drawn at random",
        ),
    ],
)
def test_decisions(schedule: Rounds, seen: View, decided: str) -> None:
    assert told(schedule, seen) == decided


def test_the_cohort_is_drawn_anew_for_each_version_and_is_the_same_each_time() -> None:
    drawn = [told(HALF, view(version=version)) for version in range(20)]
    assert drawn == [told(HALF, view(version=version)) for version in range(20)]
    assert len({part.partition(":")[0] for part in drawn}) == 6  # all pairs of four
    assert told(HALF, view()) != told(HALF, view(seed=8))


@pytest.mark.parametrize(
    ("schedule", "population", "wanted"),
    [
        (Rounds(), 7, 7),
        (Rounds(fraction=0.1), 100, 10),
        (Rounds(fraction=0.1), 4, 1),
        (Rounds(fraction=0.5), 5, 2),
        (Rounds(fraction=0.1, quorum=3), 10, 3),
        (Rounds(cohort=3), 10, 3),
        (Rounds(cohort=3, fraction=0.1), 2, 2),
        (Rounds(), 0, 1),
    ],
)
def test_reports_that_a_round_wants(schedule: Rounds, population: int, wanted: int) -> None:
    assert schedule.wants(population) == wanted


@pytest.mark.parametrize(
    ("seconds", "deadline"),
    [((), 3600.0), ((1.0, 1.0, 1.0), 10.0), ((4.0, 100.0, 6.0), 18.0), ((2000.0,), 3600.0)],
)
def test_a_deadline_that_is_not_given_follows_from_the_last_rounds(seconds: tuple[float, ...], deadline: float) -> None:
    assert Rounds().deadline(view(seconds=seconds)) == deadline
    assert Rounds(deadline_s=5.0).deadline(view(seconds=seconds)) == 5.0


def test_no_deadline_rings_in_the_past_or_at_once() -> None:
    """Despite rounding: a wait until now would be a busy loop."""
    for schedule in (Rounds(quorum=2, deadline_s=s) for s in (0.001, 0.1, 0.7, 1 / 3, 7.3, 1e9)):
        for opened in (0.0, 0.1, 1e-9, 12345.678, 1e9 + 0.1):
            for passed in (0, 1, 2, 3, 7, 10_000):
                now = opened + passed * schedule.deadline_s
                seen = view(now=now, opened_at=opened, busy=FOUR)
                (decision,) = schedule.decide(seen)
                assert isinstance(decision, Wait)
                longest = 2 * max(1, passed) * schedule.deadline_s
                assert now < (decision.until or 0.0) <= opened + longest * (1 + 1e-9) + 1e-6
                (then,) = schedule.decide(change(seen, now=decision.until or 0.0, reports=("a", "b"), busy={}))
                assert isinstance(then, Close)


def test_only_the_present_version_counts() -> None:
    assert [Rounds().accepts_staleness(staleness) for staleness in range(3)] == [True, False, False]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"cohort": -1}, "must be at least 0"),
        ({"over_select": -1}, "must be at least 0"),
        ({"deadline_s": -1.0}, "must be in"),
        ({"deadline_s": float("nan")}, "must be in"),
        ({"deadline_s": float("inf")}, "must be in"),
        ({"deadline_s": 1e-9}, "less than 0.001"),
        ({"fraction": 0.0}, r"must be in \(0, 1\]"),
        ({"fraction": 1.1}, r"must be in \(0, 1\]"),
        ({"fraction": float("nan")}, r"must be in \(0, 1\]"),
        ({"quorum": -1}, "must be at least 0"),
        ({"min_nodes": 0}, "at least 1"),
        ({"cohort": 2, "quorum": 3}, "more than schedule.cohort, 2"),
    ],
)
def test_nonsense_is_refused(fields: dict[str, float], why: str) -> None:
    with pytest.raises(InvalidJob, match=why):
        Rounds(**fields)  # type: ignore[arg-type]


def test_a_schedule_must_decide() -> None:
    with pytest.raises(TypeError, match="does not implement decide"):
        Schedule().decide(view())
    assert Schedule().accepts_staleness(0)
    assert not Schedule().accepts_staleness(1)


# pow-d: candidates measure the newest model before some of them are asked
class Chosen:
    """Six nodes with losses, a selection whose candidates measure, and a round that wants two."""

    losses: ClassVar[dict[str, float]] = dict(zip("abcdef", (0.1, 0.9, 0.5, 0.7, 0.3, 0.2), strict=True))

    def view(self, **what) -> View:
        known = {"members": tuple(self.losses), "population": 6, "selection": PowerOfChoice(candidates=4, measure=True)}
        return view(candidate=lambda node: Candidate(node, loss=self.losses[node]), **known | what)

    def decide(self, **what) -> list:
        return Rounds(cohort=2, deadline_s=10.0).decide(self.view(**what))


def test_candidates_measure_first() -> None:
    (ask,) = Chosen().decide()
    assert (len(ask.nodes), ask.kind, ask.why) == (4, "evaluate", "round 3 opens: 4 candidates measure version 2")
    busy = {"busy": (), "opened_at": 99.0}
    (wait,) = Rounds(cohort=2, deadline_s=10.0).decide(change(Chosen().view(**busy), busy={"a": "evaluate"}))
    assert wait == Wait("1 candidates have not measured yet", 109.0)


def test_the_highest_of_those_who_have_measured_are_asked() -> None:
    (ask,) = Chosen().decide(opened_at=99.0, probed=frozenset("acef"))
    assert (ask.nodes, ask.kind) == (("c", "e"), "train")
    assert ask.why == "round 3 opens with 2 of 6 nodes, highest loss of 4 candidates (c 0.5, e 0.3)"


def test_who_has_not_measured_by_the_deadline_is_not_waited_for() -> None:
    late = change(Chosen().view(opened_at=90.0, probed=frozenset("aef")), busy={"c": "evaluate"})
    (ask,) = Rounds(cohort=2, deadline_s=10.0).decide(late)
    assert ask.nodes == ("e", "f")
    (none,) = Chosen().decide(opened_at=90.0)
    assert len(none.nodes) == 2, "nobody has: by what was known before"


def test_where_there_is_no_choice_nobody_measures() -> None:
    seen = Chosen().view(members=("a", "b"), population=2)
    (ask,) = Rounds(cohort=2, deadline_s=10.0).decide(seen)
    assert (ask.nodes, ask.kind) == (("a", "b"), "train")
