"""Periodic averaging: after every b mini-batches all models are averaged, whatever has become of them.

McDonald, Hall, Mann: "Distributed Training Strategies for the Structured Perceptron", NAACL 2010; Kamp et al.,
ECML-PKDD 2018, section 2, where it is the operator sigma_b: continuous averaging with b = 1. Every node goes on in its
own sequence of mini-batches. The schedule `periodic` averages all of the nodes, a random share of them while the others
train on, or none before the end; under `rounds` it is federated averaging with b local steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.algorithm.algorithm import LocalTask
from shoal.core.algorithm.continual import Continual, ContinualState
from shoal.core.errors.ranges import PositiveInt
from shoal.core.model.vector_parts import ShardScope


@dataclass(frozen=True)
class PeriodicAveraging(Continual):
    """Report after every b mini-batches, or wait for the coordinator."""

    name: ClassVar[str] = "periodic"
    title: ClassVar[str] = "Periodic averaging (sigma_b)"
    shardable: ClassVar[ShardScope] = "weights"

    steps: PositiveInt = 10
    """b: mini-batches between two averagings; 1: continuous averaging."""

    def should_report(self, task: LocalTask, mine: ContinualState) -> bool:
        """Return True, unless the schedule asks by itself: then the task's number "fraction" is less than 1."""
        return task.numbers.get("fraction", 1.0) >= 1
