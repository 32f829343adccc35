"""DiLoCo: many steps of an inner optimizer at each node, then one step of an outer optimizer at the coordinator.

Douillard, Feng, Rusu, Chhaparia, Donchev, Kuncoro, Ranzato, Szlam, Shen: "DiLoCo: Distributed Low-Communication
Training of Language Models", 2023 (arXiv:2311.08105), Algorithm 1.

    node k        theta_k = H steps of the learner's optimizer (AdamW) from theta
    coordinator   d = sum_k n_k (theta_k - theta) / sum_k n_k,   m = beta m + d
                  theta = theta + server_lr (d + beta m)         (Nesterov)

The inner optimizer's state stays at the node from one round to the next, as its private memory: it changes when a
report counts, and survives a restart. Under the schedule `rounds` H is `steps`. Under `variance` nodes go on until
their models are too far apart, and `steps` are between two checks; that is not in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, cast

from shoal.core.algorithm.algorithm import LocalTask
from shoal.core.algorithm.capability import Capability
from shoal.core.algorithm.continual import ContinualState
from shoal.core.algorithm.learner import KeepsOptimizer, Learner, as_tree
from shoal.core.algorithm.monitored import Monitored
from shoal.core.algorithm.server_optimizer import Momentum
from shoal.core.errors.ranges import FractionBelowOne, NonNegativeFloat, PositiveFloat, PositiveInt
from shoal.core.model.tree import Slots, Tree
from shoal.core.protocol.message import ScheduleFamily
from shoal.core.protocol.metrics import REPORT_AFTER_CHECKS, THETA

STATE = "optimizer"
"""The slot of the inner optimizer's state, in private memory and between two pieces."""


@dataclass(frozen=True)
class DiLoCo(Monitored):
    """Keep the inner optimizer's state, and report the displacement of many steps."""

    name: ClassVar[str] = "diloco"
    title: ClassVar[str] = "DiLoCo (Douillard et al. 2023)"
    schedules: ClassVar[tuple[ScheduleFamily, ...]] = ("synchronous", "monitored")
    mixed_slots: ClassVar[tuple[str, ...]] = ("model", "m")

    steps: PositiveInt = 500
    """H: mini-batches of a round; under `variance`, those between two checks."""
    lr: NonNegativeFloat = 4e-4
    """Learning rate of the inner optimizer."""
    server_lr: PositiveFloat = 0.7
    """Learning rate of the outer optimizer."""
    beta: FractionBelowOne = 0.9
    """Momentum of the outer optimizer."""
    monitor: Literal["linear", "sketch", "naive"] = "naive"
    """Under `variance`: the estimator of the variance."""

    @property
    def rule(self) -> Momentum:
        """The outer optimizer."""
        return Momentum(self.server_lr, self.beta, nesterov=True)

    @property
    def required_capabilities(self) -> frozenset[Capability]:
        """The state of the inner optimizer is read and set."""
        return frozenset({"optimizer_state"})

    def should_report(self, task: LocalTask, mine: ContinualState) -> bool:
        """Return True under `rounds`, where no number of the schedule `variance` comes with a task."""
        return task.numbers.keys().isdisjoint({THETA, REPORT_AFTER_CHECKS}) or super().should_report(task, mine)

    def start_task(self, task: LocalTask, mine: ContinualState, memory: Slots) -> None:
        """Take the inner optimizer's state from private memory."""
        super().start_task(task, mine, memory)
        if STATE in memory:
            mine.own[STATE] = memory[STATE]

    def train_piece(self, learner: Learner, task: LocalTask, mine: ContinualState) -> None:
        """Train from the inner optimizer's state, and keep the one after it."""
        keeper, state = cast("KeepsOptimizer", learner), mine.own.get(STATE)
        keeper.load_optimizer_state(state if isinstance(state, Tree) else None)
        super().train_piece(learner, task, mine)
        mine.own[STATE] = as_tree(keeper.optimizer_state(), f"{type(learner).__name__}.optimizer_state")

    def extra_memory(self, task: LocalTask, mine: ContinualState) -> Slots:
        """Keep the inner optimizer's state beside what the monitor keeps."""
        own = {STATE: mine.own[STATE]} if STATE in mine.own else {}
        return super().extra_memory(task, mine) | own
