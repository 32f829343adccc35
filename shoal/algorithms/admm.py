"""Consensus ADMM: every node solves its own problem near the consensus, and prices make them agree.

Boyd, Parikh, Chu, Peleato, Eckstein: "Distributed Optimization and Statistical Learning via the Alternating Direction
Method of Multipliers", 2011, section 7.1 (consensus with regularization, scaled form) with over-relaxation (3.4.3). For
K nodes with losses f_k, and the consensus z:

    w_k = argmin f_k(w) + rho/2 |w - z + u_k|^2          solved by `epochs` of SGD from z on
    h_k = over_relaxation w_k + (1 - over_relaxation) z
    z   = rho / (weight_decay + rho) * mean_k (h_k + u_k)     weight_decay/2 |z|^2 is the regularizer of the mean loss
    u_k = u_k + h_k - z

Nodes report h_k + u_k relative to z. The dual u_k is a node's own: it keeps h_k + u_k until it hears the next z, so a
node that misses versions takes its price against the newest one.

The hub keeps the last h_k + u_k of every node, its *contribution*, and the mean is taken over all of them, not only
over this version's reporters. Boyd's mean is over all K nodes: a mean over those alone that happened to report has no
fixed point. With the kept contributions, a round of a few nodes is a step of block-coordinate Douglas-Rachford
splitting (Combettes, Pesquet: "Stochastic Quasi-Fejér Block-Coordinate Fixed Point Iterations", SIAM J. Optim. 2015),
which converges to the same optimum; so do reports of older versions under the schedule `buffer` (Zhang, Kwok:
"Asynchronous Distributed ADMM for Consensus Optimization", ICML 2014), where each counts relative to the z that its
node was sent.

A contribution weighs as much as its node has examples, so that the optimum is that of the mean loss over all examples;
in the inner product with these weights the steps above are the same. The contribution of a node that leaves, or that is
set aside after failures, is dropped with the next version; that of a lost node stays. A node that comes back brings its
own with its next report, for its dual is in its private memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Interval

from shoal.core.algorithm.algorithm import Algorithm, Continue, LocalResult, LocalTask, Update, tree_slot
from shoal.core.algorithm.capability import Capability, train_corrected
from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.learner import Learner, present_weights
from shoal.core.errors.ranges import NonNegativeFloat, PositiveFloat
from shoal.core.model.aggregation import Totals, TreeSum
from shoal.core.model.tree import Slots, Tree, add, norm, scale, sub, zeros
from shoal.core.model.vector_parts import ShardScope

CONTRIBUTION, WEIGHT = "contribution.", "weight."
"""Begin the slots of a node's contribution and of its weight."""


@dataclass(frozen=True)
class ADMM(Algorithm):
    """Consensus by dual variables. For convex losses it finds the common optimum however unlike the data are."""

    name: ClassVar[str] = "admm"
    title: ClassVar[str] = "Consensus ADMM (Boyd et al. 2011)"
    needs_sent_model: ClassVar[bool] = True
    mixed_slots: ClassVar[tuple[str, ...]] = ()
    shardable: ClassVar[ShardScope] = "weights"
    trains_by_config: ClassVar[bool] = True

    epochs: NonNegativeFloat = 5.0
    """E: passes over the local data per round. More passes solve the local problem more exactly."""
    rho: PositiveFloat = 0.03
    """Penalty on the distance from the consensus. A large value slows progress, a small one makes it unsteady."""
    over_relaxation: Annotated[float, Interval(ge=1, lt=2)] = 1.6
    """Over-relaxation, in [1, 2); 1: none."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight of |z|^2 / 2 in the loss."""
    weighted: bool = True
    """True: weight nodes by their number of examples; False: weight all nodes equally."""

    @property
    def required_capabilities(self) -> frozenset[Capability]:
        """The penalty and the dual correct each gradient."""
        return frozenset({"corrections"})

    def correction(self, task: LocalTask, memory: Slots) -> Correction:
        """Return the gradient of the penalty, rho (weights - z + dual)."""
        z = tree_slot(task.slots, "model")
        return Correction(pull=self.rho, anchor=sub(z, _dual(z, memory)))

    def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
        """Solve near the consensus at this node's price; report where that leads."""
        z = tree_slot(task.slots, "model")
        dual, near = _dual(z, memory), self.correction(task, memory)
        learner.load(z)
        metrics = learner.evaluate()
        trained = train_corrected(learner, self.train_config(task), near, task.progress)
        moved = scale(sub(present_weights(learner), z), self.over_relaxation)  # h - z
        report = add(dual, moved)
        return LocalResult(
            trained.weight, {"model": report}, metrics | trained.metrics, {"contribution": add(z, report)}
        )

    def fold(self, totals: Totals, update: Update, discount: float) -> Totals:
        """Take a node's contribution; the later one of two for the same version."""
        z, name, weight = tree_slot(update.sent, "model"), update.node, update.weight if self.weighted else 1.0
        contribution = add(z, tree_slot(update.slots, "model"))
        totals.drop(CONTRIBUTION + name, WEIGHT + name)
        totals.add({CONTRIBUTION + name: contribution, WEIGHT + name: weight}, 1.0, norm(contribution))
        return totals

    def fold_weight(self, update: Update, discount: float) -> float:
        """Return 1: a contribution is kept as it is, beside its weight."""
        return 1.0

    @property
    def uses_weights(self) -> bool:
        """Return whether nodes weigh as much as they have examples."""
        return self.weighted

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """Compute the next z from the last contributions of all remaining nodes."""
        model, kept = tree_slot(slots, "model"), _contributions(slots)
        for slot in sorted(totals.trees):
            name = slot.removeprefix(CONTRIBUTION)
            kept[name] = totals.mean(slot), float(totals.numbers[WEIGHT + name])
        if totals.members is not None:
            kept = {name: value for name, value in kept.items() if name in totals.members}
        if not kept:
            return {"model": model}
        total = TreeSum(model.layout)
        for _, (tree, weight) in sorted(kept.items()):
            total.add(tree, weight, norm(tree))
        z = total.mean_onto(rate=self.rho / (self.weight_decay + self.rho))
        trees: Slots = {CONTRIBUTION + name: tree for name, (tree, _) in kept.items()}
        return {"model": z, **trees, **{WEIGHT + name: weight for name, (_, weight) in kept.items()}}


def _dual(z: Tree, memory: Slots) -> Tree:
    """Return a node's dual variable, which begins at zero."""
    return sub(tree_slot(memory, "contribution"), z) if "contribution" in memory else zeros(z.layout)


def _contributions(slots: Slots) -> dict[str, tuple[Tree, float]]:
    """Return each node's last contribution and its weight."""
    found: dict[str, tuple[Tree, float]] = {}
    for slot in slots:
        if slot.startswith(CONTRIBUTION):
            name = slot.removeprefix(CONTRIBUTION)
            weight = slots[WEIGHT + name]
            assert not isinstance(weight, Tree)
            found[name] = tree_slot(slots, slot), weight
    return found
