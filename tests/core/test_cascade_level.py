"""A level of a cascade: late answers, nonsense from above, refusals and limits."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.exits.cascade_level import (
    Answered,
    CascadeAnswer,
    CascadeLevel,
    CascadeRequest,
    ComputeFailed,
    ComputeScores,
    Escalate,
    EscalationAnswered,
    EscalationFailed,
    LevelCounts,
    RequestRefused,
    Scored,
)
from shoal.core.exits.packed_bits import PackedFeatures
from shoal.core.protocol.machine import Timer, Wake

SCORES = np.array([[9.0, 0.0], [0.1, 0.0], [0.0, 0.1]])
"""The scores of three examples; the first is sure."""
FEATURES = PackedFeatures((8,), (np.array([[1], [2], [3]], np.uint8), None))


def above(*exits: int) -> CascadeAnswer:
    """An answer of the level above: class 1 for all."""
    return CascadeAnswer(np.ones(len(exits), np.int64), np.array(exits), np.zeros(len(exits), np.bool_))


def escalated() -> CascadeLevel:
    """A level that has sent two of three examples up, at time 10."""
    level = CascadeLevel(0, 3, 0.5, timeout_s=2)
    assert level.on(CascadeRequest("a", "inputs"), 10) == [ComputeScores("a", "inputs")]
    sent, wake = level.on(Scored("a", SCORES, FEATURES), 10)
    assert isinstance(sent, Escalate)
    assert sent.features.parts[0] is not None
    assert sent.features.parts[0].tolist() == [[2], [3]]
    assert wake == Wake(12)
    return level


def answer_of(effects: list[object]) -> tuple[list[int], list[int], list[bool]]:
    """The only effect, an answer."""
    (found,) = effects
    assert isinstance(found, Answered)
    classes, exits, degraded = found.answer
    return classes.tolist(), exits.tolist(), degraded.tolist()


def test_an_answer_from_above_is_merged_once() -> None:
    level = escalated()
    assert level.on(CascadeRequest("a", "inputs"), 10.5) == []
    assert level.on(Scored("a", SCORES, FEATURES), 10.5) == []
    assert answer_of([*level.on(EscalationAnswered("a", above(2, 1)), 11)]) == ([0, 1, 1], [0, 2, 1], [False] * 3)
    for late in (EscalationAnswered("a", above(2, 1)), EscalationFailed("a"), Timer()):
        assert level.on(late, 13) == []
    assert level.counts == LevelCounts(answered=1, escalated=2, sent_bytes=2)


@pytest.mark.parametrize(
    ("event", "now"),
    [
        (Timer(), 12.0),
        (EscalationFailed("a"), 10.0),
        (EscalationAnswered("a", above(1)), 10.0),
        (EscalationAnswered("a", above(1, 0)), 10.0),
        (EscalationAnswered("a", above(1, 3)), 10.0),
        (EscalationAnswered("a", above(1, 1)._replace(classes=np.array([0, 2]))), 10.0),
    ],
    ids=["time limit", "failure", "too few", "exit below", "exit above all", "unknown class"],
)
def test_without_an_answer_from_above_the_level_answers_itself(
    event: Timer | EscalationFailed | EscalationAnswered, now: float
) -> None:
    level = escalated()
    assert level.on(Timer(), 11.9) == [Wake(12)]
    assert answer_of([*level.on(event, now)]) == ([0, 0, 1], [0, 0, 0], [False, True, True])
    assert level.counts.degraded == 2
    assert level.on(EscalationAnswered("a", above(1, 1)), 12) == []


def test_requests_beyond_the_limit_are_refused() -> None:
    level = CascadeLevel(1, 2, None, waiting_max=1)
    level.on(CascadeRequest("a", FEATURES), 0)
    (refused,) = level.on(CascadeRequest("b", FEATURES), 0)
    assert isinstance(refused, RequestRefused)
    assert (refused.request, refused.error.code) == ("b", "exits.busy")
    assert level.on(Scored("b", SCORES), 0) == []
    assert level.counts.received_bytes == 3
    assert answer_of([*level.on(Scored("a", SCORES), 0)]) == ([0, 0, 1], [1, 1, 1], [False] * 3)
    assert level.on(CascadeRequest("b", FEATURES), 0) == [ComputeScores("b", FEATURES)]


def test_a_request_that_cannot_be_computed_is_refused_once() -> None:
    level, error = CascadeLevel(0, 3, 0.5), LearnerFailed("no")
    for name, event in (("a", ComputeFailed("a", error)), ("b", Scored("b", SCORES * np.nan, FEATURES))):
        level.on(CascadeRequest(name, "inputs"), 0)
        (refused,) = level.on(event, 0)
        assert isinstance(refused, RequestRefused)
        assert isinstance(refused.error, LearnerFailed)
        assert level.on(event, 0) == []
    assert level.counts == LevelCounts()


@pytest.mark.parametrize(
    ("number", "threshold", "text"),
    [(0, 1.5, r"threshold 1 is 1\.5"), (1, 0.5, "1 thresholds for 1 exits"), (0, None, "0 thresholds for 2 exits")],
)
def test_a_threshold_that_does_not_fit_is_refused(number: int, threshold: float | None, text: str) -> None:
    with pytest.raises(InvalidJob, match=text):
        CascadeLevel(number, 2, threshold)
