"""Functional dynamic averaging: the coordinator's side. All are averaged when their models' variance is too great.

Theologitis, Frangias, Anestis, Samoladas, Deligiannakis: "Communication-Efficient Distributed Deep Learning via
Federated Dynamic Averaging", EDBT 2025. With u_i = w_i - r, at every check

    Var = mean_i ||u_i||^2 - ||mean_i u_i||^2

is estimated from small statuses (`ModelMonitor.variance`); above Theta all are asked, and their mean is the new
reference r.

theta = "auto" is the rule of FDA-Opt (Theologitis, Samoladas, Deligiannakis: "FDA-Opt: Communication-Efficient
Federated Fine-Tuning of Language Models", 2025). Variance grows about in proportion to the checks since r was set;
where the last synchronization came after n of them and found the variance Var,

    Theta = (E / 2) / n * Var          so that the next one comes after about E / 2 checks, and after E at the latest.

The first one comes after a short window.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import ClassVar, Literal

from shoal.core.errors import InvalidJob
from shoal.core.errors.phrases import counted
from shoal.core.errors.ranges import PositiveFloat, PositiveInt
from shoal.core.protocol.message import Metrics, ScheduleFamily
from shoal.core.protocol.metrics import REPORT_AFTER_CHECKS, THETA
from shoal.core.scheduling.schedule import (
    FULL,
    Advance,
    Ask,
    Close,
    Decision,
    Recall,
    RelativeSchedule,
    View,
    Wait,
    wait_for_nodes,
)

WINDOW_CHECKS = 4
"""theta = "auto": checks before the first synchronization, the only one that no variance calls for."""


@dataclass(frozen=True)
class Variance(RelativeSchedule):
    """Average all when their models are too far apart."""

    name: ClassVar[str] = "variance"
    title: ClassVar[str] = "Functional dynamic averaging"
    family: ClassVar[ScheduleFamily] = "monitored"

    theta: float | Literal["auto"] = "auto"
    """Theta: threshold on the variance of the models; `auto`: estimated at each synchronization (FDA-Opt)."""
    checks_max: PositiveInt = 20
    """E, with `auto`: maximum number of checks between two synchronizations; the target is about half."""
    in_step: bool = False
    """True: synchronize the checks of all nodes, as in the paper; costs a small message more per node and check."""
    deadline_s: PositiveFloat = 60.0
    """Seconds to wait for the models of nodes asked."""
    min_nodes: PositiveInt = 1
    """Nodes that must have joined before training begins."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.theta != "auto" and not 0 < self.theta < float("inf"):
            raise InvalidJob(f"variance: theta is {self.theta}, but must be above 0", hint='"auto" measures it')

    @property
    def max_lead(self) -> int:
        """One check at a time in step, any number else."""
        return 1 if self.in_step else 0

    # Decisions

    def decide(self, view: View) -> list[Decision]:
        """Greet newcomers, then synchronize all, or wait."""
        current, nodes = view.round, view.nodes
        if wait := wait_for_nodes(view, self.min_nodes):
            return wait
        fresh = tuple(node for node in view.idle if node not in current.reporters)
        if fresh:
            return [Ask(fresh, "train", f"{counted(len(fresh), 'node')} from version {view.version}")]
        if nodes.members and set(nodes.members) <= nodes.finished & set(current.reporters):
            return [Close(f"all {len(nodes.members)} nodes have trained enough", rebase=True, last=True)]
        if current.recalled or _due(view) or not nodes.busy or (view.versions_left <= 1 and current.reporters):
            return self._synchronize(view)
        if self.in_step and set(nodes.busy) - nodes.waiting:
            return [Wait("not all have made their check")]
        return self._decide_on_variance(view)

    def _decide_on_variance(self, view: View) -> list[Decision]:
        """Wait, or ask all: every node works, and none was asked for a report."""
        all_busy = tuple(sorted(view.nodes.busy))
        if view.versions_left < 1 and all_busy:
            return [Recall(all_busy, "all are asked for the last version")]
        estimate = view.monitor.variance()
        theta = view.numbers.get(THETA)  # there is none before the first synchronization
        if estimate is not None and theta is not None and estimate > theta:
            return [Recall(all_busy, f"variance of about {estimate:.4g} > {theta:.4g}: all are asked")]
        return [Advance()] if self.in_step and view.nodes.waiting else [Wait("all quiet")]

    def _synchronize(self, view: View) -> list[Decision]:
        current, nodes = view.round, view.nodes
        if self.in_step and not current.recalled and set(nodes.busy) - nodes.waiting:
            return [Wait("not all have made their check")]
        pending = current.recalled & set(nodes.busy)
        until = (current.recalled_at or view.now) + self.deadline_s
        if pending and view.now < until:
            return [Wait(f"{len(pending)} were asked and have not answered", until)]
        rest = tuple(sorted(set(nodes.busy) - current.recalled))
        if rest:
            return [Recall(rest, f"{self._cause(view)}: all are asked")]
        if not current.reporters:
            return [Wait("no node has answered yet")]
        late = f", {len(pending)} too late" if pending else ""
        why = f"full synchronization of {len(current.reporters)}{late}"
        return [Close(why, tuple(sorted(current.reporters)), rebase=True)]

    def _cause(self, view: View) -> str:
        """Return the reason for asking a node other than the variance."""
        if view.versions_left <= 1 or view.round.recalled:
            return "the last version" if view.versions_left <= 1 else "a newcomer"
        return f"{counted(int(_checks(view)), 'check')} since the reference was set"

    # Stored state

    def numbers(self, view: View, close: Close | None) -> Metrics:
        """Return the threshold, the checks after which nodes report unasked, and the number of full averages."""
        full = view.numbers.get(FULL, 0.0) + (close is not None and close.rebase)
        return self._threshold(view, close) | {FULL: float(full)}

    def _threshold(self, view: View, close: Close | None) -> Metrics:
        if self.theta != "auto":
            return {THETA: self.theta}
        if close is None:
            return {REPORT_AFTER_CHECKS: float(min(WINDOW_CHECKS, self.checks_max))}
        norms = view.round.norms.values()
        found = fmean(norm * norm for norm in norms) - view.monitor.divergence() if norms else 0.0
        if found <= 0.0:  # a node alone has no variance: it reports when it is time
            return {REPORT_AFTER_CHECKS: float(self.checks_max)}
        return {THETA: self.checks_max / 2 / _checks(view) * found, REPORT_AFTER_CHECKS: float(self.checks_max)}


def _due(view: View) -> list[str]:
    """Return the nodes that report because it is time. A node that reports before has no reason to, and waits."""
    current, window = view.round, view.numbers.get(REPORT_AFTER_CHECKS, float("inf"))
    due = [node for node in current.reporters if current.checks_since_task.get(node, 1.0) >= window]
    return [node for node in due if node not in view.nodes.finished]


def _checks(view: View) -> float:
    """Return the checks since the reference was set, as most of the reporting nodes say."""
    return max(1.0, median(view.round.checks_since_task.values())) if view.round.checks_since_task else 1.0
