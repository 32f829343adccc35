"""Checks across the tables of a job file: combinations that do not work, with alternatives.

They are made before the job begins. Each names the place of the file at which the mistake is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import ScheduleFamily
from shoal.core.scheduling.schedule import Schedule
from shoal.core.scheduling.selection import Selection
from shoal.plugins import algorithms, schedules
from shoal.validation.config_errors import ConfigError, Place

CODE = "job.fit"


USUAL = "fedavg"
"""The algorithm that hints name where many would do."""

_METHODS: dict[ScheduleFamily, str] = {
    "synchronous": "averages reports on one and the same version",
    "asynchronous": "takes reports as they come, each by its age",
    "periodic": "averages after equal numbers of mini-batches",
    "conditional": "averages when models are too far apart",
    "monitored": "averages when the variance of the models is too great",
}
"""The method of an algorithm whose first family of schedules this is."""

_WAYS: dict[ScheduleFamily, str] = {
    "synchronous": "asks nodes for each version and waits for them",
    "asynchronous": "counts reports on older versions",
    "periodic": "asks nodes that train on at every check",
    "conditional": "waits until nodes that train on report a violation",
    "monitored": "waits for the variance that nodes that train on report",
}
"""The way in which schedules of a family come to a version."""


def of_schedule(algorithm: Algorithm, schedule: Schedule) -> Iterator[ConfigError]:
    """Yield the mismatch of algorithm and schedule: together they would be another method than either's paper has."""
    family, used = schedule.family, algorithm.schedules
    if family in used or (family == "asynchronous" and "synchronous" in used and not schedule.accepts_staleness(1)):
        return
    method, way = f"{algorithm.name} {_METHODS[used[0]]}", f"schedule {schedule.name} {_WAYS[family]}"
    fitting = [name for name, kind in schedules().items() if kind.family in used]
    able = [name for name, kind in algorithms().items() if kind.schedules[0] == family]
    hint = f"for algorithm {algorithm.name} leave the schedule out, or choose schedule {' or '.join(fitting)}"
    if able:
        shown = f"such as {USUAL}" if USUAL in able else " or ".join(able)
        hint += f"; for schedule {schedule.name} choose algorithm {shown}"
    wrong = "algorithm" if schedule.relative_to_reference and not algorithm.continual else "schedule"
    yield _named(wrong, f"algorithm {method}, and {way}: they do not fit", hint)


def of_shards(shards: int, algorithm: Algorithm, schedule: Schedule) -> Iterator[ConfigError]:
    """Yield reasons against sharding the model."""
    if shards > 1 and not algorithm.shardable:
        able = [name for name, kind in algorithms().items() if kind.shardable]
        text = f"{algorithm.name} does not say that it can work on parts of a model, so it is not split over shards"
        yield _at(("shards",), text, f"leave shards out, or choose one of {', '.join(able)}")
    if shards > 1 and schedule.relative_to_reference:
        text = f"schedule {schedule.name} measures the model as a whole, so it is not split over shards"
        yield _at(("shards",), text, "leave shards out, or choose schedule rounds or buffer")


def of_lr_schedule(algorithm: Algorithm) -> Iterator[ConfigError]:
    """Yield the reason against a learning rate that changes with the rounds."""
    if algorithm.continual or "lr" not in algorithm.changeable:
        able = [name for name, kind in algorithms().items() if "lr" in kind.changeable and not kind.continual]
        why = "trains on through all rounds" if algorithm.continual else "sets its own rates"
        text = f"{algorithm.name} {why}, so no lr_schedule applies"
        yield _at(("lr_schedule",), text, f"leave lr_schedule out, or choose one of {', '.join(able)}")


def of_selection(schedule: Schedule, selection: Selection) -> Iterator[ConfigError]:
    """Yield mismatches of selection and schedule."""
    able = [name for name, kind in schedules().items() if not kind().relative_to_reference]
    if selection.uses_reports and schedule.relative_to_reference:
        text = f"selection {selection.name} chooses again for each version; schedule {schedule.name} keeps its nodes"
        yield _named("selection", text, f"choose selection uniform, or schedule {' or '.join(able)}")
    elif selection.needs_probe and schedule.family != "synchronous":
        text = f"with measure candidates measure each version first, which schedule {schedule.name} does not let them"
        yield _at(("selection", "measure"), text, "leave measure out, or choose schedule rounds")
    if selection.hours and schedule.relative_to_reference:
        text = f"schedule {schedule.name} has its nodes work for many versions at a stretch, so they can keep no hours"
        yield _at(("selection", "hours"), text, f"leave hours out, or choose schedule {' or '.join(able)}")
    if 0 < len(selection.nodes) < schedule.required_nodes:
        named, wanted = len(selection.nodes), schedule.required_nodes
        text = f"selection names {named} nodes, but schedule {schedule.name} waits for {wanted}"
        yield _at(("selection", "nodes"), text, "name more nodes, or lower min_nodes and quorum")
    if 0 < selection.candidate_count < schedule.cohort_size:
        asks, draws = schedule.cohort_size, selection.candidate_count
        text = f"schedule {schedule.name} asks {asks} nodes, but selection draws {draws} candidates"
        yield _at(("selection", "candidates"), text, f"raise candidates above {schedule.cohort_size}")


def of_stages(plan: JobPlan, algorithm: Algorithm, schedule: Schedule, carries_on: bool) -> Iterator[ConfigError]:
    """Yield mistakes in a list of stages, and the reason against stages at all."""
    *before, last = plan.stages
    if "trees" in algorithm.required_capabilities:
        yield _at(("stages",), f"{algorithm.name} grows decision trees, not a network", "leave stages out")
    if schedule.relative_to_reference:
        text = f"schedule {schedule.name} has its nodes train on over many versions, whose model cannot grow"
        yield _at(("stages",), text, "leave stages out, or choose schedule rounds or buffer")
    if carries_on:
        text = "the model grows at the coordinator, so nodes cannot carry on without it"
        yield _at(("gossip", "allowed"), text, "leave out gossip.allowed, or the stages")
    if not before:
        yield _at(("stages",), "one stage is a job without growth", "add a second one, or leave stages out")
    for number, stage in enumerate(before):
        if not stage.ends:
            yield _at(("stages", number), f"stage {number} never ends", "set its rounds, or its patience")
    if last.ends:
        text = f"stage {len(before)} is the last, which ends with the job"
        yield _at(
            ("stages", len(before)), text, "leave its rounds and patience out; set the job's rounds or early_stop"
        )
    least = sum(1 if stage.plateau.is_used else stage.rounds for stage in before) + len(before)
    if before and least >= plan.versions:
        text = f"the stages before the last take {least} versions, and the job has {plan.versions}"
        yield _at(("stages",), text, f"set rounds above {least}; each growth makes a version of its own")


def of_carrying_on(algorithm: Algorithm) -> Iterator[ConfigError]:
    """Yield reasons against mode gossip: state at the coordinator besides the model."""
    if not algorithm.mixed_slots:
        able = [name for name, kind in algorithms().items() if kind.mixed_slots]
        text = f"{algorithm.name} keeps more than the model at the coordinator, so its nodes cannot carry on without it"
        yield _at(("gossip", "allowed"), text, f"leave out gossip.allowed, or choose one of {', '.join(able)}")
    elif setting := server_state_setting(algorithm):
        text = f"{algorithm.name} with {setting} keeps more than the model at the coordinator"
        hint = f"leave out gossip.allowed, or leave {setting} out of [algorithm]"
        yield _at(("gossip", "allowed"), f"{text}, so its nodes cannot carry on without it", hint)


def server_state_setting(algorithm: Algorithm) -> str:
    """Return the setting without which the coordinator would keep only what peers mix; "" if it keeps nothing else."""
    model = Tree.of({"weight": np.zeros(1, np.float32)})
    if algorithm.init(model).keys() == {*algorithm.mixed_slots}:
        return ""
    for one in fields(algorithm):
        default: Any = one.default
        plain = replace(algorithm, **{one.name: default})
        if plain.init(model).keys() == {*plain.mixed_slots}:
            return f'{one.name} = "{getattr(algorithm, one.name)}"'
    raise AssertionError(f"{algorithm.name} keeps more than its mixed_slots")


def of_filters(algorithm: Algorithm) -> Iterator[ConfigError]:
    """Yield the reason against filters: updates that must arrive as they are."""
    if algorithm.exact_updates:
        text = f"{algorithm.name} sends numbers that must arrive exactly, and filters round them"
        yield _at(("filters",), text, "leave the filters out")


def of_differences(schedule: Schedule, carries_on: bool) -> Iterator[ConfigError]:
    """Yield reasons against sending versions as differences."""
    why = ""
    if schedule.relative_to_reference:
        why = f"schedule {schedule.name} sends differences by itself"
    elif schedule.accepts_staleness(1):
        why = f"under schedule {schedule.name} each node holds another version"
    elif carries_on:
        why = "nodes that may carry on without the coordinator need whole models"
    if why:
        yield _at(("filters",), f"filter delta: {why}", "leave the filter delta out")


def _at(place: Place, text: str, hint: str) -> ConfigError:
    return ConfigError(place, text, hint, CODE)


def _named(what: str, text: str, hint: str) -> ConfigError:
    return _at((what, "name"), text, hint)
