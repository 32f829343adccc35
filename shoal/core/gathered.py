"""What has come in for the next version: who was asked, who failed, whose reports count, and their sum.

It is not part of a snapshot: after a crash the journal's events since the last version are fed again, in their order.
(What a close has already asked of the next version is: see `state`.)
"""

from __future__ import annotations

from typing import Any

from shoal.core.algorithm import Update
from shoal.core.bounds import Shares
from shoal.core.message import Order, OrderId, Report
from shoal.core.metric import PIECES, Means
from shoal.core.roster import Member
from shoal.core.sums import SumKind, Totals
from shoal.core.trial import Trial


class Gathered:
    """Between two versions."""

    def __init__(self, sums: SumKind, totals: Totals | None = None) -> None:
        self.opened: float | None = None
        self.population = 0
        self.asked: set[str] = set()
        self.failed: set[str] = set()
        self.measured: set[str] = set()
        self.recalled: set[str] = set()
        self.late: set[str] = set()
        self.reports: list[Report] = []
        self.reporters: list[str] = []
        self.norms: dict[str, float] = {}
        self.pieces: dict[str, float] = {}
        self.recalled_at: float | None = None
        self.nbytes = 0
        self.totals = totals if totals is not None else Totals(sums)
        self.means: dict[int, Means] = {}
        self.trial: Trial | None = None
        self.unjudged: list[tuple[Report, Update]] = []
        """What was summed while too few nodes had reported to say whether it is plausible."""
        self.shares = Shares()
        self.counted: dict[OrderId, float] = {}
        """By report, what it weighs where that is less than it says."""

    def take(self, report: Report, order: Order) -> None:
        """Remember a report that counts."""
        self.reports.append(report)
        self.reporters.append(report.node)
        self.norms[report.node] = report.norm
        self.pieces[report.node] = report.metrics.get(PIECES, 1.0)
        if order.recall and report.node not in self.recalled:  # the version in which it was asked closed without it
            self.late.add(report.node)
        self.nbytes += report.body.nbytes if report.body is not None else 0

    def forget(self, report: Report) -> None:
        """A report that has counted does not after all."""
        at = self.reports.index(report)
        del self.reports[at], self.reporters[at]
        if report.node not in self.reporters:
            del self.norms[report.node], self.pieces[report.node]
            self.late.discard(report.node)

    def weight_of(self, report: Report) -> float:
        """What a report weighs in the next version."""
        return self.counted.get(report.order, report.weight)

    def adds(self, member: Member) -> bool:
        """Whether a member that has carried on has more to bring than what has come in and what is waited for."""
        known = member.node in self.failed or member.node in self.norms
        return member.order is None and not known

    @property
    def heard_of(self) -> set[str]:
        """Who was asked, or has reported on an order that an earlier version left standing."""
        return self.asked | self.norms.keys()

    def state(self) -> dict[str, Any]:
        """What one and the same event has asked after its close, as JSON values."""
        return {
            "opened": self.opened,
            "population": self.population,
            "asked": sorted(self.asked),
            "failed": sorted(self.failed),
            "recalled": sorted(self.recalled),
            "recalled_at": self.recalled_at,
            "nbytes": self.nbytes,
        }

    @classmethod
    def restore(cls, sums: SumKind, state: dict[str, Any], totals: Totals | None = None) -> Gathered:
        gathered = cls(sums, totals)
        gathered.opened, gathered.population = state["opened"], state["population"]
        gathered.asked, gathered.failed = set(state["asked"]), set(state["failed"])
        gathered.recalled, gathered.recalled_at = set(state["recalled"]), state["recalled_at"]
        gathered.nbytes = state["nbytes"]
        return gathered
