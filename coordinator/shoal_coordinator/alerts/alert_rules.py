"""Pure alert rules: the present state in, alerts raised and cleared out.

A condition holds or it does not (`conditions`). An alert is raised once a condition has held for as long as its kind
says, and cleared when it has not held for `CLEAR_S`; in between it is the same alert, so that nothing flaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shoal_coordinator.schemas.observability import AlertKind

HOLD_S: dict[AlertKind, float] = {
    "node-lost": 0.0,
    "quorum-missed": 0.0,
    "diverged": 0.0,
    "no-progress": 0.0,
    "disk-low": 5.0,
    "node-limited": 0.0,
    "nodes-set-aside": 0.0,
    "model-differs": 0.0,
}
"""Time in seconds for which a condition must hold before its alert is raised; 0 for those that have waited already."""

CLEAR_S = 30.0
DISK_AGAIN = 1.25
"""The alert of low space ends when free space is this multiple of the limit."""

USUAL_FACTOR = 10.0
"""No progress: no version for this multiple of their usual time, and for `stalled_s` at least."""

CAUSES_MAX = 3
"""Nodes whose last failure an alert tells, and jobs that a lost node stops."""

CAUSE_CHARACTERS = 600
"""Characters of these failures, together, so that the remedy after them is stored too."""

SET_ASIDE_REMEDY = "mend the cause and restart these nodes, or let others join"

Key = tuple[AlertKind, str, str]
"""(kind, job, node); empty where it is about none."""


@dataclass(frozen=True)
class Condition:
    """Something that holds now."""

    kind: AlertKind
    text: str
    job: str = ""
    node: str = ""
    jobs: tuple[str, ...] = ()
    """Concerned jobs, if it is not about a single one: a lost node concerns all of its jobs."""

    @property
    def key(self) -> Key:
        return self.kind, self.job, self.node


@dataclass(frozen=True)
class JobCondition:
    """A job that should make progress: running and not paused."""

    name: str
    waited_s: float
    """Since its last version closed, or since it began to run."""
    usual_s: float | None
    """Time that the last versions took; None if there were none."""
    lost: tuple[str, ...] = ()
    """Nodes that take part, have fallen silent, and have not left."""
    is_deserted: bool = False
    """True if no node can be asked."""
    got: int = 0
    quorum: int = 0
    """Reports that its round has, and needs. 0: it is not below its quorum."""
    limited: tuple[tuple[str, str], ...] = ()
    """Nodes whose last update was refused, or not counted in full, for its size; and why."""
    set_aside: tuple[tuple[str, str], ...] = ()
    """Nodes that are not asked after failures, where too few others are there; and the last failure of each."""
    waits_for: str = ""
    """The condition that the job waits for, where it cannot ask any node."""
    foreign: tuple[tuple[str, str], ...] = ()
    """Nodes whose model is not the job's; and how it differs."""
    diverged: str = ""
    """Description of a value that is not finite; empty if there is none."""


@dataclass(frozen=True)
class Now:
    """Input of the alert rules."""

    jobs: tuple[JobCondition, ...] = ()
    free_bytes: int | None = None
    """None: the disk cannot be asked."""


@dataclass(frozen=True)
class AlertLimits:
    """Thresholds of the alert rules."""

    stalled_s: float
    disk_bytes: int


def conditions(now: Now, limits: AlertLimits, open_keys: frozenset[Key] = frozenset()) -> list[Condition]:
    """Return all conditions that hold. For those in `open_keys`, a weaker threshold keeps them open."""
    found = [*_lost(now.jobs), *(condition for job in now.jobs for condition in _of_job(job, limits))]
    low = limits.disk_bytes * (DISK_AGAIN if ("disk-low", "", "") in open_keys else 1.0)
    if now.free_bytes is not None and now.free_bytes < low:
        left = f"{now.free_bytes / 2**20:,.0f} MiB"
        found.append(Condition("disk-low", f"{left} are left on the coordinator's disk"))
    return found


def _lost(jobs: Sequence[JobCondition]) -> Iterable[Condition]:
    """Return one condition for each lost node, with all its jobs."""
    missing: dict[str, list[JobCondition]] = {}
    for job in jobs:
        for node in job.lost:
            missing.setdefault(node, []).append(job)
    for node, found in sorted(missing.items()):
        stopped = [f"job {job.name} is stalled: {job.waits_for}" for job in found if job.waits_for]
        text = f"{node} has fallen silent; {'; '.join(stopped[:CAUSES_MAX]) or _without_it(found)}"
        yield Condition("node-lost", text, node=node, jobs=tuple(job.name for job in found))


def _without_it(jobs: Sequence[JobCondition]) -> str:
    """Return how the jobs of a lost node do, none of which says what it waits for."""
    is_deserted = all(job.is_deserted for job in jobs)
    if len(jobs) == 1:
        name = jobs[0].name
        return f"no other node can be asked for job {name}" if is_deserted else f"job {name} goes on without it"
    count = len(jobs)
    return f"no other node can be asked for its {count} jobs" if is_deserted else f"{count} jobs go on without it"


def _of_job(job: JobCondition, limits: AlertLimits) -> Iterable[Condition]:
    for node, why in job.limited:
        yield Condition("node-limited", f"{node}: {why}", job.name, node)
    if job.quorum:
        text = f"{job.got} of the {job.quorum} reports that a round needs, and its deadline has passed"
        yield Condition("quorum-missed", text, job.name)
    for node, why in job.foreign:
        yield Condition("model-differs", f"{node}: {why}", job.name, node)
    if job.set_aside:
        told = job.set_aside[:CAUSES_MAX]
        causes = "; ".join(f"{node}: {why[: CAUSE_CHARACTERS // len(told)] or 'unknown'}" for node, why in told)
        text = f"the job is stalled: {job.waits_for} (last failure of {causes}); {SET_ASIDE_REMEDY}"
        yield Condition("nodes-set-aside", text, job.name)
    if job.diverged:
        yield Condition("diverged", job.diverged, job.name)
    if job.waited_s > max(limits.stalled_s, USUAL_FACTOR * (job.usual_s or 0.0)):
        yield Condition("no-progress", f"no new version for {job.waited_s / 60:,.0f} minutes", job.name)


@dataclass
class AlertRules:
    """State of the alerts: each is raised and cleared once. `open`: alerts that an earlier process raised."""

    open: set[Key] = field(default_factory=set)
    _since: dict[Key, float] = field(default_factory=dict)
    _gone: dict[Key, float] = field(default_factory=dict)

    def update(self, holding: Sequence[Condition], now: float) -> tuple[list[Condition], list[Key]]:
        """Return (alerts to raise, alerts to clear) at this time in seconds."""
        keys = {condition.key for condition in holding}
        self._since = {key: self._since.get(key, now) for key in keys}
        self._gone = {key: self._gone.get(key, now) for key in self.open - keys}
        raised = [
            condition
            for condition in holding
            if condition.key not in self.open and now - self._since[condition.key] >= HOLD_S[condition.kind]
        ]
        cleared = [key for key, since in self._gone.items() if now - since >= CLEAR_S]
        self.open |= {condition.key for condition in raised}
        self.open -= set(cleared)
        return raised, cleared
