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

from shoal.core.algorithm import Task
from shoal.core.continual import Carry, Continual
from shoal.core.schedule import WINDOW


@dataclass(frozen=True)
class DynamicAveraging(Continual):
    """Train on, and speak only when the model has drifted away from the reference."""

    name: ClassVar[str] = "dynamic"
    title: ClassVar[str] = "Dynamic model averaging (Kamp et al. 2018)"

    steps: int = 10
    """b: mini-batches between two checks of the local condition."""

    def speaks(self, task: Task, mine: Carry) -> bool:
        """The local condition is violated; without a threshold yet, a first window of checks is over.

        A schedule that knows no threshold hears of every check, unless it says that it will ask: "share" below 1.
        """
        if WINDOW in task.numbers:
            return mine.pieces >= task.numbers[WINDOW]
        if "delta" not in task.numbers:
            return task.numbers.get("share", 1.0) >= 1
        return mine.gap > task.numbers["delta"]
