"""Continual training under a monitor: a node tells at each check how far its model has gone, and reports when asked.

With u_i = w_i - r the variance of the models is

Var = mean_i ||u_i||^2 - ||mean_i u_i||^2

and a node's message bounds it from above without u_i itself (Theologitis, Frangias, Anestis, Samoladas, Deligiannakis:
"Communication-Efficient Distributed Deep Learning via Federated Dynamic Averaging", EDBT 2025):

naive     ||u_i||^2                                     Var <= mean ||u_i||^2
linear    and <xi, u_i>, xi = (r - r') / ||r - r'||     Var <= mean ||u_i||^2 - (mean <xi, u_i>)^2
sketch    and an AMS sketch of u_i, 5 KB                Var <= mean ||u_i||^2 - ||sketch(mean u_i)||^2 / (1 + e)
                                                            in 995 of 1,000 draws of the hashes, one for each r

r' is the reference before r, which each node keeps in its private memory. A node that does not know it (it has just
joined) says so, and until the next synchronization all nodes count as naive. The schedule `shoal.schedules.variance`
compares the estimate with its threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, Literal

import numpy as np

from shoal.core.algorithm.algorithm import Continue, LocalTask, tree_slot
from shoal.core.algorithm.continual import Continual, ContinualState, number_slot
from shoal.core.algorithm.reference_model import NEW_REFERENCE
from shoal.core.algorithm.server_optimizer import UpdateRule, optimizer_slots, take_step
from shoal.core.errors.ranges import PositiveInt
from shoal.core.model.aggregation import Totals
from shoal.core.model.sketch import BUCKETS, EPSILON, NBYTES, ROWS, Sketch, sketch, squared_norm
from shoal.core.model.tree import Slots, Tree, dot, norm, sub
from shoal.core.protocol.message import ScheduleFamily, TaskStatus
from shoal.core.protocol.metrics import REPORT_AFTER_CHECKS

UNKNOWN = -1.0
"""Instead of the version of r', when a node does not have it."""


@dataclass(frozen=True)
class Monitored(Continual):
    """Nodes with a monitor, and a coordinator with an optimizer of its own, if the subclass says which `rule`."""

    schedules: ClassVar[tuple[ScheduleFamily, ...]] = ("monitored",)

    steps: PositiveInt = 10
    """b: mini-batches between two checks. At each check a node sends its monitor's state."""
    monitor: Literal["linear", "sketch", "naive"] = "linear"
    """Estimator of the variance. `sketch` is the most accurate and sends 7 KB per node and check."""

    @property
    def rule(self) -> UpdateRule | None:
        """The coordinator's optimizer; None: the mean becomes the model."""
        return None

    # The node

    def should_report(self, task: LocalTask, mine: ContinualState) -> bool:
        """Return True at the end of a first window, or after the longest span, whatever the variance is."""
        return REPORT_AFTER_CHECKS in task.numbers and mine.checks_made >= task.numbers[REPORT_AFTER_CHECKS]

    def start_task(self, task: LocalTask, mine: ContinualState, memory: Slots) -> None:
        """Compute xi, if this task sets a new reference and private memory has the one before."""
        mine.own["before"] = UNKNOWN
        before = memory.get("base")
        if self.monitor != "linear" or not isinstance(before, Tree) or not task.numbers.get(NEW_REFERENCE):
            return
        xi = sub(mine.reference, before)
        length = norm(xi)
        if 0 < length < float("inf"):
            mine.own |= {"before": number_slot(memory, "base_version"), "xi": xi, "length": length}

    def make_status(self, task: LocalTask, mine: ContinualState) -> Continue:
        """Return the monitor's few bytes."""
        metrics = {"gap": mine.divergence}
        if self.monitor == "linear":
            metrics["before"] = number_slot(mine.own, "before")
            if "xi" in mine.own:
                along = dot(tree_slot(mine.own, "xi"), mine.update) / number_slot(mine.own, "length")
                metrics["along"] = along
        if self.monitor != "sketch":
            return Continue(mine.slots(), metrics)
        metrics["draw"] = float(task.version)
        return Continue(mine.slots(), metrics, sketch(mine.update, task.version).astype("<f4").tobytes())

    def extra_memory(self, task: LocalTask, mine: ContinualState) -> Slots:
        """Keep the reference, which will be r'."""
        if self.monitor != "linear":
            return {}
        version = float(task.version) if task.numbers.get(NEW_REFERENCE) else UNKNOWN
        return {"base": mine.reference, "base_version": version}

    # The coordinator

    def estimate_variance(self, statuses: Sequence[TaskStatus]) -> float | None:
        """Return an upper bound on the variance of the models (with sketches: most probably)."""
        spread = fmean(status.values.get("gap", 0.0) for status in statuses)
        return max(0.0, spread - _mean_norm_bound(self.monitor, statuses))

    def init(self, model: Tree) -> Slots:
        """Return the model, and the optimizer's moments."""
        return {"model": model} if self.rule is None else optimizer_slots(self.rule, model)

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """Return the mean, or the model after a step of the optimizer."""
        averaged = totals.mean_onto("model", tree_slot(slots, "model"))
        return {**slots, "model": averaged} if self.rule is None else take_step(self.rule, slots, averaged)


def _mean_norm_bound(monitor: str, statuses: Sequence[TaskStatus]) -> float:
    """Return a lower bound on ||mean u_i||^2."""
    if monitor == "linear":
        before = {status.values.get("before", UNKNOWN) for status in statuses}
        known = all("along" in status.values for status in statuses)
        if known and len(before) == 1 and UNKNOWN not in before:
            along = fmean(status.values["along"] for status in statuses)
            return along * along
    draws = {status.values.get("draw") for status in statuses}
    if monitor == "sketch" and len(draws) == 1 and all(len(status.monitor_state) == NBYTES for status in statuses):
        mean: Sketch = np.zeros((ROWS, BUCKETS), np.float32)
        for status in statuses:
            mean += np.frombuffer(status.monitor_state, "<f4").reshape(ROWS, BUCKETS) / np.float32(len(statuses))
        return squared_norm(mean) / (1 + EPSILON)
    return 0.0
