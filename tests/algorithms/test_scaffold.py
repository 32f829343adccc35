"""SCAFFOLD where only some nodes take part in a round, against an oracle of ten lines of numpy."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.algorithms.scaffold import Scaffold
from shoal.core.job.job_plan import JobPlan
from shoal.core.protocol.machine import NodeLost
from shoal.core.protocol.message import Join, Leave
from shoal.core.scheduling.selection import Selection
from shoal.core.server.hub import Hub
from shoal.jobs.spec import parse_job
from shoal.schedules.rounds import Rounds
from shoal.sim.network.blobs import MemoryBlobs
from tests.algorithms.quadratics import DIMENSIONS, Floats, Quadratic, fleet, weights

LR, STEPS, COHORT = 0.1, 5, 2


def oracle(nodes: list[Quadratic], cohorts: list[list[str]]) -> Floats:
    """Karimireddy et al., Algorithm 1 with option II; N is the number of all nodes."""
    x, c = np.zeros(DIMENSIONS), np.zeros(DIMENSIONS)
    own = {node.name: np.zeros(DIMENSIONS) for node in nodes}
    for cohort in cohorts:
        ys, changes = [], []
        for node in (node for node in nodes if node.name in cohort):
            y = x.copy()
            for _ in range(STEPS):
                y = y - LR * (node.slope(y) - own[node.name] + c)
            new = own[node.name] - c + (x - y) / (STEPS * LR)
            ys.append(y)
            changes.append(new - own[node.name])
            own[node.name] = new
        x = np.asarray(x + np.mean([y - x for y in ys], axis=0))
        c = np.asarray(c + len(cohort) / len(nodes) * np.mean(changes, axis=0))
    return x


def simulated(nodes: list[Quadratic], rounds: int, known: int = 0) -> Floats:
    algorithm = {"name": "scaffold", "lr": LR, "epochs": STEPS, "nodes": known}
    schedule = {"name": "rounds", "cohort": COHORT, "min_nodes": len(nodes)}
    job = {"name": "scaffold", "rounds": rounds, "algorithm": algorithm, "schedule": schedule}
    return weights(shoal.simulate(parse_job(job), nodes).model)


@pytest.mark.parametrize("known", [0, 8])
def test_n_is_the_number_of_all_nodes(known: int) -> None:
    nodes, log = fleet(8)
    found = simulated(nodes, 10, known)
    cohorts = [log[start : start + COHORT] for start in range(0, len(log), COHORT)]
    np.testing.assert_allclose(found, oracle(nodes, cohorts), atol=2e-5)


def test_the_hub_counts_on_whom_it_knows_but_not_on_those_that_left() -> None:
    plan = JobPlan(5)
    hub = Hub(plan, Scaffold(), Rounds(min_nodes=9), MemoryBlobs())
    for node in "abcd":
        hub.on(Join(node), 0.0)
    hub.on(NodeLost("a"), 1.0)
    hub.on(Leave("b"), 1.0)
    hub.on(NodeLost("c"), 1.0)
    hub.on(Leave("c"), 2.0)  # an operator removes one that was lost
    assert hub.eligibility.counted_nodes() == {"a", "d"}
    again = Hub(plan, Scaffold(), Rounds(min_nodes=9), MemoryBlobs(), hub.snapshot())
    assert again.eligibility.counted_nodes() == {"a", "d"}
    again.on(Join("c"), 3.0)
    assert again.eligibility.counted_nodes() == {"a", "c", "d"}
    chosen = Hub(
        JobPlan(5, selection=Selection(nodes=("a", "c"))),
        Scaffold(),
        Rounds(min_nodes=9),
        MemoryBlobs(),
        again.snapshot(),
    )
    assert chosen.eligibility.counted_nodes() == {"a", "c"}
