"""Algorithms. The base class is federated averaging; a subclass overrides what differs.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, Algorithm 1. In displacements d_k = w_k - w_t:

w_{t+1} = w_t + sum_k n_k d_k / sum_k n_k      over the nodes k that reported

An algorithm is a frozen dataclass: its fields are its configuration, its form in the dashboard and its row in the docs.
It holds no state. Durable state lives in *slots* (named trees and numbers, stored by the hub) or in a node's private
*memory* (slots too, committed only when the node's report was acknowledged).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from shoal.core.algorithm.capability import Capability, check_learner, train
from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.learner import (
    Learner,
    Progress,
    TrainConfig,
    enter_stage,
    fresh_weights,
    grown_weights,
    mean_gradient,
    no_progress,
    present_weights,
)
from shoal.core.errors import InvalidPayload, LearnerFailed
from shoal.core.errors.ranges import NonNegativeFloat, NonNegativeInt, check_ranges
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Layout, Slots, Tree, sub
from shoal.core.model.vector_parts import Part, ShardScope
from shoal.core.protocol.message import Kind, Metrics, ScheduleFamily, TaskId, TaskStatus, immutable
from shoal.core.protocol.metrics import EVAL_WEIGHT, METRIC_RULE, PROBE, metrics_fault, stage_of


@immutable
class LocalTask:
    """A task with its blob opened."""

    id: TaskId
    kind: Kind
    version: int
    seed: int
    slots: Slots
    progress: Progress = no_progress
    reference: Slots = field(default_factory=dict)
    """The reference model's slots, if the task names one."""
    numbers: Metrics = field(default_factory=dict)
    """Numbers from the schedule."""
    check: int = 0
    """Number of times that this task came to `Continue`."""
    carry: Slots | None = None
    """The slots of the last `Continue`; None at the first time."""
    is_recalled: bool = False
    """True if the hub wants the report now."""


@dataclass(frozen=True)
class Continue:
    """Nothing to report yet: do the next piece. `told` (None: nothing) and `state` go to the hub as a status."""

    carry: Slots
    values: Metrics | None = None
    state: bytes = b""


@dataclass(frozen=True)
class Update:
    """A report with its blob opened. `norm` bounds the magnitude of every number in it; for statistics, which are
    values, their distance from the present ones."""

    node: str
    version: int
    weight: float
    slots: Slots
    norm: float
    sent: Slots = field(default_factory=dict)
    """Slots that the node was sent with the task, if the algorithm asks for them (`Algorithm.needs_sent_model`)."""


@immutable
class LocalResult:
    """A node's result of a task: its update, and its private memory afterwards (None: unchanged)."""

    weight: float
    slots: Slots = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)
    memory: Slots | None = None


def tree_slot(slots: Slots, name: str) -> Tree:
    """Return the tree in that slot. Raises `InvalidPayload` if the slot is missing or holds a number."""
    value = slots.get(name)
    if not isinstance(value, Tree):
        raise InvalidPayload(f"slot {name!r} should hold a tree", code="payload.slots")
    return value


@dataclass(frozen=True)
class Algorithm:
    """Federated averaging (FedAvg). Fields: what a node does with a task."""

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "Federated averaging (McMahan et al. 2017)"
    schedules: ClassVar[tuple[ScheduleFamily, ...]] = ("synchronous", "asynchronous")
    """Families of schedules that it works with; a job that names no schedule gets one of the first family.
    "synchronous" alone: `step` cannot use reports on older versions."""
    continual: ClassVar[bool] = False
    """True if nodes train on after a check, relative to a reference that stays for several versions."""
    mixed_slots: ClassVar[tuple[str, ...]] = ("model",)
    """Trees of `init`, all of them, if nodes can train on without the hub: peers mix them, and take them along from the
    hub and back. `step` must be linear in them and in the update, so that peers that mix fully do what the hub would.
    Empty: only the hub can make steps."""

    shardable: ClassVar[ShardScope] = ""
    """Kind of split over shards (`shoal.core.algorithm.sharding`): "weights": `step` handles each weight by
    itself; "sums": it also needs sums over the whole model, for which `step_part` asks; "": it cannot.
    """

    needs_sent_model: ClassVar[bool] = False
    """True if `fold` needs what the node was sent (`Update.sent`), to rebuild a model from its difference to that."""

    changeable: ClassVar[tuple[str, ...]] = ("epochs", "batch_size", "lr")
    """Fields that an operator may change while a job runs: those that every task reads again."""

    unweighted: ClassVar[bool] = False
    """True if every report counts alike; otherwise by its weight."""

    exact_updates: ClassVar[bool] = False
    """True if updates are not displacements, and must arrive as they are: filters are refused, norms not compared."""

    trains_by_config: ClassVar[bool] = False
    """True if a `local` of its own trains as this class does: from the model that was sent, by `train_config` and with
    `correction`. A simulation may then train many nodes at once."""

    @property
    def required_capabilities(self) -> frozenset[Capability]:
        """Return what a learner must be able to do beyond its six methods; `shoal.core.algorithm.capability` refuses
        others."""
        return frozenset()

    epochs: NonNegativeFloat = 1.0
    """E: passes over the local data per round."""
    batch_size: NonNegativeInt = 32
    """B: examples per local step; 0 takes all at once."""
    lr: NonNegativeFloat = 0.1
    """Local learning rate."""

    def __post_init__(self) -> None:
        """Check the fields' ranges. Raises `InvalidJob`."""
        check_ranges(self, "job.algorithm")

    def init(self, model: Tree) -> Slots:
        """Return the hub's slots for an initial model."""
        return {"model": model}

    def task_slots(self, slots: Slots, node: str, kind: Kind) -> Slots:
        """Return the slots that a node is sent with a task of that kind."""
        return {"model": slots["model"]}

    def update_layout(self, slots: Slots) -> dict[str, Layout | None]:
        """Return the slots of an update and their layouts (None: a number); a payload is checked against them
        unread."""
        return {"model": tree_slot(slots, "model").layout}

    def train_config(self, task: LocalTask) -> TrainConfig:
        """Return how much a node trains for a task."""
        return TrainConfig(epochs=self.epochs, batch_size=self.batch_size, lr=self.lr, seed=task.seed)

    def correction(self, task: LocalTask, memory: Slots) -> Correction | None:
        """Return the correction of a task's gradients, new for each call; None if there is none."""
        return None

    def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
        """Run the node's part: evaluate the received model, train on it, return the displacement."""
        base = tree_slot(task.slots, "model")
        learner.load(base)
        metrics = learner.evaluate()
        trained = train(learner, self.train_config(task), self.correction(task, memory), task.progress)
        return LocalResult(trained.weight, {"model": sub(present_weights(learner), base)}, metrics | trained.metrics)

    def training_progress(self, metrics: Metrics) -> float | None:
        """Return the trained share of all training, from a node's last report; None if it is unknown."""
        return None

    def estimate_variance(self, statuses: Sequence[TaskStatus]) -> float | None:
        """Return the estimate that a schedule compares with its threshold, from the latest status of every node; None
        if there is none."""
        return None

    def staleness_weight(self, staleness: int) -> float:
        """Return the factor on the weight of a report that is `staleness` versions old."""
        return 1.0

    def fold(self, totals: Totals, update: Update, discount: float) -> Totals:
        """Take one report into the round's totals."""
        totals.add(update.slots, self.fold_weight(update, discount), update.norm)
        return totals

    def fold_weight(self, update: Update, discount: float) -> float:
        """Return the weight with which `fold` adds a report."""
        return update.weight * discount if self.uses_weights else discount

    @property
    def uses_weights(self) -> bool:
        """Return True if a report's effect depends on the weight that its node claims."""
        return not self.unweighted

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """Compute the next version's slots. Uses the totals up."""
        return {**slots, "model": totals.mean_onto("model", tree_slot(slots, "model"))}

    def step_part(self, slots: Slots, totals: Totals) -> Part[Slots]:
        """Run `step` on a part of the model: yields the part's share of sums over all of it
        (`shoal.core.model.vector_parts`)."""
        yield from ()
        return self.step(slots, totals)


def run_task(algorithm: Algorithm, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
    """Do a task of any kind, or its next piece: the node's part, the same in every world.

    Raises `InvalidJob` if the learner lacks a needed method, `LearnerFailed` for metrics that cannot be reported.
    """
    result = _run_task(algorithm, learner, task, memory)
    if isinstance(result, LocalResult) and (text := metrics_fault(result.metrics)):
        raise LearnerFailed(f"invalid metrics from the learner: {text}", code="learner.metrics", hint=METRIC_RULE)
    return result


def _run_task(algorithm: Algorithm, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
    stage = stage_of(task.numbers)
    if task.kind == "init" and stage:
        return LocalResult(0.0, {"model": grown_weights(learner, tree_slot(task.slots, "model"), stage, task.seed)})
    enter_stage(learner, stage)
    if task.kind != "evaluate":
        check_learner(algorithm, learner)
    if task.kind == "init":
        return LocalResult(0.0, {"model": fresh_weights(learner, task.seed)})
    if task.kind == "evaluate":
        learner.load(tree_slot(task.slots, "model"))
        if task.numbers.get(PROBE):
            config = TrainConfig(batch_size=algorithm.batch_size, seed=task.seed)
            trained, _ = mean_gradient(learner, config, task.progress)
            return LocalResult(trained.weight, {}, trained.metrics)
        metrics = learner.evaluate()
        return LocalResult(max(0.0, metrics.get(EVAL_WEIGHT, 0.0)), {}, metrics)
    return algorithm.local(learner, task, memory)
