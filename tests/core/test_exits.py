"""Exits of a network: entropies, thresholds, their choice, and the bytes of an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidJob, InvalidPayload, ShoalError
from shoal.core.exits.byte_costs import Hop, bytes_per_answer, packed_bytes, present_devices, score_bytes
from shoal.core.exits.entropy import normalized_entropy
from shoal.core.exits.packed_bits import pack_bits, unpack_bits
from shoal.core.exits.threshold_choice import choose_by_accuracy, choose_by_fraction
from shoal.core.exits.thresholds import ExitRecord, answering_exits, checked_thresholds, decide_each

ENTROPIES = np.array([[0.1, 0.2, 0.2, 0.9], [0.3, 0.3, 0.3, 0.3]])
CORRECT = np.array([[True, True, False, False], [True, False, True, True]])
RECORD = ExitRecord(ENTROPIES, CORRECT)


def drawn(seed: int, exits: int, examples: int = 40) -> ExitRecord:
    """A record with ties, in which later exits are right more often."""
    rng = np.random.default_rng(seed)
    chance = np.linspace(0.5, 0.9, exits)[:, None]
    return ExitRecord(rng.integers(1, 20, (exits, examples)) / 20, rng.random((exits, examples)) < chance)


def test_entropy_is_that_of_the_probabilities_between_certain_and_uniform() -> None:
    probabilities = np.array([[0.7, 0.2, 0.1], [0.05, 0.05, 0.9]])
    expected = -(probabilities * np.log(probabilities)).sum(-1) / np.log(3)
    assert np.allclose(normalized_entropy(np.log(probabilities) + 5), expected, atol=1e-12)
    assert normalized_entropy([0.0, 0.0, 0.0, 0.0]) == 1
    assert normalized_entropy([-7.725275e-10, 0, -5.355225e-10, -1.1760920e-9, -2.7882760e-10]) <= 1  # by rounding not
    assert normalized_entropy([1e308, -1e308]) == 0
    assert 0 < normalized_entropy([300.0, 0.0]) < 1e-100  # float32 would round it to 0


@given(st.lists(st.floats(-1e308, 1e308), min_size=2, max_size=5))
def test_entropy_is_in_its_range_for_any_finite_scores(scores: list[float]) -> None:
    assert 0 <= normalized_entropy(scores) <= 1


@pytest.mark.parametrize("scores", [[1.0], [np.nan, 0.0], [np.inf, 0.0], 3.0])
def test_scores_without_an_entropy_are_refused(scores: Any) -> None:
    with pytest.raises(InvalidPayload):
        normalized_entropy(scores)


def test_a_level_answers_up_to_its_threshold_and_the_last_always() -> None:
    scores = [[1.0, 0.0], [0.0, 0.0]]
    surer, unsure = normalized_entropy(scores)
    assert decide_each(scores, 0, [surer]).tolist() == [True, False]
    assert decide_each(scores, 0, [unsure]).tolist() == [True, True]
    assert decide_each(scores, 1, [surer]).tolist() == [True, True]


def test_the_first_exit_that_is_sure_answers() -> None:
    entropies = np.array([[0.1, 0.6, 0.6], [0.0, 0.1, 0.9], [0.9, 0.9, 0.9]])
    assert answering_exits(entropies, [0.5, 0.5]).tolist() == [0, 1, 2]
    assert answering_exits(entropies[:1], []).tolist() == [0, 0, 0]


def test_the_outcome_counts_the_answers_of_each_exit() -> None:
    found = RECORD.outcome([0.2])
    assert found == ((3, 1), (2 / 3, 1.0), 0.75)
    assert found.fractions == (0.75, 0.25)
    assert RECORD.outcome([1]) == ((4, 0), (0.5, None), 0.5)
    assert RECORD.exit_accuracies == (0.5, 0.75)


def test_a_record_comes_from_scores_and_labels() -> None:
    scores = np.array([[[2.0, 0.0], [0.0, 0.0]], [[0.0, 9.0], [9.0, 0.0]]])
    record = ExitRecord.of(scores, [0, 1])
    assert record.correct.tolist() == [[True, False], [False, False]]
    assert record.entropies[0, 1] == 1


BAD: dict[str, tuple[str, Callable[[], Any]]] = {
    "too few": ("exits.thresholds", lambda: checked_thresholds([0.5], 3)),
    "above 1": ("exits.thresholds", lambda: checked_thresholds([1.01], 2)),
    "below 0": ("exits.thresholds", lambda: checked_thresholds([-0.01], 2)),
    "NaN": ("exits.thresholds", lambda: RECORD.outcome([float("nan")])),
    "negative loss": ("exits.choice", lambda: choose_by_accuracy(RECORD, -0.1)),
    "undefined loss": ("exits.choice", lambda: choose_by_accuracy(RECORD, float("nan"))),
    "negative margin": ("exits.choice", lambda: choose_by_accuracy(RECORD, 0.1, -1)),
    "infinite margin": ("exits.choice", lambda: choose_by_accuracy(RECORD, 0.1, float("inf"))),
    "fraction above 1": ("exits.choice", lambda: choose_by_fraction(RECORD, [1.1])),
    "too many fractions": ("exits.choice", lambda: choose_by_fraction(RECORD, [0.5, 0.5])),
    "negative fraction": ("exits.choice", lambda: choose_by_fraction(drawn(0, 3), [1.5, -0.5])),
    "other correctness": ("exits.record", lambda: ExitRecord(ENTROPIES, CORRECT[:1])),
    "no example": ("exits.record", lambda: ExitRecord(ENTROPIES[:, :0], CORRECT[:, :0])),
    "entropy above 1": ("exits.record", lambda: ExitRecord(ENTROPIES + 1, CORRECT)),
    "unknown device": ("exits.devices", lambda: present_devices(2, [2])),
    "negative device": ("exits.devices", lambda: present_devices(2, [-1])),
    "no device": ("exits.devices", lambda: present_devices(2, [0, 1])),
    "neither bit": ("payload.bits", lambda: pack_bits(np.zeros((1, 3)))),
    "too many bytes": ("payload.bits", lambda: unpack_bits(np.zeros((1, 2), np.uint8), (8,))),
    "no bytes": ("payload.bits", lambda: unpack_bits(np.zeros((1, 1), np.float32), (8,))),  # type: ignore[arg-type]
    "a large shape": ("payload.bits", lambda: unpack_bits(np.zeros((1, 1), np.uint8), (2**62,))),
    "bits behind": ("payload.bits", lambda: unpack_bits(np.array([[0b11100001]], np.uint8), (7,))),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused(what: str) -> None:
    code, call = BAD[what]
    with pytest.raises(ShoalError) as refused:
        call()
    assert refused.value.code == code


def test_the_highest_threshold_within_the_loss_is_chosen() -> None:
    # the two examples at 0.2 are answered together: one is gained there, one is lost
    assert choose_by_accuracy(RECORD, 0) == (0.2,)
    assert choose_by_accuracy(RECORD, 0.25) == (0.9,)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("loss", [0.0, 0.05, 0.3])
def test_the_choice_is_that_of_a_search_over_all_thresholds(seed: int, loss: float) -> None:
    record = drawn(seed, 2)
    found = record.outcome(choose_by_accuracy(record, loss))
    bound = record.exit_accuracies[-1] - loss - 1e-9
    every = [record.outcome([one]) for one in [0.0, *record.entropies[0]]]
    assert found.accuracy >= bound
    assert found.answered[0] == max(one.answered[0] for one in every if one.accuracy >= bound)


def test_a_margin_keeps_standard_errors_from_the_bound() -> None:
    fewer = 0
    for seed in range(10):
        record = drawn(seed, 3, 400)
        thresholds = choose_by_accuracy(record, 0.05, margin=2)
        found, chosen = record.outcome(thresholds), answering_exits(record.entropies, thresholds)
        differing = (record.correct[chosen, np.arange(400)] != record.correct[-1]).sum()
        assert found.accuracy >= record.exit_accuracies[-1] - 0.05 + 2 * np.sqrt(differing) / 400 - 1e-9
        fewer += found.answered[0] < record.outcome(choose_by_accuracy(record, 0.05)).answered[0]
    assert fewer > 5


@pytest.mark.parametrize("seed", range(10))
def test_with_three_exits_the_first_answers_most_and_then_the_second(seed: int) -> None:
    record = drawn(seed, 3)
    first, second = choose_by_accuracy(record, 0.1)
    bound = record.exit_accuracies[-1] - 0.1 - 1e-9
    alone = ExitRecord(record.entropies[[0, 2]], record.correct[[0, 2]])
    assert choose_by_accuracy(alone, 0.1) == (first,)
    found = record.outcome([first, second])
    assert found.accuracy >= bound
    every = [record.outcome([first, one]) for one in [0.0, *record.entropies[1]]]
    assert found.answered[1] == max(one.answered[1] for one in every if one.accuracy >= bound)


def test_an_exit_that_may_answer_nothing_escalates_everything() -> None:
    wrong = ExitRecord(np.array([[0.2, 0.4], [0.5, 0.5]]), np.array([[False, False], [True, True]]))
    assert wrong.outcome(choose_by_accuracy(wrong, 0)).answered == (0, 2)
    certain = ExitRecord(np.array([[0.0, 0.4], [0.5, 0.5]]), wrong.correct)
    with pytest.raises(InvalidJob, match="exit 1 is certain"):
        choose_by_accuracy(certain, 0)


@pytest.mark.parametrize("fractions", [(0.5, 0.25), (0.0, 1.0), (1.0, 0.0), (0.3, 0.0)])
@pytest.mark.parametrize("seed", range(3))
def test_a_fraction_is_answered_by_the_least_threshold(fractions: tuple[float, float], seed: int) -> None:
    record = drawn(seed, 3)
    thresholds = choose_by_fraction(record, fractions)
    answered = record.outcome(thresholds).answered
    assert answered[0] >= fractions[0] * 40
    assert answered[1] >= min(fractions[1] * 40, 40 - answered[0])
    for number, threshold in enumerate(thresholds):
        lower = [*thresholds]
        lower[number] = float(np.nextafter(threshold, 0))
        assert (
            threshold == 0 or fractions[number] == 0 or record.outcome(lower).answered[number] < fractions[number] * 40
        )


def test_an_answer_costs_the_bytes_of_equation_1() -> None:
    one = Hop(senders=1, scores=score_bytes(10), features=packed_bytes(4 * 35))
    assert (one.scores, one.features) == (40, 18)
    assert bytes_per_answer([one], [76, 24]) == pytest.approx(40 + (1 - 0.76) * 18)
    assert bytes_per_answer([Hop(5, one.scores, one.features)], [76, 24]) == pytest.approx(5 * (40 + 0.24 * 18))
    # the second level's own machine has the exit, and sends features of the rest
    assert bytes_per_answer([one, Hop(features=100)], [50, 30, 20]) == pytest.approx(40 + 0.5 * 18 + 0.2 * 100)
    assert bytes_per_answer([], [7]) == 0


def test_absent_devices_are_marked() -> None:
    assert present_devices(3) == (True, True, True)
    assert present_devices(3, [1, 1]) == (True, False, True)


@pytest.mark.parametrize("shape", [(8,), (3, 5), (1,), (2, 3, 4)])
def test_packed_features_come_back(shape: tuple[int, ...]) -> None:
    features = np.random.default_rng(0).choice([-1.0, 1.0], (6, *shape)).astype(np.float32)
    packed = pack_bits(features)
    assert packed.shape == (6, packed_bytes(int(np.prod(shape))))
    assert np.array_equal(unpack_bits(packed, shape), features)
    assert pack_bits(np.array([[1, -1, -1, -1, -1, -1, -1, 1, 1]])).tolist() == [[0b10000001, 0b10000000]]
