"""Boosted trees from summed histograms: the decision trees of one program that holds all rows, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.algorithms.boosted_trees import BoostedTrees
from shoal.core.algorithm.algorithm import Update
from shoal.core.algorithm.learner import Progress, Trained, no_progress
from shoal.core.boosting.ensemble import LEAF, Ensemble
from shoal.core.boosting.sketch import make_sketch, merge_sketches
from shoal.core.boosting.splits import SplitRule, best_split
from shoal.core.errors import InvalidJob, InvalidPayload
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Array, Slots, Tree, digest
from shoal.jobs.spec import parse_job
from shoal.learn.trees import TreesLearner
from tests.algorithms.softmax import unbalanced
from tests.algorithms.tables import FORM, ROUNDS, central, halves, job, mixed, unequal

X, Y = mixed(2000)


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror"])
def test_unequal_parts_grow_the_trees_of_the_union_to_the_bit(objective: str) -> None:
    y = Y if objective == "binary:logistic" else 1000 * np.sin(X[:, 0] / 20) + X[:, 5]
    rule = {"lr": 0.2, "reg_lambda": 2.0, "gamma": 0.5, "min_child_weight": 3.0}
    given = job(algorithm={"name": "boosted_trees", **rule})
    found = shoal.simulate(given, unequal(X, y, objective=objective), progress=False)
    whole = central(X, y, found.model, SplitRule(*rule.values()), objective=objective)
    assert digest(found.model) == digest(whole.to_model())
    assert (whole.feature != LEAF).sum() > 20
    assert whole.missing_left.any() or objective != "binary:logistic"


def test_trees_are_those_of_any_division_and_order() -> None:
    """Features have no more values than a sketch has points; otherwise only the bins differ."""
    x = np.round(X, 1)
    x[:, 3] *= 1e6  # beyond the range of fixed-point sums
    found = []
    for count, precision in ((1, "float64"), (2, "fixed"), (5, "float64")):
        learners = unequal(x[:400], Y[:400], count=count, bins=256)
        found.append(shoal.simulate(job(aggregation_precision=precision), learners, progress=False).model)
    assert len({digest(one) for one in found}) == 1


@pytest.mark.parametrize("seed", range(3))
def test_faults_do_not_show_in_the_trees(seed: int) -> None:
    schedule = {"name": "rounds", "min_nodes": 3, "quorum": 3}
    faults = shoal.Faults(
        until_s=60, delay_s=0.3, message_loss=0.2, message_duplicates=0.2, coordinator_crashes=6, node_crashes=4
    )
    good = shoal.simulate(job(schedule=schedule), halves(), progress=False)
    bad = shoal.simulate(job(schedule=schedule), halves(), faults=faults, fault_seed=seed, progress=False)
    assert digest(bad.model) == digest(good.model)
    assert [version.reports for version in bad.versions] == [0, *[3] * ROUNDS]


def test_partial_cohorts_learn_from_the_rows_of_those_that_report() -> None:
    schedule = {"name": "rounds", "cohort": 2, "over_select": 1, "min_nodes": 4}
    learners = unequal(X, Y, test=(X, Y))
    found = shoal.simulate(job(schedule=schedule), learners, progress=False)
    assert Ensemble.of(found.model).is_complete
    assert {version.reports for version in found.versions[1:]} == {2}
    assert found.metrics["eval/auc"] > 0.75


def test_a_node_with_most_rows_is_no_outlier() -> None:
    """Its sums are 500 times those of the others, and the norms of updates are bounded by 100 times the usual."""
    parts = [slice(0, 3), slice(3, 6), slice(6, 2000)]
    learners = [TreesLearner((X[part], Y[part]), **FORM) for part in parts]
    found = shoal.simulate(job(schedule={"name": "rounds", "quorum": 3}), learners, progress=False)
    assert {version.reports for version in found.versions[1:]} == {3}


def test_every_version_is_a_model_and_the_job_ends_with_the_last_tree() -> None:
    found = shoal.simulate(job(rounds=100), halves(tested=True), progress=False)
    assert found.versions[-1].number == ROUNDS + 1
    losses = [version.metrics["eval/loss"] for version in found.versions if "eval/loss" in version.metrics]
    assert len(losses) >= ROUNDS
    assert losses[-1] < 0.7 * losses[0]
    short = shoal.simulate(job(rounds=6), halves(tested=True), progress=False)
    assert Ensemble.of(short.model).planted == 2


@pytest.mark.parametrize(
    ("columns", "form", "text"),
    [
        (8, {"depth": 2}, "depth 2"),
        (8, {"bins": 16}, "16 bins"),
        (8, {"objective": "reg:squarederror"}, "reg:squarederror"),
        (5, {}, "on 5 features"),
    ],
)
def test_a_node_of_another_form_is_refused_by_name(columns: int, form: dict[str, Any], text: str) -> None:
    odd = unequal(X[:, :columns], Y, count=1, **form)
    found = shoal.simulate(job(rounds=3, schedule={"name": "rounds"}), [*unequal(X, Y), *odd], progress=False)
    (why,) = {event.text for event in found.events if event.node == "node-4" and "failed: " in event.text}
    assert "the model is 4 trees of depth 3 on 8 features in 32 bins, binary:logistic; this node's is 4 trees" in why
    assert text in why.partition("this node's is")[2]
    assert [version.reports for version in found.versions[1:]] == [4, 4, 4]


def test_an_algorithm_of_weights_refuses_learners_of_trees_and_the_other_way_round() -> None:
    for name, text in (("fedavg", "and the learner grows decision trees"), ("scaffold", "and TreesLearner does not")):
        with pytest.raises(InvalidJob, match=f"node-0: {name} .*{text}"):
            shoal.simulate({"name": "w", "algorithm": {"name": name}}, halves(), progress=False)
    with pytest.raises(InvalidJob, match=r"node-0: boosted_trees grows decision trees, and Softmax has no methods"):
        shoal.simulate(job(), unbalanced(), progress=False)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"filters": [{"name": "half"}]}, "boosted_trees sends numbers that must arrive exactly"),
        ({"gossip": {"allowed": True}}, "boosted_trees keeps"),
        ({"shards": 2}, "boosted_trees does not say that it can work on parts"),
        ({"schedule": {"name": "buffer", "size": 2}}, "boosted_trees averages .*, and schedule buffer counts"),
        ({"schedule": {"name": "divergence"}}, "boosted_trees averages .*, and schedule divergence waits"),
    ],
)
def test_where_it_cannot_go_is_said_before_the_start(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidJob, match=text):
        parse_job(job(**fields))


def begun() -> tuple[Slots, Tree]:
    """The slots of a job whose edges are known, and a node's histogram."""
    learner = unequal(X, Y, count=1)[0]
    algorithm, slots = BoostedTrees(), BoostedTrees().init(learner.init(0))
    totals = algorithm.fold(Totals(), Update("a", 0, 1.0, {"sketch": learner.sketch()[1]}, 1.0), 1.0)
    slots = algorithm.step(slots, totals)
    model = slots["model"]
    assert isinstance(model, Tree)
    learner.load(model)
    return slots, learner.histogram()[1]


def spoilt(place: tuple[int, ...], value: float) -> Tree:
    sums = begun()[1]["sums"].copy()
    sums[place] = value
    return Tree.of({"sums": sums})


@pytest.mark.parametrize(
    ("histogram", "text"),
    [
        (spoilt((0, 3, 1, 0), np.nan), "a sum that is not finite"),
        (spoilt((0, 3, 1, 1), np.inf), "a sum that is not finite"),
        (spoilt((0, 3, 1, 1), -1.0), "a negative Hessian"),
        (spoilt((0, 3, 1, 0), 5.0), "features whose sums differ"),
    ],
)
def test_hostile_histograms_are_refused_by_name_and_change_nothing(histogram: Tree, text: str) -> None:
    algorithm, totals = BoostedTrees(), Totals()
    slots, good = begun()
    assert algorithm.update_layout(slots)["histogram"] == histogram.layout == good.layout
    algorithm.fold(totals, Update("a", 1, 1.0, {"histogram": good}, 1.0), 1.0)
    with pytest.raises(InvalidPayload, match=text):
        algorithm.fold(totals, Update("b", 1, 1.0, {"histogram": histogram}, 1.0), 1.0)
    alone = algorithm.fold(Totals(), Update("a", 1, 1.0, {"histogram": good}, 1.0), 1.0)
    found, expected = algorithm.step(slots, totals)["model"], algorithm.step(slots, alone)["model"]
    assert isinstance(found, Tree)
    assert isinstance(expected, Tree)
    assert digest(found) == digest(expected)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda sums: np.where(sums > 5, np.nan, sums), "] is not finite"),
        (lambda sums: -sums, "a histogram with a negative Hessian"),
        (lambda sums: sums[:, :5], "sums is F64[1, 5, 33, 2]"),
    ],
)
def test_a_hostile_node_is_refused_and_the_others_go_on(spoil: Callable[[Array], Array], text: str) -> None:
    class Hostile(TreesLearner):
        def histogram(self, *, progress: Progress = no_progress) -> tuple[Trained, Tree]:
            known, histogram = super().histogram()
            return known, Tree.of({"sums": spoil(histogram["sums"])})

    hostile = Hostile((X[:100], Y[:100]), **FORM)
    found = shoal.simulate(job(rounds=3, schedule={"name": "rounds"}), [*unequal(X, Y), hostile], progress=False)
    assert any(text in event.text for event in found.events if event.node == "node-4")
    assert [version.reports for version in found.versions] == [0, 5, 4, 4]


@pytest.mark.parametrize(
    ("name", "value"), [("counts", -1.0), ("counts", np.nan), ("values", np.inf), ("labels", 1e30), ("labels", 0.0)]
)
def test_hostile_sketches_are_refused(name: str, value: float) -> None:
    arrays = {one: array.copy() for one, array in unequal(X, Y)[0].sketch()[1].items()}
    arrays[name].flat[1] = value
    if name == "labels" and value:
        arrays[name][0] = value
        arrays[name][1] = 10.0
    with pytest.raises(InvalidPayload, match="a quantile sketch with an impossible number"):
        BoostedTrees().fold(Totals(), Update("a", 0, 1.0, {"sketch": Tree.of(arrays)}, 1.0), 1.0)


def test_another_model_is_no_start() -> None:
    with pytest.raises(InvalidPayload, match="not an ensemble of decision trees"):
        BoostedTrees().init(unbalanced()[0].model())


def ranks(parts: list[Array], bins: int) -> tuple[Array, float]:
    """The share of all values below each edge, and the sum of values."""
    sketches = [make_sketch(part.reshape(-1, 1).astype(np.float32), np.zeros(len(part)), 1.0, bins) for part in parts]
    (edges,) = merge_sketches(sketches, bins)
    whole = np.concatenate(parts).astype(np.float32)
    return np.array([(whole < edge).mean() for edge in edges]), len(whole)


def test_edges_are_quantiles_of_the_union() -> None:
    rng = np.random.default_rng(3)
    parts = [np.exp(rng.normal(place, 1 + place, 100 * 4**place)) for place in range(4)]
    found, _ = ranks(parts, 32)
    assert np.abs(found - np.arange(1, 32) / 32).max() < 1 / 64


def test_few_values_are_edges_of_their_own() -> None:
    parts = [np.array([3.0, 3.0, 1.0]), np.array([2.0, np.nan]), np.array([1.0])]
    sketches = [make_sketch(part.reshape(-1, 1).astype(np.float32), np.zeros(len(part)), 1.0, 8) for part in parts]
    assert merge_sketches(sketches, 8)[0][:3].tolist() == [2.0, 3.0, 2.0**53]
    assert np.array_equal(merge_sketches(sketches[::-1], 8), merge_sketches(sketches, 8))


def naive(sums: Array, rule: SplitRule) -> tuple[float, int, int, bool] | None:
    """The best split, by trying each in XGBoost's order."""
    (total_g, total_h), best = sums[0].sum(0), None
    for feature, one in enumerate(sums):
        last = len(one) - 2
        ways = [(False, place) for place in range(last + 1)]
        ways += [(True, place) for place in range(last, -1, -1)] if one[-1].any() else []
        for left_missing, place in ways:
            g, h = one[: place + 1].sum(0) + (one[-1] if left_missing else 0)
            if min(h, total_h - h) < rule.min_child_weight or min(h, total_h - h) <= 0:
                continue
            parts = [(g, h), (total_g - g, total_h - h)]
            gain = sum(a * a / (b + rule.reg_lambda) for a, b in parts) - total_g**2 / (total_h + rule.reg_lambda)
            if gain > 1e-6 and gain >= rule.gamma and (best is None or gain > best[0]):
                best = gain, feature, place, left_missing
    return best


@pytest.mark.parametrize("seed", range(30))
def test_the_best_split_is_that_of_trying_each(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(2, 40))
    gradients, hessians = rng.integers(-4, 5, rows) / 4.0, rng.integers(0, 3, rows) / 2.0
    sums = np.zeros((3, 6, 2))
    for feature in range(3):
        for row, place in enumerate(rng.integers(0, 6 if seed % 2 else 5, rows)):
            sums[feature, place] += gradients[row], hessians[row]
    rule = SplitRule(reg_lambda=float(rng.choice([0.0, 1.0])), gamma=float(rng.choice([0, 2.0])), min_child_weight=0.5)
    found, expected = best_split(sums, rule), naive(sums, rule)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert (found.feature, found.bin, found.missing_left) == expected[1:]


def test_a_node_that_no_row_of_the_cohort_reaches_stays_a_leaf() -> None:
    slots, histogram = begun()
    model = slots["model"]
    assert isinstance(model, Tree)
    ensemble = replace(Ensemble.of(model), progress=np.array([1, 0, 1], np.int32))
    sums = np.concatenate([histogram["sums"], np.zeros_like(histogram["sums"])])
    totals = BoostedTrees().fold(Totals(), Update("a", 1, 1.0, {"histogram": Tree.of({"sums": sums})}, 1.0), 1.0)
    made = BoostedTrees().step({"model": ensemble.to_model()}, totals)["model"]
    assert isinstance(made, Tree)
    grown = Ensemble.of(made)
    assert grown.feature[0, 1] != LEAF
    assert grown.feature[0, 2] == LEAF
    assert FORM["depth"] == grown.depth
