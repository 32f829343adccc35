"""Sandblaster L-BFGS: a batch optimizer at the hub; nodes compute only the loss and its gradient.

Dean et al.: "Large Scale Distributed Deep Networks", NIPS 2012, section 4.2; the two-loop recursion after Nocedal and
Wright, "Numerical Optimization", 2nd edition, Algorithm 7.4; the line search backtracks until the loss has fallen
enough (Armijo, Algorithm 3.1), and its trials are further tasks. At the accepted point x, with direction p:

    trial = x + rate p       all nodes send f_k(trial) and its gradient; f and g are their means by examples
    f(trial) <= f(x) + 1e-4 rate <g, p>   ->  x = trial, s = rate p, y = g' - g kept if <s, y> > 1e-10, p = two loops
    else rate = rate / 2; after 20 halvings p is the steepest descent again

A version's model is x, the best point so far. Nodes measure the trial; an accepted one is the next version.

Losses over different examples are not comparable. When a node has gone or come, a better trial is still taken, but
makes no pair; if it is worse, the next task is to measure x again, with the nodes present. The vectors may lie on
shards: then each tells what it adds to the products, and the hub sees numbers (`step_part`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Annotated, ClassVar

from annotated_types import Interval

from shoal.core.algorithm.algorithm import Algorithm, Continue, LocalResult, LocalTask, tree_slot
from shoal.core.algorithm.capability import Capability
from shoal.core.algorithm.learner import Learner, TrainConfig, mean_gradient
from shoal.core.errors import InvalidPayload, LearnerFailed
from shoal.core.errors.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Layout, Slots, Tree, add, dot, scale, sub
from shoal.core.model.vector_parts import Part, ShardScope, whole
from shoal.core.protocol.message import Kind, ScheduleFamily

Pair = tuple[Tree, Tree]
"""s and y."""

ENOUGH = 1e-4
"""c1: the share of the decrease that the slope promises."""
CURVED = 1e-10
"""The least <s, y> of a pair that is kept."""
HALVINGS = 20


@dataclass(frozen=True)
class LBFGS(Algorithm):
    """Full-batch quasi-Newton steps at the hub. For smooth losses and models without running statistics."""

    name: ClassVar[str] = "lbfgs"
    title: ClassVar[str] = "Sandblaster L-BFGS (Dean et al. 2012)"
    mixed_slots: ClassVar[tuple[str, ...]] = ()
    schedules: ClassVar[tuple[ScheduleFamily, ...]] = ("synchronous",)
    shardable: ClassVar[ShardScope] = "sums"

    changeable: ClassVar[tuple[str, ...]] = ()

    epochs: NonNegativeFloat = 1.0
    """Always one pass: the gradient of all local data."""
    batch_size: NonNegativeInt = 0
    """Examples per forward pass; 0: all at once. It affects memory, not the gradient."""
    lr: PositiveFloat = 1.0
    """First learning rate that the line search tries."""
    history_size: Annotated[int, Interval(ge=1, le=100)] = 10
    """m: number of stored steps; each takes the memory of two models."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight of |w|^2 / 2 in the loss."""

    def init(self, model: Tree) -> Slots:
        """Start with x as the first trial. Raises `InvalidPayload` for a model with tensors that have no gradient."""
        for leaf in model.layout.leaves:
            if not model.layout.is_weight(leaf):
                raise InvalidPayload(
                    f"lbfgs: {leaf.name} has no gradient", hint="use a model without BatchNorm and counters"
                )
        return {"model": model, "trial": model, "rate": 0.0}

    def task_slots(self, slots: Slots, node: str, kind: Kind) -> Slots:
        """Send the trial to train on, and the model to evaluate."""
        return {"model": slots["trial" if kind == "train" else "model"]}

    def update_layout(self, slots: Slots) -> dict[str, Layout | None]:
        """Return the layouts of a gradient and a loss."""
        return {"gradient": tree_slot(slots, "model").layout, "loss": None}

    @property
    def required_capabilities(self) -> frozenset[Capability]:
        """A node reports a gradient."""
        return frozenset({"gradients"})

    def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
        """Measure the trial."""
        learner.load(tree_slot(task.slots, "model"))
        metrics = learner.evaluate()
        config = TrainConfig(batch_size=self.batch_size, lr=self.lr, seed=task.seed)
        trained, gradient = mean_gradient(learner, config, task.progress)
        loss = trained.metrics.get("train/loss")
        if loss is None:
            raise LearnerFailed("lbfgs needs the loss of a gradient, and the learner does not measure train/loss")
        return LocalResult(trained.weight, {"gradient": gradient, "loss": loss}, metrics | trained.metrics)

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """Accept the trial and try along a new direction, or try nearer."""
        return whole(self.step_part(slots, totals))

    def step_part(self, slots: Slots, totals: Totals) -> Part[Slots]:
        """Take the step on a part of the model, from products over all of it."""
        model, trial, rate = tree_slot(slots, "model"), tree_slot(slots, "trial"), _number(slots, "rate")
        weight, gradient, loss = float(totals.weight), totals.mean("gradient"), totals.mean_number("loss")
        if self.weight_decay:
            loss += self.weight_decay / 2 * (yield from product(trial, trial))
            gradient = add(gradient, trial, self.weight_decay)
        if not rate:
            return (yield from self._onwards(_pairs(slots), trial, loss, gradient, weight))
        comparable = weight == slots.get("weight", weight)
        if isfinite(loss) and loss <= _number(slots, "loss") + ENOUGH * rate * _number(slots, "slope"):
            past, moved, turned = _pairs(slots), sub(trial, model), sub(gradient, tree_slot(slots, "gradient"))
            if comparable and (yield from product(moved, turned)) > CURVED:
                past = [*past, (moved, turned)][-self.history_size :]
            return (yield from self._onwards(past, trial, loss, gradient, weight))
        if not comparable:
            return {**slots, "trial": model, "rate": 0.0}
        if rate > self.lr * 0.5**HALVINGS:
            nearer = add(model, tree_slot(slots, "direction"), rate / 2)
            return {**slots, "trial": nearer, "rate": rate / 2}
        known = _number(slots, "loss"), tree_slot(slots, "gradient")
        return (yield from self._onwards([], model, *known, weight))

    def _onwards(self, past: list[Pair], x: Tree, loss: float, gradient: Tree, weight: float) -> Part[Slots]:
        """Return the slots at an accepted point: the next trial."""
        if past:
            p = yield from direction(gradient, past)
        else:  # the first step is no longer than the rate
            p = scale(gradient, -1 / max(1.0, sqrt((yield from product(gradient, gradient)))))
        slope = yield from product(gradient, p)
        at: Slots = {"model": x, "loss": loss, "gradient": gradient, "weight": weight}
        trial: Slots = {"trial": add(x, p, self.lr), "rate": self.lr, "slope": slope, "direction": p}
        history = {f"{name}{n}": tree for n, pair in enumerate(past) for name, tree in zip("sy", pair, strict=True)}
        return {**at, **trial, **history}


def product(a: Tree, b: Tree) -> Part[float]:
    """Compute the inner product over the whole model, of which a part knows its own share."""
    return (yield {"": dot(a, b)})[""]


def direction(gradient: Tree, pairs: list[Pair]) -> Part[Tree]:
    """Compute `-H g` by the two-loop recursion; `pairs`: (s, y), oldest first, at least one."""
    q, bends, alphas = gradient, [], []
    for s, y in pairs:
        bends.append((yield from product(s, y)))
    for (s, y), bend in zip(reversed(pairs), reversed(bends), strict=True):
        alphas.append((yield from product(s, q)) / bend)
        q = add(q, y, -alphas[-1])
    _, y = pairs[-1]
    q = scale(q, bends[-1] / (yield from product(y, y)))
    for (s, y), bend, alpha in zip(pairs, bends, reversed(alphas), strict=True):
        q = add(q, s, alpha - (yield from product(y, q)) / bend)
    return scale(q, -1.0)


def _pairs(slots: Slots) -> list[Pair]:
    count = sum(1 for name in slots if name[0] == "s" and name[1:].isdigit())
    return [(tree_slot(slots, f"s{n}"), tree_slot(slots, f"y{n}")) for n in range(count)]


def _number(slots: Slots, name: str) -> float:
    value = slots[name]
    assert not isinstance(value, Tree)
    return value
