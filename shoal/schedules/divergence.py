"""Dynamic averaging: the coordinator's side. No node is asked while all models are close together.

Kamp et al., ECML-PKDD 2018, Algorithm 1. A node whose local condition is violated reports; the set B of reports is
then

balanced    grown until ||mean(B) - r||^2 <= Delta; B gets its mean, the other nodes hear nothing, r stays
completed   if that fails, or too many violations came since the last time: all are asked, all get the mean, and
                it is the new reference r

Growth of B: "all" asks all nodes at once (plain sigma_Delta); "double" asks as many again as have reported; "hedged" is
"double" with Algorithm 1's counter, which completes after as many violations as there are nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, Literal

from shoal.core.errors import InvalidJob
from shoal.core.errors.phrases import counted
from shoal.core.errors.ranges import NonNegativeFloat, PositiveFloat, PositiveInt
from shoal.core.protocol.message import Metrics, ScheduleFamily
from shoal.core.protocol.metrics import REPORT_AFTER_CHECKS
from shoal.core.scheduling.schedule import (
    FULL,
    VIOLATIONS,
    Advance,
    Ask,
    Close,
    Decision,
    Recall,
    RelativeSchedule,
    View,
    Wait,
    Warn,
    wait_for_nodes,
)

WINDOW_CHECKS = 4
"""delta = "auto": checks of a first window, at the end of which all report; the threshold begins with the median of
||w - r||^2 there. At the beginning models move fastest, so later nodes report more rarely than once in this number of
checks. Four of ten mini-batches gave what had been found by hand before: 1.36 where 1 is good (digits, 4,810 weights)
and 3.45 where 3 is (MNIST, 79,510 weights), both at a learning rate of 0.1."""

SPAN, SPAN_MAX, SPAN_GROWTH = 5.0, 20.0, 1.1
"""delta = "auto", after the first window: the threshold is never below the divergence of models in a span of `SPAN` to
`SPAN_MAX` checks, at the rate of the last synchronization. A job that starts from a trained model has a first window in
which little happens; it must not synchronize at every check for that. The span grows with each synchronization that
finds that models diverge no faster than before; when they do, it is the shortest again."""

FASTER = 1.5
"""Factor by which a rate must have risen not to be chance."""

FALSE_ALARM = 0.25
"""A node that speaks although its distance, as measured here, is below this share of the threshold has no reason to.
(It may have an older threshold, and what filters lose is not its fault.)"""

STREAK_MAX = 5
"""Balancings in a row that one and the same node may cause alone before it has to pause."""

PAUSE_S_MAX = 300.0

STEP_MAX = 2.0
"""The greatest factor by which a byte budget changes the threshold at once."""


@dataclass(frozen=True)
class Divergence(RelativeSchedule):
    """Synchronize only when a model is too far from the reference."""

    name: ClassVar[str] = "divergence"
    title: ClassVar[str] = "Dynamic averaging"
    family: ClassVar[ScheduleFamily] = "conditional"

    delta: float | Literal["auto"] = "auto"
    """Delta: threshold on ||w - r||^2 above which a node reports; `auto`: measured in the first window."""
    relative: bool = False
    """True: `delta` is a fraction of ||r||^2."""
    bytes_per_hour: NonNegativeFloat = 0.0
    """Adapt the threshold to use about this many bytes of models per hour, in both directions; 0: fixed threshold."""
    balancing: Literal["all", "double", "hedged"] = "all"
    """Growth of the set of averaged nodes after a violation."""
    in_step: bool = False
    """True: synchronize the checks of all nodes, as in the paper; costs a small message per node and check."""
    deadline_s: PositiveFloat = 60.0
    """Seconds to wait for the models of nodes asked during balancing."""
    min_nodes: PositiveInt = 1
    """Nodes that must have joined before training begins."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta != "auto" and not 0 < self.delta < float("inf"):
            raise InvalidJob(f"divergence: delta is {self.delta}, but must be above 0", hint='"auto" measures it')
        if self.relative and self.delta == "auto":
            raise InvalidJob('divergence: relative needs a number for delta, not "auto"', hint="0.01 is 1 % of ||r||^2")

    @property
    def max_lead(self) -> int:
        """One check at a time in step, any number else."""
        return 1 if self.in_step else 0

    # Decisions

    def decide(self, view: View) -> list[Decision]:
        """Greet newcomers, then balance, complete, or wait."""
        nodes = view.nodes
        if wait := wait_for_nodes(view, self.min_nodes):
            return wait
        due = [node for node in nodes.members if self.is_backed_off(view.numbers, node, view.now)]
        resting = {node: view.numbers[f"excluded_until.{node}"] for node in due}
        fresh = tuple(node for node in view.idle if node not in view.round.reporters and node not in resting)
        if fresh:
            return [Ask(fresh, "train", f"{counted(len(fresh), 'node')} from version {view.version}: {_names(fresh)}")]
        active = [node for node in nodes.members if node not in resting]
        wake = min(resting.values(), default=None)
        if set(active) - set(nodes.busy) and set(active) <= nodes.finished & set(view.round.reporters):
            return [Close(f"all {len(active)} nodes have trained enough", rebase=True, last=True)]
        return self._go_on(view, wake)

    def _go_on(self, view: View, wake: float | None) -> list[Decision]:
        current, nodes = view.round, view.nodes
        violators = _violators(view)
        if current.recalled or violators or current.late or (view.versions_left <= 1 and current.reporters):
            return self._balance(view, violators)
        if self.in_step and set(nodes.busy) - nodes.waiting:
            return [Wait("not all have made their check", wake)]
        if view.versions_left < 1 and nodes.busy:
            return [Recall(tuple(sorted(nodes.busy)), "all are asked for the last version")]
        if self.in_step and nodes.waiting:
            return [Advance()]
        return [Wait("all quiet", wake)]

    def _balance(self, view: View, violators: list[str]) -> list[Decision]:
        current, nodes = view.round, view.nodes
        if self.in_step and not current.recalled and set(nodes.busy) - nodes.waiting:
            return [Wait("not all have made their check")]
        pending = sorted(current.recalled & set(nodes.busy))
        until = (current.recalled_at or view.now) + self.deadline_s
        if pending and view.now < until:
            return [Wait(f"{len(pending)} were asked and have not answered", until)]
        rest = sorted(set(nodes.busy) - current.recalled)
        late = f", {len(pending)} too late" if pending else ""
        return self._grow(view, violators, rest, late) if rest else self._complete(view, violators, late)

    def _complete(self, view: View, violators: list[str], late: str) -> list[Decision]:
        """Close with what is there: no node is left to be asked."""
        if not view.round.reporters:
            return [Wait("no node has answered yet")]
        done = f"full synchronization of {len(view.round.reporters)}{late}"
        return [Close(done, _receivers(view, violators), rebase=True), *_warnings(view, violators)]

    def _grow(self, view: View, violators: list[str], rest: list[str], late: str) -> list[Decision]:
        """Accept the set as it is, or ask more nodes, or all."""
        current = view.round
        late_or_few = f"{_names(sorted(current.late))} answered late" if current.late else "too few were heard"
        why = f"{counted(len(violators), 'violation')} ({_names(violators)})" if violators else late_or_few
        if violators and not current.recalled and violators == _false_alarms(view, violators):
            return self._close_unbalanced(view, violators)
        if not current.reporters or self._must_complete(view, violators):
            return [Recall(tuple(rest), f"{why}: all are asked")]
        delta = view.numbers["delta"]
        gap = view.monitor.divergence()
        if gap <= delta:
            done = f"{len(current.reporters)} of {len(view.nodes.members)} balanced: {gap:.4g} <= {delta:.4g}{late}"
            close = Close(done, _receivers(view, violators), keep=True)
            return [close, *_warnings(view, violators), *([Advance()] if self.in_step else [])]
        got = len(current.reporters)
        more = view.pick(rest, got if 2 * got < len(view.nodes.members) else len(rest))
        asked = f"{len(more.nodes)} more are asked{more.because}"
        return [Recall(more.nodes, f"{why}: mean at {gap:.4g} > {delta:.4g}, {asked}")]

    def _close_unbalanced(self, view: View, violators: list[str]) -> list[Decision]:
        """Let the nodes go on as they were: no model has diverged. Warn of nodes with repeated false alarms."""
        close = Close(f"{_names(violators)}: no violation as measured here", _receivers(view, violators), keep=True)
        why = "reports false violations; if it goes on it is left out for a while"
        violations: list[Decision] = [Warn(node, f"{node} {why}") for node in violators]
        return [close, *violations, *_warnings(view, violators), *([Advance()] if self.in_step else [])]

    def _must_complete(self, view: View, violators: list[str]) -> bool:
        """Return True if only a full synchronization will do."""
        if self.balancing == "all" or "delta" not in view.numbers or view.versions_left <= 1:
            return True
        known = view.numbers.get("violations", 0.0) + len(violators)
        return self.balancing == "hedged" and known >= len(view.nodes.members)

    # Stored state

    def numbers(self, view: View, close: Close | None) -> Metrics:
        """Return the threshold, the violations since the last full synchronization and in all, and the nodes
        set aside."""
        violators = _violators(view)
        kept = {} if close is None or close.rebase else {"violations": view.numbers.get("violations", 0.0)}
        if kept:
            kept["violations"] += len(violators)
        return self._threshold(view, close) | kept | _totals(view, violators, close) | _streaks(view, violators, close)

    def is_backed_off(self, numbers: Metrics, node: str, now: float) -> bool:
        """Return True if a node is set aside."""
        return numbers.get(f"excluded_until.{node}", now) > now

    def _threshold(self, view: View, close: Close | None) -> Metrics:
        current = view.round
        if self.relative:
            assert self.delta != "auto"
            return {"delta": self.delta * max(view.monitor.reference_size(), 1e-12)}
        if self.delta == "auto" and not (self.bytes_per_hour and "delta" in view.numbers and close is not None):
            return _measured(view, close)
        delta = self.delta if close is None or "delta" not in view.numbers else view.numbers["delta"]
        assert delta != "auto"
        if close is not None and self.bytes_per_hour and current.opened_at is not None:
            rate = current.bytes_transferred * 3600.0 / max(view.now - current.opened_at, 1e-3)
            delta *= min(max((rate / self.bytes_per_hour) ** 0.5, 1 / STEP_MAX), STEP_MAX)
        return {"delta": delta}


def _measured(view: View, close: Close | None) -> Metrics:
    """Compute delta = "auto" from the divergences since the reference was set."""
    current = view.round
    kept = {name: value for name, value in view.numbers.items() if name == "delta" or name.startswith("auto.")}
    moving = [node for node in current.reporters if node not in view.nodes.finished]
    if close is None or not (kept or moving):
        return {REPORT_AFTER_CHECKS: float(WINDOW_CHECKS)}
    if not close.rebase or not moving:
        return kept
    gaps = [current.norms[node] ** 2 for node in moving]
    rate = median(
        gap / max(1.0, current.checks_since_task.get(node, 1.0)) for node, gap in zip(moving, gaps, strict=True)
    )
    if not kept:
        delta = max(median(gaps), 1e-12)
        return {"delta": delta, "auto.delta_min": delta, "auto.divergence_per_check": rate, "auto.span_checks": SPAN}
    is_faster = rate > FASTER * kept["auto.divergence_per_check"]
    span = SPAN if is_faster else min(SPAN_GROWTH * kept["auto.span_checks"], SPAN_MAX)
    delta = max(kept["auto.delta_min"], span * rate)
    return kept | {"delta": delta, "auto.divergence_per_check": rate, "auto.span_checks": span}


def _violators(view: View) -> list[str]:
    """Return the nodes that reported without having been asked, sorted: their order of arrival must decide nothing."""
    current = view.round
    return sorted(set(current.reporters) - current.recalled - current.late - view.nodes.finished)


def _false_alarms(view: View, violators: list[str]) -> list[str]:
    """Return those whose update is too small for a violation."""
    delta = view.numbers.get("delta", 0.0)
    return [node for node in violators if view.round.norms[node] ** 2 < FALSE_ALARM * delta]


def _receivers(view: View, violators: list[str]) -> tuple[str, ...]:
    """Return the nodes that get the new version at once: all that reported, except one that is set aside now."""
    return tuple(sorted(set(view.round.reporters) - _excluded(_streaks(view, violators, Close("")))))


def _warnings(view: View, violators: list[str]) -> list[Decision]:
    """Name a node that will have to rest after this."""
    new = _streaks(view, violators, Close("")).keys() - view.numbers.keys()
    why = f"alone has caused {STREAK_MAX} balancings or more in a row: it is left out for a while"
    return [Warn(node, f"{node} {why}") for node in sorted(_excluded(new))]


def _excluded(numbers: Iterable[str]) -> set[str]:
    """Return the nodes with a number `excluded_until.NODE`."""
    return {name.removeprefix("excluded_until.") for name in numbers if name.startswith("excluded_until.")}


def _totals(view: View, violators: list[str], close: Close | None) -> Metrics:
    """Return violations and full synchronizations since the job began, for people. The first window violates
    nothing."""
    more = {VIOLATIONS: len(violators) if "delta" in view.numbers else 0, FULL: int(close is not None and close.rebase)}
    return {name: view.numbers.get(name, 0.0) + count for name, count in more.items()}


def _streaks(view: View, violators: list[str], close: Close | None) -> Metrics:
    """Return the balancings in a row that one node alone has caused, each at its first check or without need; beyond
    the limit it is set aside, twice as long each time. (A node that is merely the first to diverge, because its data
    differ, is not meant.)"""
    current = view.round
    if close is None:
        return {}
    kept = {name: end for name, end in view.numbers.items() if name.startswith("excluded_until.") and end > view.now}
    if len(violators) != 1 or len(view.nodes.members) < 2:
        return kept
    if current.checks_since_task.get(violators[0], 1.0) > 1 and not _false_alarms(view, violators):
        return kept
    name = f"solo_streak.{violators[0]}"
    streak = view.numbers.get(name, 0.0) + 1
    if streak >= STREAK_MAX and current.opened_at is not None:
        pause_s = min((view.now - current.opened_at) * 2 ** (streak - STREAK_MAX + 1), PAUSE_S_MAX)
        kept[f"excluded_until.{violators[0]}"] = view.now + pause_s
    return kept | {name: streak}


def _names(nodes: list[str] | tuple[str, ...]) -> str:
    return ", ".join(nodes[:3]) + (", …" if len(nodes) > 3 else "")
