"""What of a job cannot work together, though each part is right for itself; with what to choose instead.

These are the checks across the tables of a job file, made before the job begins. Each says at which place of the file
the mistake is shown.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.core.algorithm import Algorithm
from shoal.core.schedule import Schedule
from shoal.core.selection import Selection
from shoal.mistakes import Mistake, Place
from shoal.plugins import algorithms, schedules

CODE = "job.fit"


def of_schedule(algorithm: Algorithm, schedule: Schedule) -> Iterator[Mistake]:
    """An algorithm under a schedule that it was not made for."""
    if schedule.anchored and not algorithm.based:
        able = [name for name, kind in algorithms().items() if kind.based]
        text = (
            f"schedule {schedule.name} needs an algorithm whose nodes train on by themselves; {algorithm.name} is none"
        )
        yield _named("algorithm", text, f"algorithms that can: {', '.join(able)}; or the schedule rounds")
    if algorithm.estimates and not schedule.estimates:
        able = [name for name, kind in schedules().items() if kind.estimates]
        text = f"{algorithm.name} waits for a schedule that watches the models' variance; {schedule.name} does not"
        yield _named("schedule", text, f"schedule: {', '.join(able)}, whose threshold is theta")
    if algorithm.synchronous and not schedule.anchored and schedule.admits(1):
        text = f"schedule {schedule.name} counts reports of older versions, which {algorithm.name} makes no sense of"
        yield _named("schedule", text, "choose schedule rounds, or algorithm asgd, downpour, fedasync or fedbuff")
    if schedule.estimates and not algorithm.estimates:
        able = [name for name, kind in algorithms().items() if kind.estimates]
        text = f"schedule {schedule.name} needs an algorithm that tells the models' variance; {algorithm.name} does not"
        yield _named("algorithm", text, f"algorithms that do: {', '.join(able)}")


def of_shards(shards: int, algorithm: Algorithm, schedule: Schedule) -> Iterator[Mistake]:
    """A model that is split although somebody must see it whole."""
    if shards > 1 and not algorithm.divides:
        able = [name for name, kind in algorithms().items() if kind.divides]
        text = f"{algorithm.name} does not say that it can work on parts of a model, so it is not split over shards"
        yield _at(("shards",), text, f"leave shards out, or choose one of {', '.join(able)}")
    if shards > 1 and schedule.anchored:
        text = f"schedule {schedule.name} measures the model as a whole, so it is not split over shards"
        yield _at(("shards",), text, "leave shards out, or choose schedule rounds or buffer")


def of_selection(schedule: Schedule, selection: Selection) -> Iterator[Mistake]:
    """A choice that the schedule does not give, or one of fewer nodes than it wants."""
    able = [name for name, kind in schedules().items() if kind.renews]
    if selection.chooses and not schedule.renews:
        text = f"selection {selection.name} chooses anew for each version; schedule {schedule.name} keeps its nodes"
        yield _named("selection", text, f"choose selection uniform, or schedule {' or '.join(able)}")
    elif selection.measures and not schedule.measures:
        text = f"with measure candidates measure each version first, which schedule {schedule.name} does not let them"
        yield _at(("selection", "measure"), text, "leave measure out, or choose schedule rounds")
    if selection.hours and not schedule.renews:
        text = f"schedule {schedule.name} has its nodes work for many versions at a stretch, so they can keep no hours"
        yield _at(("selection", "hours"), text, f"leave hours out, or choose schedule {' or '.join(able)}")
    if 0 < len(selection.nodes) < schedule.least:
        text = f"selection names {len(selection.nodes)} nodes, but schedule {schedule.name} waits for {schedule.least}"
        yield _at(("selection", "nodes"), text, "name more nodes, or lower min_nodes and quorum")
    if 0 < selection.pool < schedule.at_once:
        asks, draws = schedule.at_once, selection.pool
        text = f"schedule {schedule.name} asks {asks} nodes, but selection draws {draws} candidates"
        yield _at(("selection", "candidates"), text, f"raise candidates above {schedule.at_once}")


def of_carrying_on(algorithm: Algorithm) -> Iterator[Mistake]:
    """Nodes that may carry on without a coordinator that keeps more than the model."""
    if not algorithm.gossips:
        able = [name for name, kind in algorithms().items() if kind.gossips]
        text = f"{algorithm.name} keeps more than the model at the coordinator, so its nodes cannot carry on without it"
        yield _at(("gossip", "allowed"), text, f"leave out gossip.allowed, or choose one of {', '.join(able)}")
    elif algorithm.stateful:
        text = f"{algorithm.name} with {algorithm.stateful} keeps more than the model at the coordinator"
        hint = f"leave out gossip.allowed, or leave {algorithm.stateful} out of [algorithm]"
        yield _at(("gossip", "allowed"), f"{text}, so its nodes cannot carry on without it", hint)


def of_differences(schedule: Schedule, carries_on: bool) -> Iterator[Mistake]:
    """Models that cannot go as differences to the version before."""
    why = ""
    if schedule.anchored:
        why = f"schedule {schedule.name} sends differences by itself"
    elif schedule.admits(1):
        why = f"under schedule {schedule.name} each node holds another version"
    elif carries_on:
        why = "nodes that may carry on without the coordinator need whole models"
    if why:
        yield _at(("filters",), f"filter delta: {why}", "leave the filter delta out")


def _at(place: Place, text: str, hint: str) -> Mistake:
    return Mistake(place, text, hint, CODE)


def _named(what: str, text: str, hint: str) -> Mistake:
    return _at((what, "name"), text, hint)
