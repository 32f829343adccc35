"""Seeded runs of jobs in which a node lies about its update or its weight, or has far more data than the others: every
share limit with every kind of sum, in rounds and in buffers.

The job may neither stop nor be led by the node: no version gives one node more of its weight than the limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import fsum
from random import Random

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.job.update_bounds import NODES_LEAST, UpdateBounds
from shoal.core.protocol.machine import Effect, Event, ModelVersion, Save
from shoal.core.scheduling.schedule import Schedule
from shoal.core.server.hub import Hub
from shoal.schedules.buffer import Buffer
from shoal.sim.checks.invariants import InvariantChecker
from shoal.sim.checks.reference_checks import require
from shoal.sim.hosts.world import CoordinatedWorld
from shoal.sim.scenarios import swarm
from shoal.sim.scenarios.swarm import JobScenario

ROUNDING = 1e-9


def draw(seed: int) -> JobScenario:
    """Return the scenario of that seed."""
    rng = Random(f"influence {seed}")
    nodes = tuple(f"n{number}" for number in range(1, rng.randint(4, 7) + 1))
    faults = swarm.draw_faults(rng, nodes)
    setup = swarm.draw_setup(seed, rng, nodes, draw_schedule(rng, len(nodes) - 1), faults)  # a liar may never count
    limits = UpdateBounds(rng.choice((0.0, 10.0, 100.0)), rng.choice((0.5, 0.6, 0.75, 0.9, 1.0)))
    odd, kind = rng.choice(nodes), rng.choice(("long", "heavy", "rich", "rich"))
    return JobScenario(
        replace(setup, algorithm=Algorithm(), plan=replace(setup.plan, bounds=limits)),
        (),
        frozenset(node for node in nodes if rng.random() < 0.1),
        {node: rng.choice((0.3, 1.0, 2.0, 8.0)) for node in nodes},
        failing=rng.choice((0.0, 0.0, 0.1)),
        unreliable=frozenset(),
        hanging=0.0,
        poison=rng.choice((0.0, 0.0, 0.1)),
        byzantine=odd if kind != "rich" else "",
        weight_factors={odd: rng.choice((10.0, 1e3, 1e5))} if kind == "rich" else {},
    )


def draw_schedule(rng: Random, count: int) -> Schedule:
    """Return rounds, or a buffer, that `count` nodes can fill."""
    if rng.random() < 0.5:
        return swarm.draw_schedule(rng, count)
    return Buffer(
        size=rng.choice((1, 2, 4, 16, 40)),
        concurrency=rng.choice((0, 0, 1, 2)),
        staleness_max=rng.choice((0, 3, 100)),
        deadline_s=rng.choice((20.0, 60.0)),
        min_nodes=rng.randint(1, count),
    )


class ShareChecker(InvariantChecker):
    """The invariants of every run, and that of the share limit."""

    def fed(self, index: int, event: Event, now: float, effects: Sequence[Effect], hub: Hub) -> None:
        """Check an event, and the versions that it makes."""
        super().fed(index, event, now, effects, hub)
        for effect in effects:
            if isinstance(effect, Save) and isinstance(effect.what, ModelVersion):
                check_shares(effect.what, hub.settings.weight_fraction_max)


def check_shares(version: ModelVersion, share_max: float) -> None:
    """Check that no node has more of a version's weight than it may."""
    weights: defaultdict[str, list[float]] = defaultdict(list)
    for node, _, weight, _ in version.reports:
        weights[node].append(weight)
    if len(weights) >= NODES_LEAST:
        share = max(map(fsum, weights.values())) / version.weight
        require(share <= share_max + ROUNDING, "share: a node has {} of {}, and may have {}", share, version, share_max)


def run_seed(seed: int, write_line: Callable[[str], None] | None = None) -> CoordinatedWorld:
    """Run that seed. Raises `SeedFailed`."""
    return swarm.run_seed(seed, write_line, draw, "--influence ", ShareChecker)
