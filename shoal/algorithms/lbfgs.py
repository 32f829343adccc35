"""Sandblaster L-BFGS: the hub takes the steps of a batch optimizer, the nodes only measure loss and gradient.

Dean et al.: "Large Scale Distributed Deep Networks", NIPS 2012, section 4.2; the two-loop recursion after Nocedal and
Wright, "Numerical Optimization", 2nd edition, Algorithm 7.4; the line search backtracks until the loss has fallen
enough (Armijo, Algorithm 3.1), and its trials are further orders. At the accepted point x, with direction p:

    trial = x + rate p       all nodes send f_k(trial) and its gradient; f and g are their means by examples
    f(trial) <= f(x) + 1e-4 rate <g, p>   ->  x = trial, s = rate p, y = g' - g kept if <s, y> > 1e-10, p = two loops
    else rate = rate / 2; after 20 halvings p is the steepest descent again

A version's model is x, the best point so far. What nodes measure is the trial: of an accepted one, the next version.

Losses over other examples are not to be compared. When a node has gone or come, such a trial is taken if it is better
all the same, but makes no pair; if it is worse, the next order is to measure x anew, with those who are there.
The vectors may lie on shards: then each tells what it adds to the products, and the hub sees numbers (`step_part`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt
from typing import ClassVar

from shoal.core.algorithm import Algorithm, Going, Local, Task, tree_slot
from shoal.core.errors import InvalidJob, InvalidPayload, LearnerFailed
from shoal.core.learner import Budget, Learner
from shoal.core.message import Kind
from shoal.core.parts import Divides, Part, whole
from shoal.core.server_optimizer import STATISTICS
from shoal.core.sums import Totals
from shoal.core.tree import FLOATS, Layout, Slots, Tree, add, dot, scale, sub

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
    gossips: ClassVar[bool] = False
    synchronous: ClassVar[bool] = True
    divides: ClassVar[Divides] = "sums"

    changeable: ClassVar[tuple[str, ...]] = ()

    epochs: float = 1.0
    """Always one pass: the gradient of all local data."""
    batch_size: int = 0
    """Examples per piece of that pass; 0: all at once. It changes the memory needed, not the gradient."""
    lr: float = 1.0
    """The first rate that is tried in each direction."""
    pairs: int = 10
    """m: steps that are remembered, two models each."""
    decay: float = 0.0
    """The weight of |w|^2 / 2 in the loss."""

    def __post_init__(self) -> None:
        if not 1 <= self.pairs <= 100:
            raise InvalidJob(f"lbfgs: pairs is {self.pairs}, not from 1 to 100", code="job.algorithm")
        if not 0 < self.lr < float("inf") or not 0 <= self.decay < float("inf"):
            raise InvalidJob("lbfgs: lr must be above 0, decay not negative", code="job.algorithm")

    def init(self, model: Tree) -> Slots:
        """x is the first trial. Raises `InvalidPayload` for a model with tensors that have no gradient."""
        for leaf in model.layout.leaves:
            if leaf.dtype not in FLOATS or leaf.name.endswith(STATISTICS):
                raise InvalidPayload(
                    f"lbfgs: {leaf.name} has no gradient", hint="use a model without BatchNorm and counters"
                )
        return {"model": model, "trial": model, "rate": 0.0}

    def order(self, slots: Slots, node: str, kind: Kind) -> Slots:
        """Who trains gets the trial, who measures the model."""
        return {"model": slots["trial" if kind == "train" else "model"]}

    def reply(self, slots: Slots) -> dict[str, Layout | None]:
        """A gradient and a loss."""
        return {"gradient": tree_slot(slots, "model").layout, "loss": None}

    def local(self, learner: Learner, task: Task, memory: Slots) -> Local | Going:
        """Measure the trial."""
        learner.load(tree_slot(task.slots, "model"))
        metrics = learner.evaluate()
        budget = Budget(batch_size=self.batch_size, lr=self.lr, seed=task.seed)
        trained, gradient = learner.gradient(budget, tick=task.tick)
        loss = trained.metrics.get("train/loss")
        if loss is None:
            raise LearnerFailed("lbfgs needs the loss of a gradient, and the learner does not measure train/loss")
        return Local(trained.weight, {"gradient": gradient, "loss": loss}, metrics | trained.metrics)

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """Accept the trial and try along a new direction, or try nearer."""
        return whole(self.step_part(slots, totals))

    def step_part(self, slots: Slots, totals: Totals) -> Part[Slots]:
        """The same on a part of the model, from products over all of it."""
        model, trial, rate = tree_slot(slots, "model"), tree_slot(slots, "trial"), _number(slots, "rate")
        weight, gradient, loss = float(totals.weight), totals.mean("gradient"), totals.mean_number("loss")
        if self.decay:
            loss += self.decay / 2 * (yield from product(trial, trial))
            gradient = add(gradient, trial, self.decay)
        if not rate:
            return (yield from self._onwards(_pairs(slots), trial, loss, gradient, weight))
        comparable = weight == slots.get("weight", weight)
        if isfinite(loss) and loss <= _number(slots, "loss") + ENOUGH * rate * _number(slots, "slope"):
            past, moved, turned = _pairs(slots), sub(trial, model), sub(gradient, tree_slot(slots, "gradient"))
            if comparable and (yield from product(moved, turned)) > CURVED:
                past = [*past, (moved, turned)][-self.pairs :]
            return (yield from self._onwards(past, trial, loss, gradient, weight))
        if not comparable:
            return {**slots, "trial": model, "rate": 0.0}
        if rate > self.lr * 0.5**HALVINGS:
            nearer = add(model, tree_slot(slots, "direction"), rate / 2)
            return {**slots, "trial": nearer, "rate": rate / 2}
        known = _number(slots, "loss"), tree_slot(slots, "gradient")
        return (yield from self._onwards([], model, *known, weight))

    def _onwards(self, past: list[Pair], x: Tree, loss: float, gradient: Tree, weight: float) -> Part[Slots]:
        """The slots at an accepted point: where to try next."""
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
    """The inner product over the whole model, of which a part knows its own share."""
    return (yield {"": dot(a, b)})[""]


def direction(gradient: Tree, pairs: list[Pair]) -> Part[Tree]:
    """`-H g` by the two-loop recursion; `pairs`: (s, y), oldest first, at least one."""
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
