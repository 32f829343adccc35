"""Synchronous SGD with large batches: each step uses one batch of every node.

Goyal et al.: "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, section 2 (linear scaling of the rate
with the number of nodes, gradual warm-up); You, Gitman, Ginsburg: "Large Batch Training of Convolutional Networks",
2017, Algorithm 1 (LARS). At step t, with g the mean gradient of the batches of K nodes:

    rate = lr * (1 + (K - 1) * min(1, t / warm_up)) * (1 - t / steps)^2      linear scaling, from one node's rate on
    rate = lr * min(1, (t + 1) / warm_up) * (1 - t / steps)^2                without it (`linear_scaling` = false)
    d_l = g_l + weight_decay w_l                                for each tensor l of two or more dimensions
    LARS, with eta = `lars_coefficient` above 0:
        d_l = d_l * eta |w_l| / (|g_l| + weight_decay |w_l|)    for the same tensors
        d_l = d_l * eta                                         for all others, which have no rate of their own
    m = beta m + rate d,   w = w - m

g is the unweighted mean: all batches have the same size (Goyal's n), however many examples a node has.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np

from shoal.core.algorithm.algorithm import Algorithm, Continue, LocalResult, LocalTask, tree_slot
from shoal.core.algorithm.capability import Capability
from shoal.core.algorithm.learner import Learner, TrainConfig, mean_gradient
from shoal.core.errors.ranges import FractionBelowOne, NonNegativeFloat, NonNegativeInt
from shoal.core.model.aggregation import Totals
from shoal.core.model.flat_view import Floats, row, with_row
from shoal.core.model.tree import Slots, Tree, add, scale, sub, zeros
from shoal.core.model.vector_parts import Part, ShardScope, Sums, whole
from shoal.core.protocol.message import ScheduleFamily


@dataclass(frozen=True)
class LargeBatch(Algorithm):
    """One step per version, of the batches of all nodes together; LARS and warm-up make large rates bearable."""

    name: ClassVar[str] = "largebatch"
    title: ClassVar[str] = "Large-batch synchronous SGD, LARS (Goyal et al., You et al. 2017)"
    unweighted: ClassVar[bool] = True
    mixed_slots: ClassVar[tuple[str, ...]] = ()
    schedules: ClassVar[tuple[ScheduleFamily, ...]] = ("synchronous",)
    shardable: ClassVar[ShardScope] = "sums"

    changeable: ClassVar[tuple[str, ...]] = ("lr",)

    epochs: NonNegativeFloat = 0.0
    """Not used: a version is one batch per node."""
    lr: NonNegativeFloat = 0.02
    """Learning rate for the batch of one node."""
    linear_scaling: bool = True
    """True: multiply the learning rate by the number of nodes."""
    warm_up: NonNegativeInt = 0
    """Versions of warm-up. The rate rises from `lr` with `linear_scaling`, else from `lr / warm_up`."""
    steps: NonNegativeInt = 0
    """Versions over which the rate decays to zero, quadratically; 0: no decay."""
    beta: FractionBelowOne = 0.9
    """Momentum."""
    lars_coefficient: NonNegativeFloat = 0.0
    """Trust coefficient eta of LARS (0.001 in the paper); 0: no LARS."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of tensors with two or more dimensions."""

    def init(self, model: Tree) -> Slots:
        """Return the model, without momentum and steps."""
        return {"model": model, "momentum": zeros(model.layout), "step": 0.0}

    @property
    def required_capabilities(self) -> frozenset[Capability]:
        """A node reports a gradient."""
        return frozenset({"gradients"})

    def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
        """Evaluate what was sent; report the gradient of one batch, with its sign turned."""
        learner.load(tree_slot(task.slots, "model"))
        metrics = learner.evaluate()
        config = TrainConfig(steps=1, batch_size=self.batch_size, lr=self.lr, seed=task.seed)
        trained, gradient = mean_gradient(learner, config, task.progress)
        return LocalResult(trained.weight, {"model": scale(gradient, -1.0)}, metrics | trained.metrics)

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """Take one step along the mean gradient."""
        return whole(self.step_part(slots, totals))

    def step_part(self, slots: Slots, totals: Totals) -> Part[Slots]:
        """Take the step on a part of the model, from the norms of whole tensors."""
        model, done, nodes = tree_slot(slots, "model"), slots["step"], totals.count
        assert not isinstance(done, Tree)
        wanted = yield from self._trusted(model, sub(totals.mean_onto("model", model), model))
        momentum = add(scale(tree_slot(slots, "momentum"), self.beta), wanted, self.rate(int(done), nodes))
        return {**slots, "model": add(model, momentum), "momentum": momentum, "step": done + 1}

    def rate(self, step: int, nodes: int) -> float:
        """Return the rate of a step with the batches of this many nodes."""
        left = max(0.0, 1 - step / self.steps) ** 2 if self.steps else 1.0
        if not self.linear_scaling:
            return self.lr * (min(1.0, (step + 1) / self.warm_up) if self.warm_up else 1.0) * left
        return self.lr * (1 + (nodes - 1) * (min(1.0, step / self.warm_up) if self.warm_up else 1.0)) * left

    def _trusted(self, model: Tree, against: Tree) -> Part[Tree]:
        """Return the change of the weights per unit of rate: the negative gradient, scaled tensor by tensor."""
        if not self.lars_coefficient and not self.weight_decay:
            return against
        moved, weights, places = row(against), row(model), _matrices(model)
        squares: Sums = {}
        if self.lars_coefficient:
            own = {f"w {name}": squared(weights[place]) for name, place in places.items()}
            squares = yield own | {f"g {name}": squared(moved[place]) for name, place in places.items()}
        factors = np.full(moved.size, self.lars_coefficient or 1.0, np.float32)
        for name, place in places.items():
            moved[place] -= np.float32(self.weight_decay) * weights[place]
            if self.lars_coefficient:
                factors[place] = np.float32(self._trust(sqrt(squares[f"w {name}"]), sqrt(squares[f"g {name}"])))
        return with_row(against, moved * factors)

    def _trust(self, size: float, slope: float) -> float:
        """Return LARS's trust ratio of a tensor's step, from the norms of its weights and of its gradient."""
        return (
            self.lars_coefficient * size / (slope + self.weight_decay * size)
            if size and slope
            else self.lars_coefficient
        )


def _matrices(model: Tree) -> dict[str, slice]:
    """Return the ranges of tensors with two or more dimensions among all weights."""
    found, first = {}, 0
    for leaf in model.layout.leaves:
        if model.layout.is_weight(leaf):
            if len(leaf.shape) > 1:
                found[leaf.name] = slice(first, first + leaf.elements)
            first += leaf.elements
    return found


def squared(values: Floats) -> float:
    """Return the squared Euclidean norm."""
    wide = values.astype(np.float64)
    return float(wide @ wide)
