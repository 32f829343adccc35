"""Functional dynamic averaging: nodes tell a few bytes at every check; all are averaged when their variance is great.

Theologitis, Frangias, Anestis, Samoladas, Deligiannakis: "Communication-Efficient Distributed Deep Learning via
Federated Dynamic Averaging", EDBT 2025. With u_i = w_i - r the variance of the models is

    Var = mean_i ||u_i||^2 - ||mean_i u_i||^2

and what a node tells must do to bound it from above without u_i itself:

    naive     ||u_i||^2                                     Var <= mean ||u_i||^2
    linear    and <xi, u_i>, xi = (r - r') / ||r - r'||     Var <= mean ||u_i||^2 - (mean <xi, u_i>)^2
    sketch    and an AMS sketch of u_i, 5 KB                Var <= mean ||u_i||^2 - ||sketch(mean u_i)||^2 / (1 + e)
                                                            in 995 of 1,000 draws of the hashes, one for each r

r' is the reference before r, which each node keeps in its private memory. A node that does not know it (it has just
joined) says so, and until the next synchronisation everybody is taken as naive.

With server = "adam" the mean displacement goes through a server's optimizer at each synchronisation (FDA-Opt, by the
same authors). The threshold Theta is the schedule's business: `shoal.schedules.variance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, Literal

import numpy as np

from shoal.core.algorithm import Going, Task, tree_slot
from shoal.core.anchor import SYNC
from shoal.core.continual import Carry, Continual, number_slot
from shoal.core.errors import InvalidJob
from shoal.core.message import Status
from shoal.core.schedule import WINDOW
from shoal.core.server_optimizer import Adam, advance, slots_for
from shoal.core.sketch import BUCKETS, EPSILON, NBYTES, ROWS, Sketch, sketch, squared_norm
from shoal.core.sums import Totals
from shoal.core.tree import Slots, Tree, dot, norm, sub

UNKNOWN = -1.0
"""Instead of the version of r', when a node does not have it."""


@dataclass(frozen=True)
class FunctionalDynamicAveraging(Continual):
    """Tell how far the model has gone, and report it when asked."""

    name: ClassVar[str] = "fda"
    title: ClassVar[str] = "Functional dynamic averaging (Theologitis et al. 2025)"
    estimates: ClassVar[bool] = True

    steps: int = 10
    """b: mini-batches between two checks, at each of which a node tells its few bytes."""
    monitor: Literal["linear", "sketch", "naive"] = "linear"
    """What it tells. "sketch" is the nearest to the true variance, and costs 7 KB per node and check."""
    server: Literal["average", "adam"] = "average"
    """What becomes of the mean at a synchronisation: the next model, or a step of the server's optimizer (FDA-Opt)."""
    server_lr: float = 0.03
    """The step of that optimizer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.server_lr < float("inf"):
            raise InvalidJob(f"fda: server_lr is {self.server_lr}, but must be above 0", code="job.algorithm")

    @property
    def stateful(self) -> str:
        """The server's optimizer has moments. Each peer by itself would have an optimizer of its own."""
        return f'server = "{self.server}"' if self.server != "average" else ""

    # The node

    def speaks(self, task: Task, mine: Carry) -> bool:
        """Only when it is time, whatever the variance is: at the end of a first window, or after the longest span."""
        return WINDOW in task.numbers and mine.pieces >= task.numbers[WINDOW]

    def begin(self, task: Task, mine: Carry, memory: Slots) -> None:
        """xi, if this order sets a new reference and private memory has the one before."""
        mine.own["before"] = UNKNOWN
        before = memory.get("base")
        if self.monitor != "linear" or not isinstance(before, Tree) or not task.numbers.get(SYNC):
            return
        xi = sub(mine.reference, before)
        length = norm(xi)
        if 0 < length < float("inf"):
            mine.own |= {"before": number_slot(memory, "base_version"), "xi": xi, "length": length}

    def going(self, task: Task, mine: Carry) -> Going:
        """The monitor's few bytes."""
        told = {"gap": mine.gap}
        if self.monitor == "linear":
            told["before"] = number_slot(mine.own, "before")
            if "xi" in mine.own:
                along = dot(tree_slot(mine.own, "xi"), mine.displacement) / number_slot(mine.own, "length")
                told["along"] = along
        if self.monitor != "sketch":
            return Going(mine.slots(), told)
        told["draw"] = float(task.version)
        return Going(mine.slots(), told, sketch(mine.displacement, task.version).astype("<f4").tobytes())

    def remembered(self, task: Task, mine: Carry) -> Slots:
        """The reference, which will be r'."""
        if self.monitor != "linear":
            return {}
        return {"base": mine.reference, "base_version": float(task.version) if task.numbers.get(SYNC) else UNKNOWN}

    # The coordinator

    def estimate(self, statuses: Sequence[Status]) -> float | None:
        """The variance of the models: an upper bound (sketch: most probably)."""
        spread = fmean(status.values.get("gap", 0.0) for status in statuses)
        return max(0.0, spread - self._common(statuses))

    def _common(self, statuses: Sequence[Status]) -> float:
        """A lower bound on ||mean u_i||^2."""
        if self.monitor == "linear":
            before = {status.values.get("before", UNKNOWN) for status in statuses}
            known = all("along" in status.values for status in statuses)
            if known and len(before) == 1 and UNKNOWN not in before:
                along = fmean(status.values["along"] for status in statuses)
                return along * along
        draws = {status.values.get("draw") for status in statuses}
        if self.monitor == "sketch" and len(draws) == 1 and all(len(status.state) == NBYTES for status in statuses):
            mean: Sketch = np.zeros((ROWS, BUCKETS), np.float32)
            for status in statuses:
                mean += np.frombuffer(status.state, "<f4").reshape(ROWS, BUCKETS) / np.float32(len(statuses))
            return squared_norm(mean) / (1 + EPSILON)
        return 0.0

    def init(self, model: Tree) -> Slots:
        """The model, and the optimizer's moments."""
        if self.server == "average":
            return {"model": model}
        return slots_for(self._optimizer, model)

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """The mean, or a step of the optimizer towards it and beyond."""
        averaged = totals.mean_onto("model", tree_slot(slots, "model"))
        if self.server == "average":
            return {**slots, "model": averaged}
        return advance(self._optimizer, slots, averaged)

    @property
    def _optimizer(self) -> Adam:
        return Adam(self.server_lr)
