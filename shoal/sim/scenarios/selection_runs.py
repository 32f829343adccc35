"""Seeded runs of jobs that select their nodes: every selection, tags and availability windows; nodes with another
model; sharded models; and schedules without rounds.

Nodes that the job excludes are among those that it can do without. Virtual time begins at midnight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from random import Random

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.model.model_form import ModelForm
from shoal.core.protocol.message import NodeInfo
from shoal.core.scheduling.schedule import Schedule
from shoal.core.scheduling.selection import Selection
from shoal.schedules.buffer import Buffer
from shoal.schedules.rounds import Rounds
from shoal.selection.examples import ByExamples
from shoal.selection.power_of_choice import PowerOfChoice
from shoal.selection.uniform import Uniform
from shoal.sim.hosts.toy_models import LAYOUT
from shoal.sim.hosts.world import CoordinatedWorld, SimulationSetup
from shoal.sim.scenarios import swarm
from shoal.sim.scenarios.swarm import JobScenario

OTHER_MODEL = ModelForm("0" * 64, 2, 12)
"""The form of another model."""

HOURS: tuple[tuple[str, ...], ...] = (
    (),
    (),
    ("00:01-24:00",),
    ("00:00-00:01", "00:03-24:00"),
    ("23:00-00:01", "00:02-01:00"),
)
"""A node's availability windows; a run with its grace takes ten minutes or a little more."""


def draw(seed: int) -> JobScenario:
    """Return the scenario of that seed: a storm, and the nodes that may be selected."""
    scenario = swarm.draw_storm(seed, Random(seed))
    rng = Random(f"choosing of {seed}")
    setup = scenario.setup
    out = {node for node in sorted(scenario.unreliable) if rng.random() < 0.8}
    by_tag = rng.random() < 0.5
    node_info = {
        node: NodeInfo(() if node in out and by_tag else ("phone", "eu"), rng.choice(HOURS))
        for node in setup.nodes
        if node in out or rng.random() < 0.9 or by_tag
    }
    fields = {
        "tags": ("phone",) if out and by_tag else (),
        "nodes": tuple(node for node in setup.nodes if node not in out) if out and not by_tag else (),
        "hours": rng.choice(((), ("phone 00:00-00:02", "phone 00:04-24:00"), ("00:01-24:00",))),
    }
    shards = rng.choice((1, 1, 2, 3)) if setup.algorithm == Algorithm() else 1
    schedule = draw_schedule(Random(f"schedule of {seed}"), setup)
    plan = replace(setup.plan, selection=draw_selection(rng, fields, schedule.family == "synchronous"), shards=shards)
    if setup.plan.stages:  # nodes of a network that grows report no model
        reported = {node: node_info.get(node, NodeInfo()) for node in setup.nodes}
    else:
        reported = draw_models(Random(f"models of {seed}"), setup.nodes, scenario.unreliable, node_info)
    return replace(scenario, setup=replace(setup, plan=plan, node_info=reported, schedule=schedule))


def draw_models(
    rng: Random, nodes: tuple[str, ...], unreliable: AbstractSet[str], node_info: Mapping[str, NodeInfo]
) -> dict[str, NodeInfo]:
    """Return what nodes report: nothing, or another model for some that the job can do without."""
    reported = {node: node_info.get(node, NodeInfo()) for node in nodes}
    if rng.random() < 0.4:
        return reported
    other_model = {node for node in sorted(unreliable) if rng.random() < 0.7}
    plain = {node: replace(one, model=LAYOUT.form) if rng.random() < 0.9 else one for node, one in reported.items()}
    return plain | {node: NodeInfo(("phone", "eu"), reported[node].hours, model=OTHER_MODEL) for node in other_model}


def draw_schedule(rng: Random, setup: SimulationSetup) -> Schedule:
    """Return the schedule as it is, or a buffer."""
    before = setup.schedule
    assert isinstance(before, Rounds)
    if setup.plan.sends_differences or rng.random() < 0.6:
        return before
    return Buffer(
        size=rng.choice((1, 2, 3, 5)),
        concurrency=rng.choice((0, 1, 2, 4)),
        staleness_max=rng.choice((0, 1, 3, 100)),
        deadline_s=before.deadline_s or 20.0,
        min_nodes=max(before.min_nodes, before.quorum),
    )


def draw_selection(rng: Random, fields: dict[str, tuple[str, ...]], measures: bool) -> Selection:
    """Return one of all selections."""
    if rng.random() < 0.4:
        return PowerOfChoice(**fields, candidates=rng.choice((0, 0, 2, 4)), measure=measures and rng.random() < 0.5)
    return rng.choice((Uniform, ByExamples))(**fields)


def run_seed(seed: int, write_line: Callable[[str], None] | None = None) -> CoordinatedWorld:
    """Run that seed. Raises `SeedFailed`."""
    return swarm.run_seed(seed, write_line, draw, "--choosing ")
