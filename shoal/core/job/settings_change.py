"""Settings that operators may change in a running job: values that every version reads again.

Keys are those of the job file: "rounds", "algorithm.lr", "schedule.deadline_s". An algorithm's or a schedule's class
declares its changeable fields (`changeable`). Values are numbers; an integer field stays one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.errors import InvalidJob
from shoal.core.job.job_plan import JobPlan, JobState
from shoal.core.protocol.message import Metrics
from shoal.core.scheduling.schedule import Schedule

T = TypeVar("T", Algorithm, Schedule)

ROUNDS = "rounds"
ALGORITHM, SCHEDULE = "algorithm.", "schedule."
LR = ALGORITHM + "lr"

Configuration = tuple[JobPlan, Algorithm, Schedule]


def changeable(algorithm: Algorithm, schedule: Schedule) -> list[str]:
    """Return the keys that may change in a job of these."""
    of_algorithm = [ALGORITHM + name for name in algorithm.changeable]
    return [ROUNDS, *of_algorithm, *(SCHEDULE + name for name in schedule.changeable)]


def current_value(configuration: Configuration, key: str) -> float:
    """Return what a changeable key is now."""
    plan, algorithm, schedule = configuration
    if key == ROUNDS:
        return plan.versions
    part = algorithm if key.startswith(ALGORITHM) else schedule
    return float(getattr(part, key.partition(".")[2]))


def apply_changes(configuration: Configuration, values: Mapping[str, float]) -> Configuration:
    """Return the same with these values. Raises `InvalidJob` for a key that may not change, or an invalid value."""
    plan, algorithm, schedule = configuration
    for key in values:
        if key not in changeable(algorithm, schedule):
            raise InvalidJob(f"{key} cannot be changed while the job runs", code="job.fixed")
    if ROUNDS in values:
        plan = replace(plan, versions=_whole(ROUNDS, values[ROUNDS]))
    return plan, _with(algorithm, ALGORITHM, values), _with(schedule, SCHEDULE, values)


def node_settings(values: Mapping[str, float]) -> Metrics:
    """Return what nodes are told of changed values, among the numbers of a task."""
    return {key: value for key, value in values.items() if key.startswith(ALGORITHM)}


def apply_node_settings(algorithm: Algorithm, numbers: Mapping[str, float]) -> Algorithm:
    """Return the algorithm as a task with these numbers wants it. Raises `InvalidJob` for what may not change."""
    told = node_settings(numbers) if numbers else {}
    for key in told:
        if key.removeprefix(ALGORITHM) not in algorithm.changeable:
            raise InvalidJob(f"the task changes {key}, which {algorithm.name} does not allow", code="job.fixed")
    return _with(algorithm, ALGORITHM, told) if told else algorithm


def _with(part: T, prefix: str, values: Mapping[str, float]) -> T:
    fields: dict[str, Any] = {}
    for key, value in values.items():
        if key.startswith(prefix):
            name = key.removeprefix(prefix)
            fields[name] = _whole(key, value) if type(getattr(part, name)) is int else float(value)
    return replace(part, **fields) if fields else part


def _whole(key: str, value: float) -> int:
    if value != value // 1 or not 0 <= value < 2**53:
        raise InvalidJob(f"{key} is {value:g}, but it must be a whole number, not below 0")
    return int(value)


def scheduled_settings(plan: JobPlan, algorithm: Algorithm, version: int) -> Metrics:
    """Return the settings of a version by the plan's schedule of the learning rate; {} without one."""
    if plan.lr_schedule.is_constant:
        return {}
    return {LR: algorithm.lr * plan.lr_schedule.fraction(version, plan.versions)}


class JobSettings:
    """A job's plan, algorithm and schedule, with the changes that operators made, and the version's learning rate."""

    def __init__(self, plan: JobPlan, algorithm: Algorithm, schedule: Schedule) -> None:
        self.plan, self.algorithm, self.schedule = plan, algorithm, schedule
        self._submitted = plan, algorithm, schedule
        self.changed: Metrics = {}
        """Values in force that differ from the job file, by key."""
        self.pending: Metrics = {}
        """Changed values that apply from the next version on."""
        self.adopt_changes(plan.first_version)

    @property
    def node_settings(self) -> Metrics:
        """Return what nodes are told with each task of this version."""
        return node_settings(self.changed) | self.scheduled

    @property
    def uses_reference(self) -> bool:
        """True if tasks name a model that their receivers hold."""
        return self.schedule.relative_to_reference or self.plan.sends_differences

    @property
    def has_endless_training(self) -> bool:
        """True if nodes train until the job is stopped or has all its versions."""
        return self.schedule.relative_to_reference and self.algorithm.training_progress({}) is None

    def adopt_changes(self, version: int) -> None:
        """Put the pending changes into force, and the learning rate of a version."""
        self.restore_changes(self.changed | self.pending, {}, version)

    def restore_changes(self, changed: Metrics, pending: Metrics, version: int) -> None:
        self.changed, self.pending = changed, pending
        self.plan, algorithm, self.schedule = apply_changes(self._submitted, changed)
        self.scheduled = scheduled_settings(self.plan, algorithm, version)
        self.algorithm = _with(algorithm, ALGORITHM, self.scheduled)
        bounds = self.plan.bounds
        self.norm_factor = 0.0 if self.algorithm.exact_updates else bounds.norm_factor
        """Greatest norm of an update, as a multiple of the typical one; 0: any."""
        self.weight_fraction_max = bounds.weight_fraction_max if self.algorithm.uses_weights else 1.0
        """Greatest fraction of a version's weight for one node; 1: all, as where weights do not matter."""

    def describe_change(self, values: Mapping[str, float], progress: JobState) -> str:
        """Return what a change does, for people. Raises `InvalidJob` for one that is not possible, or not now."""
        if progress.phase not in ("waiting", "running") or progress.mode != "server":
            raise InvalidJob(f"the job is {'with its nodes' if progress.phase == 'running' else progress.phase}")
        known = self.changed | self.pending
        before = apply_changes(self._submitted, known)
        after = apply_changes(self._submitted, known | dict(values))
        if after[0].versions <= progress.version:
            raise InvalidJob(f"there are {progress.version} versions already")
        return ", ".join(
            f"{key} {current_value(before, key):g} → {current_value(after, key):g}" for key in sorted(values)
        )
