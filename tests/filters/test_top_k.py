"""The numbers of greatest magnitude: which go, what hostile places come to, and that nothing is lost for good."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.algorithms.fedopt import FedAvgM
from shoal.core.algorithm.algorithm import LocalResult, Update, tree_slot
from shoal.core.algorithm.filter import Filters, pack_difference, pack_with_feedback, unpack, unpack_difference
from shoal.core.client.task_runner import TaskRunner
from shoal.core.errors import InvalidJob, InvalidPayload
from shoal.core.model.aggregation import Totals
from shoal.core.model.flat_view import count_floats, row
from shoal.core.model.tree import FLOATS, Layout, Slots, Tree, digest, norm
from shoal.core.protocol.message import Task
from shoal.filters.quantize import Quantize
from shoal.filters.top_k import PLACES, TopK, greatest
from shoal.learn import digits
from tests.core.strategies import layouts, trees
from tests.learn.federation import digit_learners

SHARES = st.sampled_from([0.001, 0.1, 0.5, 1.0])


@given(trees(bound=1000.0), SHARES)
def test_the_greatest_arrive_and_the_rest_is_zero(drawn: tuple[Tree, ...], share: float) -> None:
    (tree,) = drawn
    one = TopK(share)
    sent = one.encode(tree, 0)
    assert sent.layout == one.layout(tree.layout)
    again = one.decode(sent, tree.layout)
    before, after = row(tree), row(again)
    kept = ceil(share * before.size)
    gone = before != after
    assert np.all(after[gone] == 0)
    assert np.count_nonzero(gone) <= before.size - kept
    if np.any(gone):
        assert np.abs(before[gone]).max() <= np.sort(np.abs(before))[before.size - kept]
    for leaf in tree.layout.leaves:
        if leaf.dtype not in FLOATS:
            np.testing.assert_array_equal(again[leaf.name], tree[leaf.name])


@given(layouts(), SHARES)
def test_a_number_costs_eight_bytes(layout: Layout, share: float) -> None:
    whole = sum(leaf.stop - leaf.start for leaf in layout.leaves if leaf.dtype not in FLOATS)
    assert TopK(share).layout(layout).nbytes == 8 * ceil(share * count_floats(layout)) + whole


def test_of_equal_numbers_the_first_go() -> None:
    assert greatest(np.array([1, -2, 2, 1, 2], np.float32), 2).tolist() == [1, 2]
    assert greatest(np.array([0, 0, 0], np.float32), 2).tolist() == [0, 1]


def test_what_is_not_a_number_goes_first_and_is_seen() -> None:
    """A diverged model must not look well because its NaN stayed at home."""
    assert greatest(np.array([1e30, np.nan, 3, np.inf], np.float32), 2).tolist() == [1, 3]


WRONG_PLACES = {"doubled": [1, 1], "falling": [2, 1], "negative": [-1, 1], "beyond": [1, 5]}


@pytest.mark.parametrize("places", WRONG_PLACES.values(), ids=WRONG_PLACES)
def test_places_that_are_none(places: list[int]) -> None:
    tree, one = Tree.of({"w": np.arange(5, dtype=np.float32)}), TopK(0.4)
    sent = one.encode(tree, 0)
    hostile = Tree.of({PLACES: np.array(places, np.int32), "values": sent["values"]})
    with pytest.raises(InvalidPayload, match="rise from 0 to 4"):
        one.decode(hostile, tree.layout)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_a_share_that_is_none(share: float) -> None:
    with pytest.raises(InvalidJob, match=r"must be in \(0, 1\]"):
        TopK(share)


# --------------------------------------------------------------------------------------------------- error feedback
@given(st.lists(trees(bound=10.0), min_size=1, max_size=1), st.integers(0, 2**32))
def test_what_was_not_sent_is_remembered(drawn: list[tuple[Tree, ...]], seed: int) -> None:
    """After any number of updates: what has arrived and what is remembered add up to what was made."""
    tree = drawn[0][0]
    filters: Filters = (TopK(0.2), Quantize(8, 4))
    memory: Slots = {}
    arrived = np.zeros_like(row(tree), np.float64)
    for n in range(5):
        sent, memory = pack_with_feedback(filters, {"model": tree}, memory, seed + n)
        arrived += row(tree_slot(unpack(filters, sent, {"model": tree.layout}), "model"))
    left = row(tree_slot(memory, "residual.model"))
    assert np.allclose(arrived + left, 5.0 * row(tree), rtol=1e-4, atol=1e-3)


def test_a_memory_of_another_model_is_dropped() -> None:
    filters = (TopK(0.5),)
    _, memory = pack_with_feedback(filters, {"model": Tree.of({"w": np.array([1, 2], np.float32)})}, {}, 0)
    other = {"model": Tree.of({"w": np.array([4, 3, 2, 1], np.float32)})}
    assert tree_slot(pack_with_feedback(filters, other, memory, 0)[0], "model")["values"].tolist() == [4, 3]


def test_without_a_filter_that_needs_it_nothing_is_remembered() -> None:
    assert pack_with_feedback((Quantize(8),), {"model": Tree.of({"w": np.ones(4, np.float32)})}, {}, 0)[1] == {}


def test_models_are_sent_without_it() -> None:
    """A hub keeps no memory of what each node lacks, so its differences go whole, or rounded."""
    base, model = (Tree.of({"w": np.array(values, np.float32)}) for values in ([1, 2, 3, 4], [2, 4, 6, 8]))
    sent, mine = pack_difference((TopK(0.25),), model, base, 0)
    assert sent["w"].tolist() == [1, 2, 3, 4]
    assert digest(mine) == digest(unpack_difference((TopK(0.25),), sent, base)) == digest(model)
    assert pack_difference((TopK(0.25), Quantize(8, 4)), model, base, 0)[0].keys() == {"codes", "scales"}


# ----------------------------------------------------------------------------------------- study D1: digits, 8 workers
def accuracy_after(steps: int, filters: tuple[Any, ...]) -> float:
    """Digits, 8 workers with batches of 32, rate 0.05 and momentum 0.9, every step averaged."""
    torch.set_num_threads(1)
    learners, judge = digit_learners(8), digits.held_out()
    algorithm = FedAvgM(epochs=32 / 180, batch_size=32, lr=0.05, beta=0.9)
    slots, memories = algorithm.init(judge.init(0)), [Slots() for _ in learners]
    for step in range(1, steps + 1):
        totals = Totals()
        for number, learner in enumerate(learners):
            task = Task((0, step), str(number), "train", step, step * len(learners) + number, None)
            work = TaskRunner(algorithm, learner, dict(slots), memory=memories[number], filters=filters)
            made = work.run_piece(task)
            assert isinstance(made, LocalResult)
            memories[number] = made.memory if made.memory is not None else memories[number]
            update = unpack(filters, made.slots, algorithm.update_layout(slots))
            totals = algorithm.fold(totals, Update("", step, made.weight, update, norm(tree_slot(update, "model"))), 1)
        slots = algorithm.step(slots, totals)
    judge.load(tree_slot(slots, "model"))
    return judge.evaluate()["eval/accuracy"]


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_one_number_in_a_thousand_is_enough_with_a_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Study D1: with error feedback at least .93 after 600 steps, without at most .89."""
    assert accuracy_after(600, (TopK(0.001),)) >= 0.93
    monkeypatch.setattr(TopK, "error_feedback", False)
    assert accuracy_after(600, (TopK(0.001),)) <= 0.89
