"""What nodes do that train on without an end, until somebody asks or they have something to say.

Dynamic, periodic and functional dynamic averaging differ in when a node speaks (`speaks`) and in what it tells while it
does not (`going`). The training is the same, and stands here because algorithms do not know each other: each node goes
through its own endless sequence of mini-batches, b of them between two checks, and remembers in its private memory
which one that is and where it is. The sequence's seed is that of the first order that counts, which follows from the
job's seed and the node's name: nodes with equal data train on different batches, and so do jobs with other seeds.
Against a base the report is relative to that, else (in rounds) to the model of the order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf
from typing import ClassVar

from shoal.core.algorithm import Algorithm, Going, Local, Task, tree_slot
from shoal.core.anchor import SYNC
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.learner import Budget, Counted, Learner, Tick, Trained
from shoal.core.message import Metrics
from shoal.core.metric import FINISHED, PIECES
from shoal.core.tree import Slots, Tree, dot, sub

EXACT = 2**53 - 1
"""Whole numbers up to this are exact as a slot's number, which is a float."""


@dataclass(frozen=True)
class Continual(Algorithm):
    """b mini-batches, a check, and on."""

    based: ClassVar[bool] = True

    changeable: ClassVar[tuple[str, ...]] = ("lr",)

    steps: int = 10
    """b: mini-batches between two checks."""
    batch_size: int = 10
    """B: examples per mini-batch."""
    lr: float = 0.1
    """The local learning rate."""
    checks: int = 0
    """Checks after which a node has trained enough; 0: see `epochs`."""
    epochs: float = 0.0
    """Or passes over its own data after which it has; 0 both: go on until the job is stopped."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1:
            raise InvalidJob(f"{self.name}: steps and batch_size must be at least 1", code="job.algorithm")
        if self.checks < 0 or not 0 <= self.epochs < inf:
            raise InvalidJob(f"{self.name}: checks and epochs must not be negative")
        if self.checks and self.epochs:
            raise InvalidJob(f"{self.name}: checks and epochs both say when a node has trained enough: give one")

    def trained(self, metrics: Metrics) -> float | None:
        """Checks made, or passes, of those wanted, if that is said."""
        if self.epochs:
            return min(1.0, metrics.get("train/epochs", 0.0) / self.epochs)
        return min(1.0, metrics.get("train/checks", 0.0) / self.checks) if self.checks else None

    # What differs

    def speaks(self, task: Task, mine: Carry) -> bool:
        """Whether a node reports at this check, though nobody has asked."""
        return True

    def going(self, task: Task, mine: Carry) -> Going:
        """What a node tells that goes on; nothing, if it need not."""
        return Going(mine.slots())

    def begin(self, task: Task, mine: Carry, memory: Slots) -> None:
        """Put into `mine.own` what this order needs beyond that; called before its first piece."""

    def remembered(self, task: Task, mine: Carry) -> Slots:
        """What private memory shall hold beyond where the node is."""
        return {}

    # What is the same

    def local(self, learner: Learner, task: Task, memory: Slots) -> Local | Going:
        """One piece: b mini-batches and a check, unless the coordinator wants to hear now."""
        mine = Carry.of(task, memory)
        mine.whole = self._whole(learner)
        if task.carry is None and task.numbers.get(SYNC, 1.0) and not self._trained_enough(mine):
            mine.begin_span()
        if mine.pieces and (task.recalled or self._trained_enough(mine)):
            return self.report(task, mine)
        if not mine.pieces:
            self.begin(task, mine, memory)
            learner.load(mine.model)
            mine.metrics = learner.evaluate()
        if not self._trained_enough(mine):
            self.train(learner, task, mine)
        if self._trained_enough(mine) or self.speaks(task, mine):
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
            sequence=int(mine.sequence),
        )
        mine.add(learner.train(budget, tick=self._overall(task.tick, mine)), self.steps, learner.model())
        mine.gap = _squared(mine.displacement)

    def report(self, task: Task, mine: Carry) -> Local:
        """w_i - r, its weight, and how far this node is."""
        metrics = mine.told() | {"train/gap": mine.gap, "train/checks": mine.position / self.steps, PIECES: mine.pieces}
        if self.epochs:
            metrics["train/epochs"] = self.epochs * mine.position / mine.whole
        if self._trained_enough(mine):
            metrics[FINISHED] = 1.0
        memory = mine.memory() | self.remembered(task, mine)
        # Whoever trains no more goes on to weigh what it used to: the mean of all must not be that of a few.
        weight = max(mine.seen, mine.longest) if self._trained_enough(mine) else mine.seen
        return Local(max(weight, 1.0), {"model": mine.displacement}, metrics, memory)

    def _overall(self, tick: Tick, mine: Carry) -> Tick:
        """Progress is told as the share of all that this node should train, if that is known."""
        whole, position = mine.whole, mine.position
        return (lambda fraction: tick((position + fraction * self.steps) / whole)) if whole else tick

    def _trained_enough(self, mine: Carry) -> bool:
        return 0 < mine.whole <= mine.position

    def _whole(self, learner: Learner) -> int:
        """Mini-batches that are enough, up to a check; 0: there is no end."""
        if not self.epochs:
            return self.checks * self.steps
        return ceil(self.epochs * self._examples(learner) / self.batch_size / self.steps) * self.steps

    def _examples(self, learner: Learner) -> int:
        """How many examples one pass has."""
        count = learner.examples if isinstance(learner, Counted) else None
        if not count:
            raise LearnerFailed(
                f"{self.name}: with epochs a node must know how many examples it has, and these data do not tell",
                code="learner.data",
                hint="say checks in the job's [algorithm] instead of epochs",
            )
        return count


class Carry:
    """Where a node is: between two pieces as the task's carry, between two orders as its private memory.

    seen: examples since the base was set; longest: the most that these were for any base before; position: mini-batches
    since the job began; sequence: the seed of the order in which these come, 0 before there is one. The rest is of this
    order: model, pieces, loss (summed over mini-batches), batches, gap; `own` is the algorithm's own business.
    """

    LASTING = ("seen", "longest", "position", "sequence", "batches", "loss")

    def __init__(self, model: Tree, reference: Tree) -> None:
        self.model, self.reference = model, reference
        self.pieces = self.gap = 0.0
        self.seen = self.longest = self.position = self.sequence = self.batches = self.loss = 0.0
        self.whole = 0
        """Mini-batches that are enough; 0: there is no end. Not handed over: the learner knows it."""
        self.metrics: Metrics = {}
        self.own: Slots = {}

    @classmethod
    def of(cls, task: Task, memory: Slots) -> Carry:
        """Go on from the last piece, or begin an order from what memory says."""
        slots = task.carry if task.carry is not None else task.slots
        mine = cls(tree_slot(slots, "model"), tree_slot(task.base or task.slots, "model"))
        source = task.carry if task.carry is not None else memory
        for name in (*cls.LASTING, "pieces", "gap"):
            setattr(mine, name, number_slot(source, name))
        mine.sequence = mine.sequence or float(task.seed % EXACT + 1)
        mine.metrics = {n[1:]: v for n, v in slots.items() if n.startswith("=") and not isinstance(v, Tree)}
        mine.own = {n[1:]: v for n, v in slots.items() if n.startswith("~")}
        return mine

    @cached_property
    def displacement(self) -> Tree:
        """w_i - r, computed once for each model."""
        return sub(self.model, self.reference)

    def begin_span(self) -> None:
        """There is a new base."""
        self.longest, self.seen = max(self.longest, self.seen), 0.0

    def add(self, trained: Trained, steps: int, model: Tree) -> None:
        """Another piece has been trained."""
        loss = trained.metrics.get("train/loss", 0.0)
        self.model, self.pieces = model, self.pieces + 1
        self.__dict__.pop("displacement", None)
        self.seen, self.position = self.seen + trained.weight, self.position + steps
        self.batches, self.loss = self.batches + steps, self.loss + loss * steps
        self.metrics["train/loss"] = loss

    def slots(self) -> Slots:
        """For the next piece."""
        numbers = {name: float(getattr(self, name)) for name in (*self.LASTING, "pieces", "gap")}
        told = {f"={name}": value for name, value in self.metrics.items()}
        return {"model": self.model, **numbers, **told, **{f"~{name}": value for name, value in self.own.items()}}

    def memory(self) -> Slots:
        """For the next order."""
        return {name: float(getattr(self, name)) for name in self.LASTING}

    def told(self) -> Metrics:
        """What people see: the loss of the last piece, and the sum of all so far (Kamp's cumulative loss)."""
        return self.metrics | {"train/loss_total": self.loss, "train/batches": self.batches}


def number_slot(slots: Mapping[str, Tree | float], name: str) -> float:
    """The number in that slot; 0 where there is none."""
    value = slots.get(name, 0.0)
    assert not isinstance(value, Tree)
    return value


def _squared(displacement: Tree) -> float:
    """||w - r||^2. Raises `LearnerFailed` when it is no number."""
    gap = dot(displacement, displacement)
    if not gap < float("inf"):
        raise LearnerFailed("the model diverged: its distance to the reference is not finite", hint="lower lr")
    return gap
