"""A node's side of dynamic averaging, piece by piece, with a learner that moves by one at each mini-batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.dynamic import DynamicAveraging
from shoal.core.algorithm import continual
from shoal.core.algorithm.algorithm import Continue, LocalResult, LocalTask, tree_slot
from shoal.core.algorithm.continual import ContinualState
from shoal.core.algorithm.learner import TrainConfig, Trained
from shoal.core.client.task_runner import TaskRunner
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.model.tree import Slots, Tree, sub
from shoal.core.protocol.message import BlobRef, Metrics, Task, TaskStatus
from shoal.core.protocol.metrics import FINISHED


def tree(value: float) -> Tree:
    return Tree.of({"w": np.array([value], np.float32)})


def value(slots: Slots) -> float:
    return float(tree_slot(slots, "model")["w"][0])


class Walker:
    """Each mini-batch moves the weight by `pace`; remembers the configs."""

    def __init__(self, pace: float = 1.0) -> None:
        self.pace = pace
        self.weight = 0.0
        self.configs: list[TrainConfig] = []
        self.evaluated: list[float] = []

    def init(self, seed: int) -> Tree:
        return tree(0.0)

    def load(self, model: Tree) -> None:
        self.weight = float(model["w"][0])

    def model(self) -> Tree:
        return tree(self.weight)

    def train(self, config: TrainConfig, *, progress: Any, **_: Any) -> Trained:
        self.configs.append(config)
        progress(0.5)
        self.weight += self.pace * config.steps
        return Trained(float(config.steps * config.batch_size), {"train/loss": 0.5})

    def evaluate(self) -> Metrics:
        self.evaluated.append(self.weight)
        return {"eval/accuracy": 0.25}


ALGORITHM = DynamicAveraging(steps=2, batch_size=5, lr=0.1)


def work(
    learner: Walker, memory: Slots | None = None, algorithm: DynamicAveraging = ALGORITHM, at: float = 0.0
) -> TaskRunner:
    """A task from a model at `at`, whose reference is at 0."""
    return TaskRunner(algorithm, learner, {"model": tree(at)}, {"model": tree(0.0)}, memory or {})  # type: ignore[arg-type]


def task(delta: float = 10.0, sync: float = 0.0, **more: Any) -> Task:
    numbers = {"delta": delta, "new_reference": sync}
    return Task((1, 1), "a", "train", 0, 100, BlobRef("d" * 64, 4), **{"numbers": numbers, **more})


def test_silence_then_a_violation() -> None:
    """2 a piece: gaps of 4 and 16 against 10."""
    learner, hand = Walker(), None
    hand = work(learner)
    assert hand.run_piece(task()) is None
    made = hand.run_piece(task())
    assert isinstance(made, LocalResult)
    assert (value(made.slots), made.weight) == (4.0, 20.0)
    assert made.metrics["train/divergence"] == 16.0
    assert (made.metrics["train/batches"], made.metrics["train/loss_total"]) == (4.0, 2.0)
    assert made.metrics["eval/accuracy"] == 0.25
    counts = {
        "examples_since_reference": 20.0,
        "examples_max": 0.0,
        "batch_index": 4.0,
        "batches_trained": 4.0,
        "loss_total": 2.0,
    }
    assert made.memory == {**counts, "sequence_seed": 101.0}
    assert FINISHED not in made.metrics
    assert learner.evaluated == [0.0]  # sent models, once
    assert [(b.steps, b.batch_size, b.lr, b.seed, b.batch_index) for b in learner.configs] == [
        (2, 5, 0.1, 100, 0),
        (2, 5, 0.1, 101, 2),
    ]


def test_as_near_as_the_threshold_is_near_enough() -> None:
    assert work(Walker()).run_piece(task(delta=4.0)) is None
    assert isinstance(work(Walker()).run_piece(task(delta=3.999)), LocalResult)


def test_a_recall_is_answered_without_another_step() -> None:
    learner = Walker()
    hand = work(learner)
    assert hand.run_piece(task(delta=1e9)) is None
    learner.weight = 77.0  # another job had its turn in between
    made = hand.run_piece(task(delta=1e9, recall=True, revision=1))
    assert isinstance(made, LocalResult)
    assert (value(made.slots), made.weight, len(learner.configs)) == (2.0, 10.0, 1)


def test_a_recall_before_the_first_piece_has_one_piece() -> None:
    hand = work(Walker())
    assert hand.run_piece(task(delta=1e9, recall=True)) is None
    assert hand.can_continue(task(recall=True, checks_allowed=1))
    made = hand.run_piece(task(delta=1e9, recall=True))
    assert isinstance(made, LocalResult)
    assert value(made.slots) == 2.0


def test_pieces_go_on_from_where_the_node_is_and_not_from_the_learner() -> None:
    learner = Walker()
    hand = work(learner, at=1.0)
    assert hand.run_piece(task(delta=1e9)) is None
    learner.load(tree(500.0))
    assert hand.run_piece(task(delta=1e9)) is None
    assert value(hand.carry or {}) == 5.0


@pytest.mark.parametrize(("sync", "seen"), [(1.0, 10.0), (0.0, 40.0)])
def test_examples_count_from_the_last_full_synchronization(sync: float, seen: float) -> None:
    memory: Slots = {"examples_since_reference": 30.0, "batch_index": 6.0, "batches_trained": 6.0, "loss_total": 1.0}
    learner = Walker()
    hand = work(learner, memory, at=50.0)
    made = hand.run_piece(task(delta=1.0, sync=sync))
    assert isinstance(made, LocalResult)
    assert value(made.slots) == (2.0 if sync else 52.0)  # relative to the reference, which the model is after a sync
    assert made.weight == seen
    longest = 30.0 if sync else 0.0
    counts = {
        "examples_since_reference": seen,
        "examples_max": longest,
        "batch_index": 8.0,
        "batches_trained": 8.0,
        "loss_total": 2.0,
    }
    assert made.memory == {**counts, "sequence_seed": 101.0}
    assert learner.configs[0].batch_index == 6


def test_a_nodes_sequence_follows_from_its_first_order_and_stays() -> None:
    """Another node, job's seed or version has tasks of another seed; the stored memory overrules it."""
    learner = Walker()
    first = task(delta=5.0)
    hand = work(learner)
    assert hand.run_piece(first) is None
    made = hand.run_piece(first)
    assert isinstance(made, LocalResult)
    work(learner, made.memory).run_piece(replace(first, seed=7))
    work(learner).run_piece(replace(first, seed=2**56 - 1))
    assert [(config.sequence_seed, config.batch_index) for config in learner.configs] == [
        (101, 0),
        (101, 2),
        (101, 4),
        ((2**56 - 1) % (2**53 - 1) + 1, 0),
    ]


def test_whoever_has_trained_enough_weighs_what_it_weighed_at_most() -> None:
    """Its last span was short; the mean of all must not be that of those who train on."""
    memory: Slots = {
        "examples_since_reference": 10.0,
        "examples_max": 300.0,
        "batch_index": 8.0,
        "batches_trained": 8.0,
        "loss_total": 1.0,
    }
    made = work(Walker(), memory, DynamicAveraging(steps=2, batch_size=5, local_steps=8)).run_piece(task(sync=1.0))
    assert isinstance(made, LocalResult)
    assert (value(made.slots), made.weight, made.metrics[FINISHED]) == (0.0, 300.0, 1.0)
    assert made.memory is not None
    assert (made.memory["examples_since_reference"], made.memory["examples_max"]) == (10.0, 300.0)


def test_whoever_has_trained_enough_says_so_and_trains_no_more() -> None:
    algorithm = DynamicAveraging(steps=2, batch_size=5, local_steps=4)
    learner = Walker()
    hand = work(learner, algorithm=algorithm)
    assert hand.run_piece(task(delta=1e9)) is None
    made = hand.run_piece(task(delta=1e9))
    assert isinstance(made, LocalResult)
    assert made.metrics[FINISHED] == 1.0
    again = work(learner, made.memory, algorithm, at=9.0).run_piece(task(delta=1e9))
    assert isinstance(again, LocalResult)
    assert (value(again.slots), again.metrics[FINISHED], len(learner.configs)) == (9.0, 1.0, 2)
    assert made.weight == again.weight == 20.0  # after a synchronization too: it weighs what it weighed at most
    synced = work(learner, made.memory, algorithm, at=9.0).run_piece(task(delta=1e9, sync=1.0))
    assert isinstance(synced, LocalResult)
    assert (value(synced.slots), synced.weight) == (0.0, 20.0)


def test_a_first_window_ends_after_its_checks_however_far() -> None:
    hand = work(Walker(pace=100.0))
    window = task(numbers={"report_after_checks": 3.0, "new_reference": 1.0})
    assert [type(hand.run_piece(window)) for _ in range(3)] == [type(None), type(None), LocalResult]


def test_in_step_each_check_is_told() -> None:
    hand = work(Walker())
    made = hand.run_piece(task(delta=1e9, checks_allowed=1))
    assert made == TaskStatus("a", (1, 1), 1)
    assert not hand.can_continue(task(checks_allowed=1))
    assert hand.can_continue(task(checks_allowed=2))
    assert hand.can_continue(task(checks_allowed=1, recall=True))
    assert hand.run_piece(task(delta=1e9, checks_allowed=2)) == TaskStatus("a", (1, 1), 2)


def test_a_model_that_explodes_fails_its_order() -> None:
    with pytest.raises(LearnerFailed, match="diverged") as caught:
        work(Walker(pace=np.inf)).run_piece(task())
    assert "lr" in caught.value.hint


def test_progress_is_the_share_of_the_whole() -> None:
    told: list[float] = []
    hand = work(Walker(), {"batch_index": 4.0}, DynamicAveraging(steps=2, batch_size=5, local_steps=8))
    hand.progress = told.append
    hand.run_piece(task(delta=1e9))
    assert told == [(4 + 1) / 8]


def test_a_report_tells_the_share_of_the_whole() -> None:
    made = work(Walker(), algorithm=(wanted := DynamicAveraging(steps=2, batch_size=5, local_steps=16))).run_piece(
        task(delta=1.0)
    )
    assert isinstance(made, LocalResult)
    assert wanted.training_progress(made.metrics) == 1 / 8
    assert wanted.training_progress({"train/checks": 99.0}) == 1.0
    assert ALGORITHM.training_progress(made.metrics) is None


class CountedWalker(Walker):
    """Knows how many examples it has."""

    examples: int | None = 21


def test_enough_can_be_said_in_passes_over_the_own_data() -> None:
    """2 passes over 21 examples in batches of 5 are 8.4 batches: at 2 between two checks, 5 checks."""
    wanted = DynamicAveraging(steps=2, batch_size=5, epochs=2.0)
    hand = work(learner := CountedWalker(), algorithm=wanted)
    made = [hand.run_piece(task(delta=1e9)) for _ in range(5)]
    assert made[:4] == [None] * 4
    assert isinstance(made[4], LocalResult)
    assert (made[4].metrics[FINISHED], made[4].metrics["train/epochs"], len(learner.configs)) == (1.0, 2.0, 5)
    assert wanted.training_progress({"train/epochs": 0.5}) == 0.25


def test_passes_over_data_that_cannot_be_counted_are_refused() -> None:
    unknown = CountedWalker()
    unknown.examples = None
    for learner in (Walker(), unknown):
        with pytest.raises(LearnerFailed, match="epochs") as caught:
            work(learner, algorithm=DynamicAveraging(epochs=2.0)).run_piece(task(delta=1e9))
        assert "local_steps" in caught.value.hint


def test_the_displacement_is_computed_once_for_each_model(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Tree] = []
    monkeypatch.setattr(continual, "sub", lambda a, b: made.append(a) or sub(a, b))
    hand = work(Walker())
    assert hand.run_piece(task()) is None
    assert isinstance(hand.run_piece(task()), LocalResult)
    assert [float(model["w"][0]) for model in made] == [2.0, 4.0]
    mine = ContinualState(tree(3.0), tree(1.0))
    assert float(mine.update["w"][0]) == 2.0
    mine.add_piece(Trained(1.0, {}), 1, tree(7.0))
    assert float(mine.update["w"][0]) == 6.0


def test_a_piece_leaves_the_task_as_it_was() -> None:
    """A task may be done again from its carry: after a crash nothing is left of a piece."""
    task = LocalTask(
        (1, 1), "train", 0, 100, {"model": tree(0.0)}, reference={"model": tree(0.0)}, numbers={"delta": 1e9}
    )
    first, second = (ALGORITHM.local(Walker(), task, {}) for _ in range(2))
    assert isinstance(first, Continue)
    assert isinstance(second, Continue)
    assert value(first.carry) == value(second.carry) == 2.0


@pytest.mark.parametrize(
    "fields",
    [
        {"steps": 0},
        {"steps": -1},
        {"batch_size": 0},
        {"local_steps": -1},
        {"epochs": -1.0},
        {"epochs": float("nan")},
        {"epochs": 1.0, "local_steps": 1},
    ],
)
def test_bad_settings_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match=rf"dynamic: .*{next(iter(fields))}"):
        DynamicAveraging(**fields)
