"""Consensus ADMM: every node solves its own problem near the consensus, and prices make them agree.

Boyd, Parikh, Chu, Peleato, Eckstein: "Distributed Optimization and Statistical Learning via the Alternating Direction
Method of Multipliers", 2011, section 7.1 (consensus with regularization, scaled form) with over-relaxation (3.4.3). Of
K nodes with losses f_k, and the consensus z:

    w_k = argmin f_k(w) + rho/2 |w - z + u_k|^2          solved by `epochs` of SGD from z on
    h_k = relax w_k + (1 - relax) z
    z   = rho / (decay + rho) * mean_k (h_k + u_k)        decay/2 |z|^2 is the regularizer of the mean loss
    u_k = u_k + h_k - z

Nodes report h_k + u_k, relative to z. The dual u_k is a node's own: it keeps h_k + u_k until it hears the next z, so a
node that misses versions takes its price against the newest one. All nodes count alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.algorithm import Algorithm, Going, Local, Task, tree_slot
from shoal.core.errors import InvalidJob
from shoal.core.learner import Learner
from shoal.core.parts import Divides
from shoal.core.sums import Totals
from shoal.core.tree import Slots, Tree, add, scale, sub, towards, zeros


@dataclass(frozen=True)
class ADMM(Algorithm):
    """Consensus by dual variables. For convex losses it finds the common optimum however unlike the data are."""

    name: ClassVar[str] = "admm"
    title: ClassVar[str] = "Consensus ADMM (Boyd et al. 2011)"
    alike: ClassVar[bool] = True
    gossips: ClassVar[bool] = False
    synchronous: ClassVar[bool] = True
    divides: ClassVar[Divides] = "weights"

    rho: float = 0.01
    """The penalty for being apart from the consensus. Too great a one makes progress slow, too small a one rough."""
    relax: float = 1.6
    """Over-relaxation, in [1, 2): 1 is none."""
    decay: float = 0.0
    """The weight of |z|^2 / 2 in the loss."""

    def __post_init__(self) -> None:
        if not 0 < self.rho < float("inf"):
            raise InvalidJob(f"admm: rho is {self.rho}, but must be above 0", code="job.algorithm")
        if not 1 <= self.relax < 2:
            raise InvalidJob(f"admm: relax is {self.relax}, but lies in [1, 2)", code="job.algorithm")
        if not 0 <= self.decay < float("inf"):
            raise InvalidJob(f"admm: decay is {self.decay}, but must not be negative", code="job.algorithm")

    def local(self, learner: Learner, task: Task, memory: Slots) -> Local | Going:
        """Solve near the consensus at this node's price; report where that leads."""
        z = tree_slot(task.slots, "model")
        dual = sub(tree_slot(memory, "wanted"), z) if "wanted" in memory else zeros(z.layout)
        centre = sub(z, dual)

        def near(weights: Tree, gradient: Tree) -> Tree:
            return towards(gradient, centre, weights, self.rho)  # gradient + rho (weights - z + dual)

        learner.load(z)
        metrics = learner.evaluate()
        trained = learner.train(self.budget(task), correct=near, tick=task.tick)
        moved = scale(sub(learner.model(), z), self.relax)  # h - z
        report = add(moved, dual)
        return Local(trained.weight, {"model": report}, metrics | trained.metrics, {"wanted": add(z, report)})

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """The next z."""
        mean = totals.mean_onto("model", tree_slot(slots, "model"))
        return {**slots, "model": scale(mean, self.rho / (self.decay + self.rho)) if self.decay else mean}
