"""Online codistillation: every node keeps a model of its own, and learns from what another one's says.

Anil, Pereyra, Passos, Ormandi, Dahl, Hinton: "Large scale distributed neural network training through online
distillation", ICLR 2018, Algorithm 1. Nothing is averaged. After a burn-in, node i trains on

    CE(y, F_i(x)) + weight * CE(softmax(F_j(x)), F_i(x))

where F_j is another node's model as it was when it last reported: a stale teacher, in turn one of all others. With
`teachers` = "all" the second term has the mean of all others' softmax(F_j(x)), as Algorithm 1 writes it: every task
then carries all models. Models begin differently, each from a seed of its own: alike ones would have nothing to teach.

The hub holds a model for each node. The job's model, which people download, is that of the first of the nodes by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from shoal.core.algorithm.algorithm import Algorithm, Continue, LocalResult, LocalTask, Update, tree_slot
from shoal.core.algorithm.capability import Capability
from shoal.core.algorithm.learner import ExtraLoss, Learner, Teachable, fresh_weights, present_weights
from shoal.core.errors.ranges import NonNegativeFloat, NonNegativeInt
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots, Tree, sub
from shoal.core.protocol.message import Kind

MODEL, TEACHER = "model.", "teacher"
"""Begin the slots of a node's model, and of a teacher in a task."""


@dataclass(frozen=True)
class Codistillation(Algorithm):
    """Models that teach each other. Learners must be `Teachable`, as `TorchLearner` is."""

    name: ClassVar[str] = "codistillation"
    title: ClassVar[str] = "Online codistillation (Anil et al. 2018)"
    unweighted: ClassVar[bool] = True
    mixed_slots: ClassVar[tuple[str, ...]] = ()

    weight: NonNegativeFloat = 1.0
    """Weight of the distillation loss, relative to the loss on the labels."""
    burn_in: NonNegativeInt = 2
    """Versions before the first distillation."""
    teachers: Literal["turn", "all"] = "turn"
    """`turn`: one other model at a time; `all`: the mean output of all others, which sends all models to all nodes."""

    @property
    def required_capabilities(self) -> frozenset[Capability]:
        """Learners distill, if the teachers' outputs have a weight."""
        return frozenset({"teaching"} if self.weight else ())

    def init(self, model: Tree) -> Slots:
        """Keep the form of all models; no node has weights yet."""
        return {"model": model, "versions": 0.0}

    def task_slots(self, slots: Slots, node: str, kind: Kind) -> Slots:
        """Send a node its own model, if it has one yet, and its present teacher."""
        own = {"model": slots.get(MODEL + node, slots["model"])}
        if kind != "train":
            return own
        versions = slots["versions"]
        assert not isinstance(versions, Tree)
        others = [name for name in sorted(slots) if name.startswith(MODEL) and name != MODEL + node]
        teachers: Slots = {}
        if others and versions >= self.burn_in:
            teachers = {TEACHER: slots[others[int(versions) % len(others)]]}
            if self.teachers == "all":
                teachers = {f"{TEACHER}.{place}": slots[name] for place, name in enumerate(others)}
        return own | teachers | {"has_own_model": float(MODEL + node in slots)}

    def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
        """Train the own model on labels and on what the teacher says; report its displacement, at first itself."""
        is_own = bool(task.slots["has_own_model"])
        base = tree_slot(task.slots, "model") if is_own else fresh_weights(learner, task.seed)
        learner.load(base)
        metrics = learner.evaluate()
        teachers = [tree_slot(task.slots, name) for name in sorted(task.slots) if name.startswith(TEACHER)]
        extra = self._taught(learner, teachers) if teachers and self.weight else None
        trained = learner.train(self.train_config(task), extra_loss=extra, progress=task.progress)
        made = present_weights(learner)
        return LocalResult(trained.weight, {"model": sub(made, base) if is_own else made}, metrics | trained.metrics)

    def _taught(self, learner: Learner, teachers: list[Tree]) -> ExtraLoss:
        """Return the cross entropy with the mean of the teachers' outputs, which is the mean of those with each."""
        assert isinstance(learner, Teachable)
        losses = [learner.teach(teacher, self.weight / len(teachers)) for teacher in teachers]

        def mean(batch: Any, output: Any) -> Any:
            total = losses[0](batch, output)
            for loss in losses[1:]:
                total = total + loss(batch, output)
            return total

        return mean

    def fold(self, totals: Totals, update: Update, discount: float) -> Totals:
        """Collect each model by itself."""
        totals.add({MODEL + update.node: tree_slot(update.slots, "model")}, 1.0, update.norm)
        return totals

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """Take over the models of the nodes that reported; the others stay."""
        now: Slots = {name: value for name, value in slots.items() if name.startswith(MODEL)}
        for name in sorted(totals.trees):
            now[name] = totals.mean_onto(name, tree_slot(now, name)) if name in now else totals.mean(name)
        versions = slots["versions"]
        assert not isinstance(versions, Tree)
        return {"model": now[min(now)], "versions": versions + 1, **now}
