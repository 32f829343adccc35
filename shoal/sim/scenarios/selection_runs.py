"""Runs of jobs that choose their nodes: as in `swarm`, with every way of choosing, tags, and hours that pass meanwhile;
with nodes that have another model; with models that are split over shards; and without rounds, where nodes begin anew
at any time.

Nodes that the job leaves out are among those that it can do without. Virtual time begins at midnight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from random import Random

from shoal.core.algorithm import Algorithm
from shoal.core.message import About
from shoal.core.schedule import Schedule
from shoal.core.selection import Selection
from shoal.core.tree import ModelForm
from shoal.schedules.buffer import Buffer
from shoal.schedules.rounds import Rounds
from shoal.selection.examples import ByExamples
from shoal.selection.power_of_choice import PowerOfChoice
from shoal.selection.uniform import Uniform
from shoal.sim import swarm
from shoal.sim.swarm import Scenario
from shoal.sim.toys import LAYOUT
from shoal.sim.world import Setup, World

STRANGE = ModelForm("0" * 64, 2, 12)
"""What another model looks like."""

HOURS: tuple[tuple[str, ...], ...] = (
    (),
    (),
    ("00:01-24:00",),
    ("00:00-00:01", "00:03-24:00"),
    ("23:00-00:01", "00:02-01:00"),
)
"""A node's; a run with its grace takes ten minutes or a little more."""


def draw(seed: int) -> Scenario:
    """The run of that seed: a storm, and who may be asked in it."""
    scenario = swarm.draw_storm(seed, Random(seed))
    rng = Random(f"choosing of {seed}")
    setup = scenario.setup
    out = {node for node in sorted(scenario.frail) if rng.random() < 0.8}
    by_tag = rng.random() < 0.5
    about = {
        node: About(() if node in out and by_tag else ("phone", "eu"), rng.choice(HOURS))
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
    plan = replace(setup.plan, selection=draw_selection(rng, fields, schedule.measures), shards=shards)
    told = draw_models(Random(f"models of {seed}"), setup.nodes, scenario.frail, about)
    return replace(scenario, setup=replace(setup, plan=plan, about=told, schedule=schedule))


def draw_models(
    rng: Random, nodes: tuple[str, ...], frail: AbstractSet[str], about: Mapping[str, About]
) -> dict[str, About]:
    """What nodes say of their models: nothing, or that some that the job can do without have another."""
    told = {node: about.get(node, About()) for node in nodes}
    if rng.random() < 0.4:
        return told
    strange = {node for node in sorted(frail) if rng.random() < 0.7}
    plain = {node: replace(one, model=LAYOUT.form) if rng.random() < 0.9 else one for node, one in told.items()}
    return plain | {node: About(("phone", "eu"), told[node].hours, model=STRANGE) for node in strange}


def draw_schedule(rng: Random, setup: Setup) -> Schedule:
    """As it is, or a buffer."""
    before = setup.schedule
    assert isinstance(before, Rounds)
    if setup.plan.differs or rng.random() < 0.6:
        return before
    return Buffer(
        size=rng.choice((1, 2, 3, 5)),
        concurrency=rng.choice((0, 1, 2, 4)),
        staleness_max=rng.choice((0, 1, 3, 100)),
        deadline_s=before.deadline_s or 20.0,
        min_nodes=max(before.min_nodes, before.quorum),
    )


def draw_selection(rng: Random, fields: dict[str, tuple[str, ...]], measures: bool) -> Selection:
    """One of all ways of choosing."""
    if rng.random() < 0.4:
        return PowerOfChoice(**fields, candidates=rng.choice((0, 0, 2, 4)), measure=measures and rng.random() < 0.5)
    return rng.choice((Uniform, ByExamples))(**fields)


def run_seed(seed: int, tell: Callable[[str], None] | None = None) -> World:
    """The run of that seed. Raises `Broken`."""
    return swarm.run_seed(seed, tell, draw, "--choosing ")
