"""Dynamic model averaging: the node's side.

Kamp, Adilova, Sicking, Hüger, Schlicht, Wirtz, Wrobel: "Efficient Decentralized Deep Learning by Dynamic Model
Averaging", ECML-PKDD 2018, Algorithms 1 and 2. With the reference r, which all nodes hold, node i trains on its own
data and after every b mini-batches checks its local condition

||w_i - r||^2 <= Delta

While it holds, the node sends nothing. When it is violated, or when the coordinator asks, the node reports w_i - r with
the number of examples that it has trained on since r was set, which weights the mean where rates differ. The schedule
decides what follows: `shoal.schedules.divergence`.

While every node's condition holds, (1/m) sum_i ||w_i - mean||^2 <= Delta: the models are known to be close together
without communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.algorithm.algorithm import LocalTask
from shoal.core.algorithm.continual import Continual, ContinualState
from shoal.core.errors.ranges import PositiveInt
from shoal.core.protocol.message import ScheduleFamily
from shoal.core.protocol.metrics import REPORT_AFTER_CHECKS


@dataclass(frozen=True)
class DynamicAveraging(Continual):
    """Train on, and report only when the model is too far from the reference."""

    name: ClassVar[str] = "dynamic"
    title: ClassVar[str] = "Dynamic model averaging (Kamp et al. 2018)"
    schedules: ClassVar[tuple[ScheduleFamily, ...]] = ("conditional",)

    steps: PositiveInt = 10
    """b: mini-batches between two checks of the local condition."""

    def should_report(self, task: LocalTask, mine: ContinualState) -> bool:
        """Return True if the local condition is violated, or, without a threshold yet, after a first window of
        checks.

        A schedule without a threshold gets every check, unless it asks by itself: the number "fraction" is below 1.
        """
        if REPORT_AFTER_CHECKS in task.numbers:
            return mine.checks_made >= task.numbers[REPORT_AFTER_CHECKS]
        if "delta" not in task.numbers:
            return task.numbers.get("fraction", 1.0) >= 1
        return mine.divergence > task.numbers["delta"]
