"""Small models that cost microseconds: swarms simulate the protocol, not the training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.core.algorithm.algorithm import Algorithm, LocalResult, LocalTask, tree_slot
from shoal.core.algorithm.learner import (
    Correct,
    ExtraLoss,
    Learner,
    Progress,
    TrainConfig,
    Trained,
    no_progress,
    present_weights,
)
from shoal.core.errors import LearnerFailed
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Layout, Slots, Tree, add, same_layout, sub, zeros
from shoal.core.protocol.message import Kind, Metrics

STAGES_MAX = 3

LAYOUTS = [
    Layout.of([("w", "F32", (3 + stage,)), ("seen", "I64", ())], base_model="ba5e" * 16) for stage in range(STAGES_MAX)
]
"""Layouts of the stages with a base model, so that a code path that loses the base fails."""

LAYOUT = LAYOUTS[0]


def toy_tree(values: tuple[float, float, float], seen: int, stage: int = 0) -> Tree:
    """Return a model of three weights, more zeros in later stages, and a counter."""
    buffer = np.zeros(LAYOUTS[stage].nbytes, np.uint8)
    buffer[:8].view("<i8")[0] = seen
    buffer[8:20].view("<f4")[:] = values
    return Tree(LAYOUTS[stage], buffer)


class ToyLearner:
    """A learner that moves its weights by an amount that depends on its name, the seed and the weights."""

    applies_corrections = True

    def __init__(self, number: int, stages: int = 1) -> None:
        self._number, self.stages, self._stage = number, stages, 0
        self._model = self._optimizer = toy_tree((0.0, 0.0, 0.0), 0)

    def enter_stage(self, stage: int) -> None:
        """Use the layout of that stage."""
        self._stage = stage

    def grow(self, model: Tree, seed: int) -> Tree:
        """Return the weights with one more, which is 0."""
        self.load(model)
        self._stage += 1
        w = model["w"]
        return toy_tree((float(w[0]), float(w[1]), float(w[2])), int(model["seen"]), self._stage)

    def init(self, seed: int) -> Tree:
        """Return weights from the seed alone."""
        return toy_tree((seed % 97 / 7, 1.0, -1.0), 0)

    def load(self, model: Tree) -> None:
        """Load weights. Raises `InvalidPayload` for those of another base model or stage."""
        same_layout(LAYOUTS[self._stage], model.layout)
        self._model = model

    def model(self) -> Tree:
        """Return the present weights."""
        return self._model

    def train(
        self,
        config: TrainConfig,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        progress: Progress = no_progress,
    ) -> Trained:
        """Take one corrected step; the algorithms of a swarm do not pass `extra_loss`."""
        w, seen = self._model["w"], int(self._model["seen"])
        step = (config.seed % 1009 - 504) / 1009
        away = self._number if self._number % 2 else -self._number  # so that the mean of some stays where it was
        moved = (0.5 * float(w[0]) + step, float(w[1]) + away, float(w[2]) * 0.9 + step)
        stepped = toy_tree(moved, seen + 1, self._stage)
        self._optimizer = toy_tree((0.0, 0.0, 0.0), int(self._optimizer["seen"]) + 1)
        self._model = add(stepped, correct(self._model, zeros(stepped.layout)), -1.0) if correct else stepped
        return Trained(float(self._number), {"train/loss": abs(step)})

    def optimizer_state(self) -> Tree:
        """Return the number of steps, as a counter."""
        return self._optimizer

    def load_optimizer_state(self, state: Tree | None) -> None:
        """Set it."""
        self._optimizer = state or toy_tree((0.0, 0.0, 0.0), 0)

    def gradient(self, config: TrainConfig, *, progress: Progress = no_progress) -> tuple[Trained, Tree]:
        """Return a gradient that points away from the origin."""
        return Trained(float(self._number)), self._model

    def evaluate(self) -> Metrics:
        """Return metrics over as many examples as the node has."""
        return {"eval/examples": float(self._number), "eval/loss": abs(float(self._model["w"][0]))}


@dataclass(frozen=True)
class CountingAlgorithm(Algorithm):
    """Federated averaging with private memory, a number slot, a tree slot and per-node tasks.

    It makes a swarm exercise every path that state can take. Memory: "turns", the number of this node's counted
    reports. Each report carries its turn; the hub keeps the mean.
    """

    name: ClassVar[str] = "ledger"
    title: ClassVar[str] = "Accounts for the simulator"

    def init(self, model: Tree) -> Slots:
        """Return model, mean turn and mark."""
        return {"model": model, "turn": 0.0, "mark": toy_tree((1.0, 2.0, 3.0), 0)}

    def task_slots(self, slots: Slots, node: str, kind: Kind) -> Slots:
        """Send a mark that no other node gets, made for each task."""
        mark = tree_slot(slots, "mark")["w"]
        return {
            "model": slots["model"],
            "mark": toy_tree((float(mark[0]), float(mark[1]), float(sum(node.encode()))), 0),
        }

    def update_layout(self, slots: Slots) -> dict[str, Layout | None]:
        """Return the layouts of a displacement, a turn and a tree of turns."""
        return {"model": tree_slot(slots, "model").layout, "turn": None, "mark": LAYOUT}

    def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult:
        """Train, and count the turn."""
        base = tree_slot(task.slots, "model")
        turns = memory.get("turns", 0.0)
        assert isinstance(turns, float)
        learner.load(base)
        metrics = learner.evaluate()
        trained = learner.train(self.train_config(task), progress=task.progress)
        if not isinstance(task.slots.get("mark"), Tree):
            raise LearnerFailed("the task carried no mark")
        turn = turns + 1.0
        slots: Slots = {
            "model": sub(present_weights(learner), base),
            "turn": turn,
            "mark": toy_tree((turn, 0.0, 1.0), 0),
        }
        return LocalResult(trained.weight, slots, metrics | trained.metrics, {"turns": turn})

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """Return the new slots: the mean update on the model, a mean number, a mean tree."""
        model = totals.mean_onto("model", tree_slot(slots, "model"))
        return {"model": model, "turn": totals.mean_number("turn"), "mark": totals.mean("mark")}
