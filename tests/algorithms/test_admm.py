"""ADMM where only some nodes take part in a round, against an oracle of ten lines of numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shoal
from shoal.algorithms.admm import ADMM, CONTRIBUTION, WEIGHT
from shoal.core.algorithm.algorithm import Update, tree_slot
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots, norm
from shoal.jobs.spec import parse_job
from tests.algorithms.quadratics import DIMENSIONS, Floats, Quadratic, fleet, optimum, tree, weights

RHO, RELAX, DECAY = 0.5, 1.6, 0.05


def simulated(nodes: list[Quadratic], rounds: int, schedule: dict[str, Any], **how: Any) -> Floats:
    given = {"min_nodes": len(nodes), **schedule}
    algorithm = {
        "name": "admm",
        "rho": RHO,
        "over_relaxation": RELAX,
        "weight_decay": DECAY,
        **how.pop("algorithm", {}),
    }
    job = {"name": "admm", "rounds": rounds, "algorithm": algorithm, "schedule": given, **how.pop("job", {})}
    return weights(shoal.simulate(parse_job(job), nodes, **how).model)


def oracle(nodes: list[Quadratic], cohorts: list[list[str]], alike: bool = False) -> Floats:
    """Boyd et al., section 7.1 with 3.4.3, keeping the last h_k + u_k of each node."""
    z, kept = np.zeros(DIMENSIONS), dict[str, Floats]()
    for cohort in cohorts:
        found = {}
        for node in (node for node in nodes if node.name in cohort):
            u = kept[node.name] - z if node.name in kept else np.zeros(DIMENSIONS)
            w = np.linalg.solve(node.h + RHO * np.eye(DIMENSIONS), node.h @ node.a + RHO * (z - u))
            found[node.name] = RELAX * w + (1 - RELAX) * z + u
        kept |= found
        sizes = {node.name: 1.0 if alike else node.examples for node in nodes if node.name in kept}
        total = sum(size * kept[name] for name, size in sizes.items()) / sum(sizes.values())
        z = RHO / (DECAY + RHO) * total
    return np.asarray(z)


def in_threes(log: list[str]) -> list[list[str]]:
    return [log[start : start + 3] for start in range(0, len(log), 3)]


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_round_of_some_nodes_keeps_what_the_others_last_said(weighted: bool, shards: int) -> None:
    nodes, log = fleet(5, (1, 5, 2, 3, 9), exact=True)
    how = {"algorithm": {"weighted": weighted}, "job": {"shards": shards}}
    found = simulated(nodes, 12, {"name": "rounds", "cohort": 3}, **how)
    assert len({tuple(cohort) for cohort in in_threes(log)}) > 3
    np.testing.assert_allclose(found, oracle(nodes, in_threes(log), not weighted), atol=2e-5)


def test_rounds_of_some_nodes_find_the_common_optimum() -> None:
    """A mean over those alone that reported stays as far away as the nodes differ."""
    nodes, _ = fleet(5, (1, 5, 2, 3, 9), exact=True)
    found = simulated(nodes, 150, {"name": "rounds", "cohort": 3})
    np.testing.assert_allclose(found, optimum(nodes, DECAY), atol=1e-5)


def test_a_node_that_is_always_late_counts_in_a_buffer() -> None:
    """Its reports are relative to the version that it was sent, some versions ago."""
    nodes, _ = fleet(5, exact=True)
    found = simulated(nodes, 120, {"name": "buffer", "size": 4}, slow={"node-4": 3.7})
    np.testing.assert_allclose(found, optimum(nodes, DECAY), atol=1e-5)


def test_the_optimum_is_found_whatever_dies_on_the_way() -> None:
    nodes, _ = fleet(5, exact=True)
    faults = shoal.Faults(
        until_s=60, delay_s=0.2, message_loss=0.2, message_duplicates=0.2, coordinator_crashes=6, node_crashes=6
    )
    found = simulated(nodes, 100, {"name": "rounds", "cohort": 3}, faults=faults)
    np.testing.assert_allclose(found, optimum(nodes, DECAY), atol=1e-5)


def told(algorithm: ADMM, slots: Slots, totals: Totals, node: str, value: float, weight: float = 1.0) -> None:
    made = tree([value])
    algorithm.fold(totals, Update(node, 0, weight, {"model": made}, norm(made), slots), 1.0)


def test_a_node_that_left_is_dropped_and_one_that_is_lost_is_kept() -> None:
    algorithm, totals = ADMM(rho=1.0), Totals()
    slots = algorithm.init(tree([0.0]))
    for node, value in (("a", 1.0), ("b", 2.0), ("c", 6.0)):
        told(algorithm, slots, totals, node, value)
    slots = algorithm.step(slots, totals)
    assert tree_slot(slots, "model")["w"] == 3.0
    totals = Totals(members=frozenset("ab"))
    told(algorithm, slots, totals, "a", 1.0)  # 1 beyond z = 3
    slots = algorithm.step(slots, totals)
    assert tree_slot(slots, "model")["w"] == (4.0 + 2.0) / 2
    assert sorted(slots) == [CONTRIBUTION + "a", CONTRIBUTION + "b", "model", WEIGHT + "a", WEIGHT + "b"]


def test_the_later_of_two_reports_for_a_version_counts() -> None:
    algorithm, totals = ADMM(rho=1.0), Totals()
    slots = algorithm.init(tree([0.0]))
    for value, weight in ((1.0, 1.0), (5.0, 3.0)):
        told(algorithm, slots, totals, "a", value, weight)
    told(algorithm, slots, totals, "b", 1.0)
    assert tree_slot(algorithm.step(slots, totals), "model")["w"] == 4.0
