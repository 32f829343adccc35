"""Small models that cost microseconds: what is simulated in a swarm is the protocol, not the learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.core.algorithm import Algorithm, Local, Task, tree_slot
from shoal.core.errors import LearnerFailed
from shoal.core.learner import Budget, Correct, ExtraLoss, Learner, Tick, Trained, no_tick
from shoal.core.message import Kind, Metrics
from shoal.core.sums import Totals
from shoal.core.tree import Layout, Slots, Tree, add, sub, zeros

LAYOUT = Layout.of([("w", "F32", (3,)), ("seen", "I64", ())])


def toy_tree(values: tuple[float, float, float], seen: int) -> Tree:
    """A model of three weights and a counter."""
    buffer = np.empty(LAYOUT.nbytes, np.uint8)
    buffer[:8].view("<i8")[0] = seen
    buffer[8:].view("<f4")[:] = values
    return Tree(LAYOUT, buffer)


class ToyLearner:
    """Moves its weights by an amount that depends on its name, the seed and where they are."""

    applies_corrections = True

    def __init__(self, number: int) -> None:
        self._number = number
        self._model = toy_tree((0.0, 0.0, 0.0), 0)

    def init(self, seed: int) -> Tree:
        """Weights from the seed alone."""
        return toy_tree((seed % 97 / 7, 1.0, -1.0), 0)

    def load(self, model: Tree) -> None:
        """Take these weights."""
        self._model = model

    def model(self) -> Tree:
        """The present weights."""
        return self._model

    def train(
        self,
        budget: Budget,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        tick: Tick = no_tick,
    ) -> Trained:
        """One step, corrected; extra_loss is not asked for by the algorithms of a swarm."""
        w, seen = self._model["w"], int(self._model["seen"])
        step = (budget.seed % 1009 - 504) / 1009
        away = self._number if self._number % 2 else -self._number  # so that the mean of some stays where it was
        moved = (0.5 * float(w[0]) + step, float(w[1]) + away, float(w[2]) * 0.9 + step)
        stepped = toy_tree(moved, seen + 1)
        self._model = add(stepped, correct(self._model, zeros(LAYOUT)), -1.0) if correct else stepped
        return Trained(float(self._number), {"train/loss": abs(step)})

    def gradient(self, budget: Budget, *, tick: Tick = no_tick) -> tuple[Trained, Tree]:
        """A gradient that points away from the origin."""
        return Trained(float(self._number)), self._model

    def evaluate(self) -> Metrics:
        """As many examples as the node has."""
        return {"eval/examples": float(self._number), "eval/loss": abs(float(self._model["w"][0]))}


@dataclass(frozen=True)
class Ledger(Algorithm):
    """Federated averaging that also keeps accounts: a private memory, a number slot, a tree slot, and orders of its own
    for each node, so that every way that state can take is walked in a swarm.

    Memory: "turns", how many of this node's reports have counted. Each report carries its turn; the hub keeps the mean.
    """

    name: ClassVar[str] = "ledger"
    title: ClassVar[str] = "Accounts for the simulator"

    def init(self, model: Tree) -> Slots:
        """Model, the mean turn, and a mark."""
        return {"model": model, "turn": 0.0, "mark": toy_tree((1.0, 2.0, 3.0), 0)}

    def order(self, slots: Slots, node: str, kind: Kind) -> Slots:
        """A mark that no other node is sent, made anew for each order."""
        mark = tree_slot(slots, "mark")["w"]
        return {
            "model": slots["model"],
            "mark": toy_tree((float(mark[0]), float(mark[1]), float(sum(node.encode()))), 0),
        }

    def reply(self, slots: Slots) -> dict[str, Layout | None]:
        """Displacement, turn and a tree of turns."""
        return {"model": LAYOUT, "turn": None, "mark": LAYOUT}

    def local(self, learner: Learner, task: Task, memory: Slots) -> Local:
        """Train, and count the turn."""
        base = tree_slot(task.slots, "model")
        turns = memory.get("turns", 0.0)
        assert isinstance(turns, float)
        learner.load(base)
        metrics = learner.evaluate()
        trained = learner.train(self.budget(task), tick=task.tick)
        if not isinstance(task.slots.get("mark"), Tree):
            raise LearnerFailed("the order carried no mark")
        turn = turns + 1.0
        slots: Slots = {"model": sub(learner.model(), base), "turn": turn, "mark": toy_tree((turn, 0.0, 1.0), 0)}
        return Local(trained.weight, slots, metrics | trained.metrics, {"turns": turn})

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """Three ways to use what was gathered: on top of the old, as a mean, as a number."""
        model = totals.mean_onto("model", tree_slot(slots, "model"))
        return {"model": model, "turn": totals.mean_number("turn"), "mark": totals.mean("mark")}
