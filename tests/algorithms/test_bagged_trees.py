"""Boosted trees of single nodes: what a node grows, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.algorithms.bagged_trees import BaggedTrees
from shoal.core.algorithm.algorithm import LocalTask, Update
from shoal.core.boosting.ensemble import LEAF, Ensemble
from shoal.core.errors import InvalidPayload
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Tree, digest
from tests.algorithms.tables import FORM, central, halves, job, mixed, unequal

X, Y = mixed(1000)
BAGGED = {"name": "bagged_trees"}


def test_one_node_alone_boosts_as_if_alone() -> None:
    found = shoal.simulate(job(algorithm=BAGGED, rounds=1 + FORM["trees"]), unequal(X, Y, count=1), progress=False)
    assert digest(found.model) == digest(central(X, Y, found.model).to_model())


def test_a_round_averages_the_trees_of_its_nodes() -> None:
    """Two nodes with the same rows grow the same trees, at half the factor each."""
    learner = unequal(X, Y, count=1)[0]
    twice = [learner, unequal(X, Y, count=1)[0]]
    found = Ensemble.of(shoal.simulate(job(algorithm=BAGGED, rounds=3), twice, progress=False).model)
    alone = central(X, Y, found.to_model())
    assert found.is_complete
    for tree in range(4):
        assert np.array_equal(found.feature[tree], alone.feature[tree // 2])
        assert found.value[tree] == pytest.approx(alone.value[tree // 2] / 2, abs=1e-6)


def test_no_more_trees_join_than_there_is_room_for() -> None:
    learners = unequal(X, Y, count=3, test=(X, Y))
    found = shoal.simulate(job(algorithm=BAGGED, rounds=20), learners, progress=False)
    assert [version.reports for version in found.versions] == [0, 3, 3, 3, 3]
    assert Ensemble.of(found.model).is_complete
    assert found.metrics["eval/auc"] > 0.65


def test_nodes_boost_one_after_the_other_with_a_cohort_of_one() -> None:
    schedule = {"name": "rounds", "cohort": 1}
    found = shoal.simulate(job(algorithm=BAGGED, rounds=5, schedule=schedule), unequal(X, Y), progress=False)
    assert Ensemble.of(found.model).is_complete
    assert {version.reports for version in found.versions[1:]} == {1}


@pytest.mark.parametrize("seed", range(2))
def test_faults_do_not_show(seed: int) -> None:
    given = job(algorithm=BAGGED, rounds=3, schedule={"name": "rounds", "min_nodes": 3, "quorum": 3})
    faults = shoal.Faults(
        until_s=60, delay_s=0.3, message_loss=0.2, message_duplicates=0.2, coordinator_crashes=3, node_crashes=3
    )
    bad = shoal.simulate(given, halves(), faults=faults, fault_seed=seed, progress=False)
    assert digest(bad.model) == digest(shoal.simulate(given, halves(), progress=False).model)


def grown() -> tuple[Ensemble, Tree]:
    """An ensemble with edges, and the decision tree that a node grows for it."""
    learner = unequal(X, Y, count=1)[0]
    begun = Ensemble.of(shoal.simulate(job(algorithm=BAGGED, rounds=1), [learner], progress=False).model)
    made = BaggedTrees().local(learner, LocalTask((1, 1), "train", 1, 1, {"model": begun.to_model()}), {})
    tree = made.slots["grown"]
    assert isinstance(tree, Tree)
    return begun, tree


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("feature", 0, 8),
        ("feature", 0, -2),
        ("feature", 14, 1),
        ("bin", 0, 32),
        ("bin", 0, -1),
        ("value", 0, np.nan),
    ],
)
def test_hostile_trees_are_refused(name: str, place: int, value: Any) -> None:
    begun, tree = grown()
    arrays = {one: tree[one].copy() for one in tree}
    arrays[name][0, place] = value
    algorithm, hostile = BaggedTrees(), Tree.of(arrays)
    assert algorithm.update_layout({"model": begun.to_model()})["grown"] == hostile.layout
    algorithm.fold(Totals(), Update("a", 1, 1.0, {"grown": tree}, 1.0), 1.0)
    with pytest.raises(InvalidPayload, match="a decision tree with an impossible node"):
        algorithm.fold(Totals(), Update("a", 1, 1.0, {"grown": hostile}, 1.0), 1.0)


def test_a_tree_may_be_a_single_leaf() -> None:
    begun, tree = grown()
    arrays = {one: tree[one].copy() for one in tree} | {"feature": np.full_like(tree["feature"], LEAF)}
    totals = BaggedTrees().fold(Totals(), Update("a", 1, 1.0, {"grown": Tree.of(arrays)}, 1.0), 1.0)
    made = BaggedTrees().step({"model": replace(begun).to_model()}, totals)["model"]
    assert isinstance(made, Tree)
    assert Ensemble.of(made).grown == 1
