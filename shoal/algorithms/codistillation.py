"""Online codistillation: every node keeps a model of its own, and learns from what another one's says.

Anil, Pereyra, Passos, Ormandi, Dahl, Hinton: "Large scale distributed neural network training through online
distillation", ICLR 2018, Algorithm 1. Nothing is averaged. After a burn-in, node i trains on

    CE(y, F_i(x)) + weight * CE(softmax(F_j(x)), F_i(x))

where F_j is another node's model as it was when it last reported: a stale teacher, in turn one of all others. With
`teachers` = "all" the second term has the mean of all others' softmax(F_j(x)), as Algorithm 1 writes it: every order
then carries all models. Models begin differently, each from a seed of its own: alike ones would have nothing to teach.

The hub holds a model for each node. The job's model, which people download, is that of the first of the nodes by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from shoal.core.algorithm import Algorithm, Going, Local, Task, Update, tree_slot
from shoal.core.capability import Capability
from shoal.core.errors import InvalidJob
from shoal.core.learner import ExtraLoss, Learner, Teachable
from shoal.core.message import Kind
from shoal.core.sums import Totals
from shoal.core.tree import Slots, Tree, sub

OWN, TEACHER = "of.", "teacher"
"""Begin the slots of a node's model, and of a teacher in an order."""


@dataclass(frozen=True)
class Codistillation(Algorithm):
    """Models that teach each other. Learners must be able to (`TorchLearner` is)."""

    name: ClassVar[str] = "codistillation"
    title: ClassVar[str] = "Online codistillation (Anil et al. 2018)"
    alike: ClassVar[bool] = True
    gossips: ClassVar[bool] = False

    weight: float = 1.0
    """Of the teacher's word beside that of the labels."""
    burn_in: int = 2
    """Versions before teachers are heard: who knows nothing yet teaches nothing."""
    teachers: Literal["turn", "all"] = "turn"
    """One other model at a time, in turn; or the mean of all others' words, for which all models go to all nodes."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight < float("inf") or self.burn_in < 0:
            raise InvalidJob(
                f"codistillation: weight is {self.weight} and burn_in {self.burn_in}, but neither may be negative",
                code="job.algorithm",
            )

    @property
    def needs(self) -> frozenset[Capability]:
        """Learners are taught, if the teachers' word has a weight."""
        return frozenset({"teaching"} if self.weight else ())

    def init(self, model: Tree) -> Slots:
        """The form of all models; nobody's weights yet."""
        return {"model": model, "made": 0.0}

    def order(self, slots: Slots, node: str, kind: Kind) -> Slots:
        """A node's own model, if it has one yet, and its teacher of this time."""
        own = {"model": slots.get(OWN + node, slots["model"])}
        if kind != "train":
            return own
        made = slots["made"]
        assert not isinstance(made, Tree)
        others = [name for name in sorted(slots) if name.startswith(OWN) and name != OWN + node]
        heard: Slots = {}
        if others and made >= self.burn_in:
            heard = {TEACHER: slots[others[int(made) % len(others)]]}
            if self.teachers == "all":
                heard = {f"{TEACHER}.{place}": slots[name] for place, name in enumerate(others)}
        return own | heard | {"begun": float(OWN + node in slots)}

    def local(self, learner: Learner, task: Task, memory: Slots) -> Local | Going:
        """Train the own model on labels and on what the teacher says; report its displacement, at first itself."""
        begun = bool(task.slots["begun"])
        base = tree_slot(task.slots, "model") if begun else learner.init(task.seed)
        learner.load(base)
        metrics = learner.evaluate()
        teachers = [tree_slot(task.slots, name) for name in sorted(task.slots) if name.startswith(TEACHER)]
        extra = self._taught(learner, teachers) if teachers and self.weight else None
        trained = learner.train(self.budget(task), extra_loss=extra, tick=task.tick)
        made = learner.model()
        return Local(trained.weight, {"model": sub(made, base) if begun else made}, metrics | trained.metrics)

    def _taught(self, learner: Learner, teachers: list[Tree]) -> ExtraLoss:
        """The cross entropy with the mean of their words, which is the mean of those with each."""
        assert isinstance(learner, Teachable)
        words = [learner.teach(teacher, self.weight / len(teachers)) for teacher in teachers]

        def mean(batch: Any, output: Any) -> Any:
            total = words[0](batch, output)
            for word in words[1:]:
                total = total + word(batch, output)
            return total

        return mean

    def fold(self, totals: Totals, update: Update, discount: float) -> Totals:
        """Each by itself."""
        totals.add({OWN + update.node: tree_slot(update.slots, "model")}, 1.0, update.norm)
        return totals

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """The models of those that reported go on; nobody else's changes."""
        now: Slots = {name: value for name, value in slots.items() if name.startswith(OWN)}
        for name in sorted(totals.trees):
            now[name] = totals.mean_onto(name, tree_slot(now, name)) if name in now else totals.mean(name)
        made = slots["made"]
        assert not isinstance(made, Tree)
        return {"model": now[min(now)], "made": made + 1, **now}
