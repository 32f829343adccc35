"""The state of a round: asked and failed nodes, and the reports that count, since the last model version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.core.protocol.message import Report, Task
from shoal.core.protocol.metrics import CHECKS_SINCE_TASK
from shoal.core.protocol.snapshot import from_state, to_state

SAVED = ("opened_at", "population", "asked", "failed", "recalled", "recalled_at", "bytes_transferred")
"""Fields of a round that a snapshot has."""


@dataclass
class Round:
    """The time between two versions. Schedules read it; only the hub changes it.

    A snapshot has only the tasks that a close has already given for the next version: after a crash the journal's
    events since the last version are replayed in order.
    """

    opened_at: float | None = None
    """Time of the first task or report; None before it."""
    population: int = 0
    """Number of nodes that could be asked then."""
    asked: set[str] = field(default_factory=set)
    """Nodes that were asked, whether they answered or not."""
    failed: set[str] = field(default_factory=set)
    """Nodes whose last task failed."""
    probed: set[str] = field(default_factory=set)
    """Nodes that have told their loss, so that they can be chosen by it."""
    recalled: set[str] = field(default_factory=set)
    """Nodes that were asked to report what they have."""
    recalled_at: float | None = None
    """Time of the last recall."""
    late: set[str] = field(default_factory=set)
    """Nodes whose reports answer a recall of an earlier version."""
    reports: list[Report] = field(default_factory=list)
    reporters: list[str] = field(default_factory=list)
    """Nodes of the reports, in order of arrival."""
    norms: dict[str, float] = field(default_factory=dict)
    """Norm of each node's last report."""
    checks_since_task: dict[str, float] = field(default_factory=dict)
    """Number of checks that each reporting node has made of its task."""
    bytes_transferred: int = 0
    """Bytes of the blobs of tasks and reports."""

    def add_report(self, report: Report, task: Task) -> None:
        """Add a report that counts."""
        self.reports.append(report)
        self.reporters.append(report.node)
        self.norms[report.node] = report.norm
        self.checks_since_task[report.node] = report.metrics.get(CHECKS_SINCE_TASK, 1.0)
        if task.recall and report.node not in self.recalled:  # the version in which it was asked closed without it
            self.late.add(report.node)
        self.bytes_transferred += report.blob.nbytes if report.blob is not None else 0

    def remove_report(self, report: Report) -> None:
        """Exclude a report that has counted."""
        at = self.reports.index(report)
        del self.reports[at], self.reporters[at]
        if report.node not in self.reporters:
            del self.norms[report.node], self.checks_since_task[report.node]
            self.late.discard(report.node)

    @property
    def involved(self) -> set[str]:
        """The nodes that were asked, or have reported on a task of an earlier version."""
        return self.asked | self.norms.keys()

    def state(self) -> dict[str, Any]:
        """Return the part that a snapshot has, as JSON values."""
        values = to_state(replace(self, reports=[]))
        return {name: value for name, value in values.items() if name in SAVED}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Round:
        """Return what `state` gave."""
        return from_state(cls, state)
