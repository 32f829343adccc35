"""What operators may change in a job that runs, and how: values that every version reads anew.

Keys are those of the job file: "rounds", "algorithm.lr", "schedule.deadline_s". Which of an algorithm's or a schedule's
fields may change is declared by its class (`changeable`). Values are numbers; a field of whole numbers stays one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from shoal.core.algorithm import Algorithm
from shoal.core.errors import InvalidJob
from shoal.core.message import Metrics
from shoal.core.plan import Plan
from shoal.core.schedule import Schedule

T = TypeVar("T", Algorithm, Schedule)

ROUNDS = "rounds"
ALGORITHM, SCHEDULE = "algorithm.", "schedule."

Configuration = tuple[Plan, Algorithm, Schedule]


def changeable(algorithm: Algorithm, schedule: Schedule) -> list[str]:
    """Return the keys that may change in a job of these."""
    of_algorithm = [ALGORITHM + name for name in algorithm.changeable]
    return [ROUNDS, *of_algorithm, *(SCHEDULE + name for name in schedule.changeable)]


def current(configuration: Configuration, key: str) -> float:
    """Return what a changeable key is now."""
    plan, algorithm, schedule = configuration
    if key == ROUNDS:
        return plan.versions
    part = algorithm if key.startswith(ALGORITHM) else schedule
    return float(getattr(part, key.partition(".")[2]))


def configured(configuration: Configuration, values: Mapping[str, float]) -> Configuration:
    """Return the same with these values. Raises `InvalidJob` for a key that may not change, or a value that is none."""
    plan, algorithm, schedule = configuration
    for key in values:
        if key not in changeable(algorithm, schedule):
            raise InvalidJob(f"{key} cannot be changed while the job runs", code="job.fixed")
    if ROUNDS in values:
        plan = replace(plan, versions=_whole(ROUNDS, values[ROUNDS]))
    return plan, _with(algorithm, ALGORITHM, values), _with(schedule, SCHEDULE, values)


def sent(values: Mapping[str, float]) -> Metrics:
    """Return what nodes are told of changed values, among the numbers of an order."""
    return {key: value for key, value in values.items() if key.startswith(ALGORITHM)}


def adjusted(algorithm: Algorithm, numbers: Mapping[str, float]) -> Algorithm:
    """Return the algorithm as an order with these numbers wants it. Raises `InvalidJob` for what may not change."""
    told = sent(numbers)
    for key in told:
        if key.removeprefix(ALGORITHM) not in algorithm.changeable:
            raise InvalidJob(f"the order changes {key}, which {algorithm.name} does not allow", code="job.fixed")
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
