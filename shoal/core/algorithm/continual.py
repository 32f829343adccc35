"""Continual training: nodes train without end, until the hub asks or they have something to report.

Dynamic, periodic and functional dynamic averaging differ in when a node reports (`speaks`) and in what it sends
meanwhile (`going`). The training is the same: each node goes through its own endless sequence of mini-batches, b of
them between two checks, and keeps its position in private memory. The sequence has the seed of the first counted task,
which follows from the job's seed and the node's name: nodes with equal data train on different batches, and so do jobs
with other seeds. A report is relative to the reference, else (in rounds) to the model of the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import ClassVar

from shoal.core.algorithm.algorithm import Algorithm, Continue, LocalResult, LocalTask, tree_slot
from shoal.core.algorithm.learner import CountsExamples, Learner, Progress, TrainConfig, Trained, present_weights
from shoal.core.algorithm.reference_model import NEW_REFERENCE
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.errors.ranges import NonNegativeFloat, NonNegativeInt, PositiveInt
from shoal.core.model.tree import Slots, Tree, dot, sub
from shoal.core.protocol.message import Metrics, ScheduleFamily
from shoal.core.protocol.metrics import CHECKS_SINCE_TASK, FINISHED

EXACT = 2**53 - 1
"""Whole numbers up to this are exact as a slot's number, which is a float."""


@dataclass(frozen=True)
class Continual(Algorithm):
    """b mini-batches, a check, and on."""

    schedules: ClassVar[tuple[ScheduleFamily, ...]] = ("periodic", "synchronous")
    continual: ClassVar[bool] = True

    changeable: ClassVar[tuple[str, ...]] = ("lr",)

    steps: PositiveInt = 10
    """b: mini-batches between two checks."""
    batch_size: PositiveInt = 10
    """B: examples per mini-batch."""
    lr: NonNegativeFloat = 0.1
    """Local learning rate."""
    local_steps: NonNegativeInt = 0
    """Mini-batches that each node trains on, rounded up to a multiple of `steps`; 0: use `epochs`."""
    epochs: NonNegativeFloat = 0.0
    """Passes over the local data that each node makes, instead of `local_steps`; both 0: until the job is stopped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_steps and self.epochs:
            raise InvalidJob(f"{self.name}: local_steps and epochs both limit the training: give one")

    def training_progress(self, metrics: Metrics) -> float | None:
        """Return the fraction of `local_steps` or `epochs` that is done; None where neither is set."""
        if self.epochs:
            return min(1.0, metrics.get("train/epochs", 0.0) / self.epochs)
        made = metrics.get("train/checks", 0.0) * self.steps
        return min(1.0, made / self.local_steps) if self.local_steps else None

    # Methods that differ

    def should_report(self, task: LocalTask, mine: ContinualState) -> bool:
        """Return True if a node reports at this check without having been asked."""
        return True

    def make_status(self, task: LocalTask, mine: ContinualState) -> Continue:
        """Return the status of a node that goes on; an empty one if it need not send any."""
        return Continue(mine.slots())

    def start_task(self, task: LocalTask, mine: ContinualState, memory: Slots) -> None:
        """Put into `mine.own` what this task needs beyond that; called before its first piece."""

    def extra_memory(self, task: LocalTask, mine: ContinualState) -> Slots:
        """Return what private memory holds beyond the node's position."""
        return {}

    # Common methods

    def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
        """Do one piece: b mini-batches and a check, unless the coordinator wants the report now."""
        mine = ContinualState.resume(task, memory)
        mine.whole = self._whole(learner)
        if task.carry is None and task.numbers.get(NEW_REFERENCE, 1.0) and not self._trained_enough(mine):
            mine.start_span()
        if mine.checks_made and (task.is_recalled or self._trained_enough(mine)):
            return self.make_report(task, mine)
        if not mine.checks_made:
            self.start_task(task, mine, memory)
            learner.load(mine.model)
            mine.metrics = learner.evaluate()
        if not self._trained_enough(mine):
            self.train_piece(learner, task, mine)
        if self._trained_enough(mine) or self.should_report(task, mine):
            return self.make_report(task, mine)
        return self.make_status(task, mine)

    def train_piece(self, learner: Learner, task: LocalTask, mine: ContinualState) -> None:
        """Train b mini-batches from this node's position on."""
        if mine.checks_made:
            learner.load(mine.model)
        config = TrainConfig(
            steps=self.steps,
            batch_size=self.batch_size,
            lr=self.lr,
            seed=task.seed + int(mine.checks_made),
            batch_index=int(mine.batch_index),
            sequence_seed=int(mine.sequence_seed),
        )
        trained = learner.train(config, progress=_overall(task.progress, mine, self.steps))
        mine.add_piece(trained, self.steps, present_weights(learner))
        mine.divergence = _squared(mine.update)

    def make_report(self, task: LocalTask, mine: ContinualState) -> LocalResult:
        """Return w_i - r, its weight, and this node's position."""
        metrics = mine.report_metrics() | {
            "train/divergence": mine.divergence,
            "train/checks": mine.batch_index / self.steps,
            CHECKS_SINCE_TASK: mine.checks_made,
        }
        if self.epochs:
            metrics["train/epochs"] = self.epochs * mine.batch_index / mine.whole
        if self._trained_enough(mine):
            metrics[FINISHED] = 1.0
        memory = mine.memory() | self.extra_memory(task, mine)
        # A node that has finished keeps its largest weight: otherwise the mean would be that of the slower nodes alone.
        weight = (
            max(mine.examples_since_reference, mine.examples_max)
            if self._trained_enough(mine)
            else mine.examples_since_reference
        )
        return LocalResult(max(weight, 1.0), {"model": mine.update}, metrics, memory)

    def _trained_enough(self, mine: ContinualState) -> bool:
        return 0 < mine.whole <= mine.batch_index

    def _whole(self, learner: Learner) -> int:
        """Return the number of mini-batches that are enough, up to a check; 0 for no end."""
        if not self.epochs:
            return ceil(self.local_steps / self.steps) * self.steps
        return ceil(self.epochs * self._examples(learner) / self.batch_size / self.steps) * self.steps

    def _examples(self, learner: Learner) -> int:
        """Return the number of examples in one pass."""
        count = learner.examples if isinstance(learner, CountsExamples) else None
        if not count:
            raise LearnerFailed(
                f"{self.name}: with epochs a node must know how many examples it has, and these data do not tell",
                code="learner.data",
                hint="set local_steps in the job's [algorithm] instead of epochs",
            )
        return count


class ContinualState:
    """A node's position: between two pieces as the task's carry, between two tasks as its private memory.

    `own` belongs to the algorithm.
    """

    LASTING = (
        "examples_since_reference",
        "examples_max",
        "batch_index",
        "sequence_seed",
        "batches_trained",
        "loss_total",
    )
    """Numbers that a node keeps between two tasks; `checks_made` and `divergence` are of one task."""

    def __init__(self, model: Tree, reference: Tree) -> None:
        self.model, self.reference = model, reference
        self.checks_made = self.divergence = 0.0
        self.examples_since_reference = 0.0
        self.examples_max = 0.0
        """The most examples since any earlier reference."""
        self.batch_index = 0.0
        """Index of the next mini-batch in the node's sequence."""
        self.sequence_seed = 0.0
        """Seed of the order of that sequence; 0 before the first task."""
        self.batches_trained = self.loss_total = 0.0
        """Mini-batches of the job so far, and the sum of their losses."""
        self.whole = 0
        """Mini-batches that are enough; 0: there is no end. Not handed over: the learner knows it."""
        self.metrics: Metrics = {}
        self.own: Slots = {}

    @classmethod
    def resume(cls, task: LocalTask, memory: Slots) -> ContinualState:
        """Go on from the last piece, or begin a task from what memory says."""
        slots = task.carry if task.carry is not None else task.slots
        mine = cls(tree_slot(slots, "model"), tree_slot(task.reference or task.slots, "model"))
        source = task.carry if task.carry is not None else memory
        for name in (*cls.LASTING, "checks_made", "divergence"):
            setattr(mine, name, number_slot(source, name))
        mine.sequence_seed = mine.sequence_seed or float(task.seed % EXACT + 1)
        mine.metrics = {n[1:]: v for n, v in slots.items() if n.startswith("=") and not isinstance(v, Tree)}
        mine.own = {n[1:]: v for n, v in slots.items() if n.startswith("~")}
        return mine

    @cached_property
    def update(self) -> Tree:
        """w_i - r, computed once for each model."""
        return sub(self.model, self.reference)

    def start_span(self) -> None:
        """Begin to count for a new reference."""
        self.examples_max, self.examples_since_reference = max(self.examples_max, self.examples_since_reference), 0.0

    def add_piece(self, trained: Trained, steps: int, model: Tree) -> None:
        """Add another trained piece."""
        loss = trained.metrics.get("train/loss", 0.0)
        self.model, self.checks_made = model, self.checks_made + 1
        self.__dict__.pop("update", None)
        self.examples_since_reference, self.batch_index = (
            self.examples_since_reference + trained.weight,
            self.batch_index + steps,
        )
        self.batches_trained, self.loss_total = self.batches_trained + steps, self.loss_total + loss * steps
        self.metrics["train/loss"] = loss

    def slots(self) -> Slots:
        """Return the slots for the next piece."""
        numbers = {name: float(getattr(self, name)) for name in (*self.LASTING, "checks_made", "divergence")}
        told = {f"={name}": value for name, value in self.metrics.items()}
        return {"model": self.model, **numbers, **told, **{f"~{name}": value for name, value in self.own.items()}}

    def memory(self) -> Slots:
        """Return the slots for the next task."""
        return {name: float(getattr(self, name)) for name in self.LASTING}

    def report_metrics(self) -> Metrics:
        """Return metrics for people: the loss of the last piece, and the sum of all so far (Kamp's cumulative loss)."""
        return self.metrics | {"train/loss_total": self.loss_total, "train/batches": self.batches_trained}


def _overall(progress: Progress, mine: ContinualState, steps: int) -> Progress:
    """Report progress as the fraction of the whole training, if its length is known."""
    whole, position = mine.whole, mine.batch_index
    return (lambda fraction: progress((position + fraction * steps) / whole)) if whole else progress


def number_slot(slots: Mapping[str, Tree | float], name: str) -> float:
    """Return the number in that slot; 0 if there is none."""
    value = slots.get(name, 0.0)
    assert not isinstance(value, Tree)
    return value


def _squared(displacement: Tree) -> float:
    """Return ||w - r||^2. Raises `LearnerFailed` if it is not a number."""
    gap = dot(displacement, displacement)
    if not gap < float("inf"):
        raise LearnerFailed("the model diverged: its distance to the reference is not finite", hint="lower lr")
    return gap
