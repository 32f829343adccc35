"""Dynamic model averaging: the node's side of it.

Kamp, Adilova, Sicking, Hüger, Schlicht, Wirtz, Wrobel: "Efficient Decentralized Deep Learning by Dynamic Model
Averaging", ECML-PKDD 2018, Algorithms 1 and 2. With the reference r, which all nodes hold, node i trains on its own
data and after every b mini-batches checks its local condition

    ||w_i - r||^2 <= Delta

While it holds the node says nothing. When it is violated, or when the coordinator asks, the node reports w_i - r with
the number of examples that it has trained on since r was set, which weights the mean where rates differ. What the
coordinator makes of it is the schedule's business: `shoal.schedules.drift`.

As long as every node's condition holds, (1/m) sum_i ||w_i - mean||^2 <= Delta: no one has to speak for the models to be
known to be close together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.algorithm import Algorithm, Going, Local, Task, tree_slot
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.learner import Budget, Learner, Tick, Trained
from shoal.core.message import Metrics
from shoal.core.metric import FINISHED
from shoal.core.tree import Slots, Tree, dot, sub


@dataclass(frozen=True)
class DynamicAveraging(Algorithm):
    """Train on, and speak only when the model has drifted away from the reference."""

    name: ClassVar[str] = "dynamic"
    title: ClassVar[str] = "Dynamic model averaging (Kamp et al. 2018)"

    steps: int = 10
    """b: mini-batches between two checks of the local condition."""
    batch_size: int = 10
    """B: examples per mini-batch."""
    lr: float = 0.1
    """The local learning rate."""
    checks: int = 0
    """Checks after which a node has trained enough; 0: go on until the job is stopped."""
    epochs: float = 0.0
    """Not used: nodes train on an endless sequence of mini-batches."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1:
            raise InvalidJob(f"{self.name}: steps and batch_size must be at least 1", code="job.algorithm")
        if self.checks < 0 or self.epochs:
            raise InvalidJob(f"{self.name}: checks must not be negative, and epochs has no meaning here")

    def local(self, learner: Learner, task: Task, memory: Slots) -> Local | Going:
        """One piece: b mini-batches and a check, unless the coordinator wants to hear now."""
        mine = Carry.of(task, memory)
        if mine.pieces and (task.recalled or self._trained_enough(mine)):
            return self.report(task, mine)
        if not mine.pieces:
            learner.load(mine.model)
            mine.metrics = learner.evaluate()
        if not self._trained_enough(mine):
            self.train(learner, task, mine)
        if self.violated(task, mine) or self._trained_enough(mine):
            return self.report(task, mine)
        return self.going(task, mine)

    def train(self, learner: Learner, task: Task, mine: Carry) -> None:
        """b mini-batches on from where this node is."""
        if mine.pieces:
            learner.load(mine.model)
        budget = Budget(
            steps=self.steps,
            batch_size=self.batch_size,
            lr=self.lr,
            seed=task.seed + int(mine.pieces),
            position=int(mine.position),
        )
        mine.add(learner.train(budget, tick=self._overall(task.tick, mine.position)), self.steps, learner.model())
        mine.gap = _squared(mine.model, mine.reference)

    def _overall(self, tick: Tick, position: float) -> Tick:
        """Progress is told as the share of all that this node should train, if that is known."""
        whole = self.checks * self.steps
        return (lambda fraction: tick((position + fraction * self.steps) / whole)) if whole else tick

    def violated(self, task: Task, mine: Carry) -> bool:
        """The local condition; without a threshold yet, a first window of checks."""
        if "window" in task.numbers:
            return mine.pieces >= task.numbers["window"]
        return mine.gap > task.numbers.get("delta", 0.0)

    def going(self, task: Task, mine: Carry) -> Going:
        """Say nothing."""
        return Going(mine.slots())

    def _trained_enough(self, mine: Carry) -> bool:
        return 0 < self.checks * self.steps <= mine.position

    def report(self, task: Task, mine: Carry) -> Local:
        """w_i - r, its weight, and how far this node is."""
        metrics = mine.told() | {"train/gap": mine.gap}
        if self._trained_enough(mine):
            metrics[FINISHED] = 1.0
        slots: Slots = {"model": sub(mine.model, mine.reference)}
        return Local(max(mine.seen, 1.0), slots, metrics, mine.memory())


class Carry:
    """Where a node is: between two pieces as the task's carry, between two orders as its private memory.

    seen: examples since the reference was set; position: mini-batches since the job began. The rest is of this order:
    model, pieces, loss (summed over mini-batches), batches, gap.
    """

    LASTING = ("seen", "position", "batches", "loss")

    def __init__(self, model: Tree, reference: Tree) -> None:
        self.model, self.reference = model, reference
        self.pieces = self.gap = 0.0
        self.seen = self.position = self.batches = self.loss = 0.0
        self.metrics: Metrics = {}

    @classmethod
    def of(cls, task: Task, memory: Slots) -> Carry:
        """Go on from the last piece, or begin an order from what memory says."""
        slots = task.carry if task.carry is not None else task.slots
        mine = cls(tree_slot(slots, "model"), tree_slot(task.base, "model"))
        source = task.carry if task.carry is not None else memory
        for name in (*cls.LASTING, "pieces", "gap"):
            value = source.get(name, 0.0)
            assert not isinstance(value, Tree)
            setattr(mine, name, value)
        if task.carry is None and task.numbers.get("sync"):
            mine.seen = 0.0
        mine.metrics = {n[1:]: v for n, v in slots.items() if n.startswith("=") and not isinstance(v, Tree)}
        return mine

    def add(self, trained: Trained, steps: int, model: Tree) -> None:
        """Another piece has been trained."""
        loss = trained.metrics.get("train/loss", 0.0)
        self.model, self.pieces = model, self.pieces + 1
        self.seen, self.position = self.seen + trained.weight, self.position + steps
        self.batches, self.loss = self.batches + steps, self.loss + loss * steps
        self.metrics["train/loss"] = loss

    def slots(self) -> Slots:
        """For the next piece."""
        numbers = {name: float(getattr(self, name)) for name in (*self.LASTING, "pieces", "gap")}
        return {"model": self.model, **numbers, **{f"={name}": value for name, value in self.metrics.items()}}

    def memory(self) -> Slots:
        """For the next order."""
        return {name: float(getattr(self, name)) for name in self.LASTING}

    def told(self) -> Metrics:
        """What people see: the loss of the last piece, and the sum of all so far (Kamp's cumulative loss)."""
        return self.metrics | {"train/loss_total": self.loss, "train/batches": self.batches}


def _squared(model: Tree, reference: Tree) -> float:
    """||w - r||^2. Raises `LearnerFailed` when it is no number."""
    difference = sub(model, reference)
    gap = dot(difference, difference)
    if not gap < float("inf"):
        raise LearnerFailed("the model diverged: its distance to the reference is not finite", hint="lower lr")
    return gap
