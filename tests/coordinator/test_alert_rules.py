"""When an operator is told, and when not: pure rules, looked at on a clock of the test's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal_coordinator.alerts.alert_rules import (
    CLEAR_S,
    HOLD_S,
    AlertLimits,
    AlertRules,
    Condition,
    JobCondition,
    Now,
    conditions,
)

LIMITS = AlertLimits(stalled_s=600.0, disk_bytes=1000)
WELL = JobCondition("digits", waited_s=5.0, usual_s=4.0)


def kinds(now: Now, *open_keys: tuple[str, str, str]) -> list[str]:
    return [found.kind for found in conditions(now, LIMITS, frozenset(open_keys))]  # type: ignore[arg-type]


def test_where_all_is_well_nobody_is_told() -> None:
    assert kinds(Now((WELL,), 10_000)) == []
    assert kinds(Now((), None)) == []


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ({"got": 1, "quorum": 3}, "quorum-missed", "1 of the 3"),
        ({"diverged": "eval/loss is NaN"}, "diverged", "NaN"),
        (
            {"set_aside": (("ada", "CUDA out of memory"), ("bob", "")), "waits_for": "1 of 3 nodes ready"},
            "nodes-set-aside",
            "is stalled: 1 of 3 nodes ready (last failure of ada: CUDA out of memory; bob: unknown); mend the cause",
        ),
        ({"set_aside": (("ada", 900 * "x"), ("bob", "y"))}, "nodes-set-aside", f"{300 * 'x'}; bob: y); mend the cause"),
        ({"foreign": (("ada", "2 tensors, not 7"),)}, "model-differs", "ada: 2 tensors, not 7"),
        ({"waited_s": 601.0}, "no-progress", "10 minutes"),
        ({"waited_s": 601.0, "usual_s": None}, "no-progress", "10 minutes"),
    ],
)
def test_what_is_wrong_with_a_job(wrong: dict[str, object], kind: str, words: str) -> None:
    (found,) = conditions(Now((replace(WELL, **wrong),), 10_000), LIMITS)  # type: ignore[arg-type]
    assert (found.kind, found.job) == (kind, "digits")
    assert words in found.text


def test_a_lost_node_is_one_alert_however_many_jobs_miss_it() -> None:
    jobs = tuple(replace(WELL, name=name, lost=("ada", "bob") if name != "c" else ("bob",)) for name in "abc")
    ada, bob = conditions(Now(jobs, 10_000), LIMITS)
    assert (ada.key, ada.jobs) == (("node-lost", "", "ada"), ("a", "b"))
    assert (bob.key, bob.jobs) == (("node-lost", "", "bob"), ("a", "b", "c"))
    assert "ada has fallen silent; 2 jobs go on without it" in ada.text
    assert conditions(Now((replace(WELL, lost=("ada",)),)), LIMITS)[0].text.endswith("job digits goes on without it")
    deserted = replace(WELL, lost=("ada",), is_deserted=True)
    assert conditions(Now((deserted,)), LIMITS)[0].text.endswith("; no other node can be asked for job digits")
    both = (deserted, replace(WELL, name="other", lost=("ada",)))
    assert conditions(Now(both), LIMITS)[0].text.endswith("; 2 jobs go on without it")
    stopped = replace(WELL, lost=("ada",), waits_for="1 of 2 nodes ready; silent: ada")
    (found,) = conditions(Now((stopped, replace(WELL, name="other", lost=("ada",)))), LIMITS)
    assert found.text == "ada has fallen silent; job digits is stalled: 1 of 2 nodes ready; silent: ada"


def test_a_job_whose_versions_take_long_is_waited_for() -> None:
    assert kinds(Now((replace(WELL, waited_s=3000.0, usual_s=400.0),))) == []
    assert kinds(Now((replace(WELL, waited_s=4001.0, usual_s=400.0),))) == ["no-progress"]


def test_the_disk_must_have_some_more_before_it_is_well_again() -> None:
    disk = ("disk-low", "", "")
    assert kinds(Now((), 999)) == ["disk-low"]
    assert kinds(Now((), 1000)) == []
    assert kinds(Now((), 1200), disk) == ["disk-low"]
    assert kinds(Now((), 1250), disk) == []


LOST, DISK = Condition("node-lost", "x", "digits", "ada"), Condition("disk-low", "x")


def test_an_alert_is_raised_once_and_cleared_once() -> None:
    alarms = AlertRules()
    assert alarms.update([LOST], 0.0) == ([LOST], [])
    assert alarms.update([LOST], 1.0) == ([], [])
    assert alarms.update([], 2.0) == ([], [])
    assert alarms.update([], 2.0 + CLEAR_S) == ([], [LOST.key])
    assert alarms.update([], 3.0 + CLEAR_S) == ([], [])
    assert alarms.update([LOST], 4.0 + CLEAR_S) == ([LOST], [])


def test_nothing_flaps() -> None:
    alarms, told = AlertRules(), 0
    for second in range(600):
        raised, cleared = alarms.update([LOST] if second % 20 < 10 else [], float(second))
        told += len(raised) + len(cleared)
    assert told == 1


def test_some_must_hold_for_a_while() -> None:
    alarms = AlertRules()
    assert alarms.update([DISK], 0.0) == ([], [])
    assert alarms.update([], 1.0) == ([], [])
    assert alarms.update([DISK], 2.0) == ([], []), "it has begun anew"
    assert alarms.update([DISK], 2.0 + HOLD_S["disk-low"]) == ([DISK], [])


def test_two_nodes_are_two_alerts() -> None:
    other = replace(LOST, node="bob")
    alarms = AlertRules()
    alarms.update([LOST], 0.0)
    assert alarms.update([LOST, other], 1.0) == ([other], [])


def test_a_process_that_starts_anew_does_not_tell_again() -> None:
    alarms = AlertRules({LOST.key})
    assert alarms.update([LOST], 0.0) == ([], [])
    alarms.update([], 1.0)
    assert alarms.update([], 1.0 + CLEAR_S) == ([], [LOST.key])
