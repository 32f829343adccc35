"""Periodic and functional dynamic averaging where everything goes wrong: the swarm's runs of dynamic averaging, with
another algorithm or schedule."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from shoal.algorithms.fda import FunctionalDynamicAveraging
from shoal.algorithms.periodic import PeriodicAveraging
from shoal.schedules.divergence import Divergence
from shoal.schedules.periodic import Periodic
from shoal.schedules.variance import Variance
from shoal.sim.scenarios.swarm import JobScenario, draw_drift, run
from tests.support.sampling import extended

SEEDS, CHUNK = 250, 25


def drawn(seed: int, rng: Random) -> tuple[JobScenario, int, Divergence]:
    """A run, its checks, and the schedule that it would have."""
    scenario = draw_drift(seed, rng)
    schedule = scenario.setup.schedule
    assert isinstance(schedule, Divergence)
    return scenario, getattr(scenario.setup.algorithm, "local_steps", 0), schedule


@pytest.mark.parametrize("first", extended(range(0, SEEDS, CHUNK), but=[0]))
def test_periodic_averaging_comes_to_its_end(first: int) -> None:
    for seed in range(first, first + CHUNK):
        rng = Random(seed)
        scenario, checks, drift = drawn(seed, rng)
        share = rng.choice((1.0, 1.0, 0.5, 0.3, 0.0))
        schedule = Periodic(fraction=share, deadline_s=drift.deadline_s, min_nodes=drift.min_nodes)
        algorithm = PeriodicAveraging(steps=1, local_steps=checks)
        run(replace(scenario, setup=replace(scenario.setup, algorithm=algorithm, schedule=schedule)))


@pytest.mark.parametrize("first", extended(range(0, SEEDS, CHUNK), but=[0]))
def test_functional_averaging_comes_to_its_end(first: int) -> None:
    for seed in range(first, first + CHUNK):
        rng = Random(seed)
        scenario, checks, drift = drawn(seed, rng)
        monitor = rng.choice(("linear", "sketch", "naive"))
        algorithm = FunctionalDynamicAveraging(steps=1, local_steps=checks, monitor=monitor)
        schedule = Variance(
            theta=rng.choice(("auto", drift.delta)),
            checks_max=rng.choice((3, 20)),
            in_step=drift.in_step,
            deadline_s=max(5.0, drift.deadline_s),
            min_nodes=drift.min_nodes,
        )
        run(replace(scenario, setup=replace(scenario.setup, algorithm=algorithm, schedule=schedule)))
