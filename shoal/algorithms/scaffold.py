"""SCAFFOLD: control variates take out of every local step what the node's own data would pull it aside.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML
2020, Algorithm 1 with option II. Node k keeps c_k, the hub c; both begin at zero.

    local step    y = y - eta (g_k(y) - c_k + c)
    c_k'          = c_k - c + (x - y) / (S eta) = the mean of the gradients g_k(y) of the S local steps
    hub           x = x + mean_k (y_k - x),    c = c + |cohort| / N * mean_k (c_k' - c_k)

Means are plain: every node counts alike, whatever it holds. A node's c_k changes only when its report counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.algorithm.algorithm import Algorithm, Continue, LocalResult, LocalTask, tree_slot
from shoal.core.algorithm.capability import Capability, train_corrected
from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.learner import Learner, present_weights
from shoal.core.errors.ranges import NonNegativeInt
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Layout, Slots, Tree, sub, zeros
from shoal.core.model.vector_parts import ShardScope
from shoal.core.protocol.message import ScheduleFamily


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Federated averaging for unlike data. Nodes have a memory; local steps must be plain SGD."""

    name: ClassVar[str] = "scaffold"
    title: ClassVar[str] = "SCAFFOLD (Karimireddy et al. 2020)"
    schedules: ClassVar[tuple[ScheduleFamily, ...]] = ("synchronous",)
    shardable: ClassVar[ShardScope] = "weights"
    unweighted: ClassVar[bool] = True
    mixed_slots: ClassVar[tuple[str, ...]] = ()
    trains_by_config: ClassVar[bool] = True

    nodes: NonNegativeInt = 0
    """N: total number of nodes; 0: all nodes that have joined and not left."""

    @property
    def required_capabilities(self) -> frozenset[Capability]:
        """The control variates correct each gradient, and a step is -eta times the corrected one (Algorithm 1)."""
        return frozenset({"corrections", "plain_sgd"})

    def init(self, model: Tree) -> Slots:
        """Return the model, and c = 0."""
        return {"model": model, "control": zeros(model.layout)}

    def task_slots(self, slots: Slots, node: str, kind: str) -> Slots:
        """Send both to train, and the model alone to evaluate."""
        return {"model": slots["model"]} | ({"control": slots["control"]} if kind == "train" else {})

    def update_layout(self, slots: Slots) -> dict[str, Layout | None]:
        """Return the layouts of two displacements."""
        layout = tree_slot(slots, "model").layout
        return {"model": layout, "control": layout}

    def correction(self, task: LocalTask, memory: Slots) -> Correction:
        """Return what takes c_k from each gradient and adds c."""
        common = tree_slot(task.slots, "control")
        return Correction(offset=sub(common, _own_control(common, memory)), averages=True)

    def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
        """Train with corrected gradients; report how far the model and the own control variate have moved."""
        base, common = tree_slot(task.slots, "model"), tree_slot(task.slots, "control")
        own, aligned = _own_control(common, memory), self.correction(task, memory)
        learner.load(base)
        metrics = learner.evaluate()
        trained = train_corrected(learner, self.train_config(task), aligned, task.progress)
        mean = aligned.take_mean()
        now = own if mean is None else mean
        moved: Slots = {"model": sub(present_weights(learner), base), "control": sub(now, own)}
        return LocalResult(trained.weight, moved, metrics | trained.metrics, {"control": now})

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """Compute the next x and c."""
        known = len(totals.members) if totals.members is not None else totals.count
        share = float(totals.weight) / (self.nodes or max(1, known))
        model = totals.mean_onto("model", tree_slot(slots, "model"))
        control = totals.mean_onto("control", tree_slot(slots, "control"), min(1.0, share))
        return {**slots, "model": model, "control": control}


def _own_control(common: Tree, memory: Slots) -> Tree:
    """Return c_k: a node's own control variate, which begins at zero."""
    return tree_slot(memory, "control") if "control" in memory else zeros(common.layout)
