"""Functional dynamic averaging: the coordinator's side. All are averaged when their models' variance is too great.

Theologitis, Frangias, Anestis, Samoladas, Deligiannakis: "Communication-Efficient Distributed Deep Learning via
Federated Dynamic Averaging", EDBT 2025. With u_i = w_i - r, at every check

    Var = mean_i ||u_i||^2 - ||mean_i u_i||^2

is estimated from small statuses (`View.estimate`); above Theta all are asked, and their mean is the new reference r.

theta = "auto" is the rule of FDA-Opt (Theologitis, Samoladas, Deligiannakis: "FDA-Opt: Communication-Efficient
Federated Fine-Tuning of Language Models", 2025). Variance grows about in proportion to the checks since r was set;
where the last synchronisation came after n of them and found the variance Var,

    Theta = (E / 2) / n * Var          so that the next one comes after about E / 2 checks, and after E at the latest.

The first one comes after a short window.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import ClassVar, Literal

from shoal.core.errors import InvalidJob
from shoal.core.message import Metrics
from shoal.core.schedule import (
    FULL,
    WINDOW,
    Advance,
    Anchored,
    Ask,
    Close,
    Decision,
    Recall,
    View,
    Wait,
    check_patience,
    gathering,
)
from shoal.core.words import counted

WINDOW_CHECKS = 4
"""theta = "auto": checks before the first synchronisation, the only one that no variance calls for."""


@dataclass(frozen=True)
class Variance(Anchored):
    """Average all when their models have drifted apart."""

    name: ClassVar[str] = "variance"
    title: ClassVar[str] = "Functional dynamic averaging"
    estimates: ClassVar[bool] = True

    theta: float | Literal["auto"] = "auto"
    """Theta, the greatest variance of the models; "auto": measured anew at each synchronisation (FDA-Opt)."""
    checks_max: int = 20
    """E, with "auto": checks between two synchronisations, at most; about half as many are aimed at."""
    in_step: bool = False
    """Let all nodes make each check together, as in the paper; costs a small message more per node and check."""
    deadline_s: float = 60.0
    """Seconds to wait for those who were asked."""
    min_nodes: int = 1
    """Nodes that must have joined before training begins."""

    def __post_init__(self) -> None:
        if self.theta != "auto" and not 0 < self.theta < float("inf"):
            raise InvalidJob(f"variance: theta is {self.theta}, but must be above 0", hint='"auto" measures it')
        if self.checks_max < 1:
            raise InvalidJob(f"variance: checks_max is {self.checks_max}, but must be at least 1")
        check_patience(self.name, self.deadline_s, self.min_nodes)

    @property
    def ahead(self) -> int:
        """One check at a time in step, any number else."""
        return 1 if self.in_step else 0

    # Decisions

    def decide(self, view: View) -> list[Decision]:
        """Greet newcomers, then synchronise all, or wait."""
        if wait := gathering(view, self.min_nodes):
            return wait
        fresh = tuple(node for node in view.idle if node not in view.reports)
        if fresh:
            return [Ask(fresh, "train", f"{counted(len(fresh), 'node')} from version {view.version}")]
        if view.members and set(view.members) <= view.finished & set(view.reports):
            return [Close(f"all {len(view.members)} nodes have trained enough", rebase=True, last=True)]
        if view.recalled or _due(view) or not view.busy or (view.left <= 1 and view.reports):
            return self._synchronise(view)
        if self.in_step and set(view.busy) - view.waiting:
            return [Wait("not all have made their check")]
        return self._look(view)

    def _look(self, view: View) -> list[Decision]:
        """All work, and nobody was asked for a report."""
        all_busy = tuple(sorted(view.busy))
        if view.left < 1 and all_busy:
            return [Recall(all_busy, "all are asked for the last version")]
        estimate, theta = view.estimate(), view.numbers.get("theta")  # there is none before the first synchronisation
        if estimate is not None and theta is not None and estimate > theta:
            return [Recall(all_busy, f"variance of about {estimate:.4g} > {theta:.4g}: all are asked")]
        return [Advance()] if self.in_step and view.waiting else [Wait("all quiet")]

    def _synchronise(self, view: View) -> list[Decision]:
        if self.in_step and not view.recalled and set(view.busy) - view.waiting:
            return [Wait("not all have made their check")]
        pending = view.recalled & set(view.busy)
        until = (view.recalled_at or view.now) + self.deadline_s
        if pending and view.now < until:
            return [Wait(f"{len(pending)} were asked and have not answered", until)]
        rest = tuple(sorted(set(view.busy) - view.recalled))
        if rest:
            return [Recall(rest, f"{self._cause(view)}: all are asked")]
        if not view.reports:
            return [Wait("nobody has answered yet")]
        late = f", {len(pending)} too late" if pending else ""
        return [Close(f"full synchronisation of {len(view.reports)}{late}", tuple(sorted(view.reports)), rebase=True)]

    def _cause(self, view: View) -> str:
        """Why somebody is asked who was not, when the variance is not the reason."""
        if view.left <= 1 or view.recalled:
            return "the last version" if view.left <= 1 else "a newcomer"
        return f"{counted(int(_checks(view)), 'check')} since the reference was set"

    # What it keeps

    def numbers(self, view: View, close: Close | None) -> Metrics:
        """The threshold, after how many checks nodes report unasked, and how often all were averaged."""
        full = view.numbers.get(FULL, 0.0) + (close is not None and close.rebase)
        return self._threshold(view, close) | {FULL: float(full)}

    def _threshold(self, view: View, close: Close | None) -> Metrics:
        if self.theta != "auto":
            return {"theta": self.theta}
        if close is None:
            return {WINDOW: float(min(WINDOW_CHECKS, self.checks_max))}
        found = fmean(norm * norm for norm in view.norms.values()) - view.gap() if view.norms else 0.0
        if found <= 0.0:  # a node alone has no variance: it reports when it is time
            return {WINDOW: float(self.checks_max)}
        return {"theta": self.checks_max / 2 / _checks(view) * found, WINDOW: float(self.checks_max)}


def _due(view: View) -> list[str]:
    """Who reports because it is time. Whoever speaks up before has no reason to, and waits for the others."""
    window = view.numbers.get(WINDOW, float("inf"))
    return [node for node in view.reports if node not in view.finished and view.pieces.get(node, 1.0) >= window]


def _checks(view: View) -> float:
    """Checks since the reference was set: what most of those say who report."""
    return max(1.0, median(view.pieces.values())) if view.pieces else 1.0
