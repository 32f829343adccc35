"""Learners of boosted trees: their data, their measures, and XGBoost beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost

import shoal
from shoal.core.boosting.ensemble import Ensemble
from shoal.core.errors import InvalidJob, LearnerFailed, ShoalError
from shoal.core.model.tree import Array, Tree
from shoal.extras import install_hint
from shoal.learn.trees import TreesLearner, predict, to_xgboost
from shoal.learn.trees.objective import auc
from shoal.model_file import save_model
from tests.algorithms.tables import job, mixed, unequal

ROOT = Path(__file__).parents[2]
TUMOURS = np.loadtxt(ROOT / "examples/pytorch/tumours.csv", delimiter=",")
RULE = {"lr": 0.3, "gamma": 0.5, "min_child_weight": 2.0, "reg_lambda": 1.5}


def rows(name: str) -> tuple[Array, Array]:
    """A data set by name."""
    if name == "tumours":
        return TUMOURS[:, :-1].astype(np.float32), TUMOURS[:, -1].astype(np.int64)
    return mixed(20_000)


def grown(x: Array, y: Array, trees: int = 15, **form: Any) -> Tree:
    """The model of four nodes with unequal parts."""
    form = {"trees": trees, "depth": 5, "bins": 64, **form}
    given = job(rounds=1 + trees * form["depth"], algorithm={"name": "boosted_trees", **RULE})
    return shoal.simulate(given, unequal(x, y, **form), progress=False).model


def in_bins(model: Tree, x: Array) -> Array:
    """The numbers of the bins that values lie in: XGBoost makes a bin of each."""
    ensemble = Ensemble.of(model)
    binned = ensemble.binned(x).T.astype(np.float32)
    binned[binned == ensemble.bins] = np.nan
    return binned


def trained(x: Array, y: Array, rounds: int = 15, objective: str = "binary:logistic") -> xgboost.Booster:
    """XGBoost's own training on all rows."""
    names = {"lr": "eta", "reg_lambda": "lambda"}
    rule = {names.get(name, name): value for name, value in RULE.items()}
    given = {"objective": objective, "tree_method": "hist", "max_depth": 5, "max_bin": 256, "nthread": 1, **rule}
    return xgboost.train(given, xgboost.DMatrix(x, y), rounds)


@pytest.mark.parametrize("name", ["tumours", "mixed"])
def test_trees_are_those_of_xgboost_on_the_union_at_equal_bins(name: str) -> None:
    x, y = rows(name)
    half = len(y) // 2
    model = grown(x[:half], y[:half])
    theirs = trained(in_bins(model, x[:half]), y[:half])
    mine, expected = to_xgboost(model).trees_to_dataframe(), theirs.trees_to_dataframe()
    assert mine["Feature"].tolist() == expected["Feature"].tolist()
    assert mine["Missing"].tolist() == expected["Missing"].tolist()
    leaves = expected["Feature"] == "Leaf"
    ensemble = Ensemble.of(model)
    for feature, found, bound in zip(expected["Feature"], mine["Split"], expected["Split"], strict=True):
        if feature != "Leaf":
            edges = ensemble.edges[int(feature[1:])]
            assert found == edges[int(bound) - 1] if bound <= len(edges) else found > edges.max()
    assert leaves.sum() > 15
    other = theirs.predict(xgboost.DMatrix(in_bins(model, x[half:])))
    assert abs(auc(predict(model, x[half:]), y[half:]) - auc(other, y[half:])) < 0.001


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror"])
def test_a_booster_predicts_as_the_ensemble_does(objective: str, tmp_path: Path) -> None:
    x, y = mixed(2000)
    x[:, 6] = np.where(np.isnan(x[:, 7]), np.nan, 1.0)  # present or missing is all that it can tell
    labels = y if objective == "binary:logistic" else 100.0 + 10 * y + np.nan_to_num(x[:, 4])
    model = grown(x, labels, 5, objective=objective)
    file = save_model(model, tmp_path / "model.safetensors")
    booster = to_xgboost(shoal.load_model(file), [f"column {place}" for place in range(8)])
    fresh, _ = mixed(500, seed=1)
    table = xgboost.DMatrix(fresh, feature_names=booster.feature_names)
    assert booster.predict(table) == pytest.approx(predict(model, fresh), rel=1e-5)
    learner = unequal(x, labels, trees=5, depth=5, bins=64, objective=objective)[0]
    learner.load(model)
    assert np.array_equal(learner.predict(fresh), predict(model, fresh))
    assert booster.num_boosted_rounds() == 5
    assert booster.get_score(importance_type="weight")["column 0"] >= 1


def test_a_model_in_progress_is_a_booster_too() -> None:
    x, y = mixed(500)
    learners = unequal(x, y)
    empty = shoal.simulate(job(rounds=1), learners, progress=False).model
    assert predict(empty, x) == pytest.approx(np.full(500, y.mean()), rel=1e-6)
    assert to_xgboost(empty).predict(xgboost.DMatrix(x)) == pytest.approx(predict(empty, x), rel=1e-6)
    begun = shoal.simulate(job(rounds=3), learners, progress=False).model
    assert to_xgboost(begun).predict(xgboost.DMatrix(x)) == pytest.approx(predict(begun, x), rel=1e-6)
    assert len(set(predict(begun, x))) == 4


def test_the_documented_lines_run(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/how-to/trees.md").read_text()
    found: dict[str, Any] = {}
    exec(text.partition("```python\n")[2].partition("```")[0], found)
    assert found["result"].metrics["eval/auc"] > 0.9
    x = found["x"][800:]
    assert found["booster"].predict(xgboost.DMatrix(x)) == pytest.approx(predict(found["result"].model, x), abs=1e-5)


def test_without_xgboost_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "xgboost", None)
    with pytest.raises(ShoalError, match="to_xgboost needs xgboost") as caught:
        to_xgboost(TreesLearner(mixed(10)).model())
    assert caught.value.hint == install_hint("xgboost")


def test_the_area_under_the_curve_is_the_share_of_pairs_in_order() -> None:
    rng = np.random.default_rng(0)
    y, scores = rng.integers(0, 2, 60), rng.integers(0, 9, 60) / 8
    pairs = scores[y == 1][:, None] - scores[y == 0]
    assert auc(scores, y) == pytest.approx((pairs > 0).mean() + (pairs == 0).mean() / 2)


def test_measures_are_those_of_the_test_rows() -> None:
    x, y = mixed(600)
    learner = TreesLearner((x[:400], y[:400]), (x[400:], y[400:]), trees=5, depth=3)
    model = grown(x[:400], y[:400], 5, depth=3)
    assert learner.evaluate()["eval/loss"] == pytest.approx(np.log(2))
    learner.load(model)
    p = predict(model, x[400:])
    loss = -np.log(np.where(y[400:] == 1, p, 1 - p)).mean()
    found = learner.evaluate()
    assert found.pop("eval/loss") == pytest.approx(loss)
    right = ((p > 0.5) == y[400:]).mean()
    assert found == {"eval/examples": 200.0, "eval/accuracy": right, "eval/auc": pytest.approx(auc(p, y[400:]))}


def test_what_a_learner_has_seen_before_does_not_show() -> None:
    """It keeps the margins of its rows, and must know for which trees."""
    x, y = mixed(400)
    form: dict[str, Any] = {"trees": 4, "depth": 3, "bins": 64}
    versions = [grown(x, y, 4, depth=3), grown(x[::2], y[::2], 4, depth=3), grown(x, 1 - y, 4, depth=3)]
    cut = [Ensemble.of(one) for one in versions]
    short = [
        Ensemble(**{**vars(one), "progress": np.array([1, trees, 0], np.int32)}).to_model()
        for one in cut
        for trees in (1, 3, 0)
    ]
    used = TreesLearner((x, y), **form)
    for place in (0, 1, 5, 2, 3, 4, 8, 6, 0, 7, 1):
        fresh = TreesLearner((x, y), **form)
        for one in (used, fresh):
            one.load(short[place])
        (mine, found), (expected_loss, expected) = used.histogram(), fresh.histogram()
        assert (mine, found["sums"].tobytes()) == (expected_loss, expected["sums"].tobytes())


GOOD = mixed(20)


@pytest.mark.parametrize(
    ("train", "form", "text"),
    [
        ((GOOD[0][:0], GOOD[1][:0]), {}, r"shape \(0, 8\) with 0 labels"),
        ((GOOD[0], GOOD[1][:5]), {}, r"shape \(20, 8\) with 5 labels"),
        ((GOOD[0][0], GOOD[1]), {}, r"shape \(8,\) with 20 labels"),
        ((GOOD[0], GOOD[1] + 1), {}, "a label is 2; binary:logistic knows 0 and 1"),
        ((GOOD[0], np.where(GOOD[1], np.nan, 0)), {}, "a label that is not finite"),
        ((np.where(GOOD[0] > 80, np.inf, GOOD[0]), GOOD[1]), {}, "magnitude inf, which is not below"),
        ((np.where(GOOD[0] > 50, 1e30, GOOD[0]), GOOD[1]), {}, r"magnitude 1e\+30, which is not below"),
        (([["a", "b"]], [1]), {}, "cannot be used: could not convert string"),
        (GOOD, {"test": (GOOD[0][:, :5], GOOD[1])}, "8 features in the training data, 5 in the test data"),
    ],
)
def test_bad_data_are_refused_by_name(train: tuple[Any, Any], form: dict[str, Any], text: str) -> None:
    with pytest.raises(LearnerFailed, match=text):
        TreesLearner(train, **form)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"trees": 0}, "trees is 0"),
        ({"depth": 13}, "depth is 13"),
        ({"bins": 1}, "bins is 1"),
        ({"objective": "multi:softmax"}, "no objective is called 'multi:softmax'"),
    ],
)
def test_a_form_that_cannot_be_is_refused(form: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidJob, match=text):
        TreesLearner(GOOD, **form)


def test_predictions_of_other_columns_are_refused() -> None:
    with pytest.raises(LearnerFailed, match="the model knows 8 features"):
        predict(TreesLearner(GOOD).model(), GOOD[0][:, :5])


def test_one_class_and_one_row_are_enough_to_go_on() -> None:
    x, y = mixed(200)
    parts = [(x[y == 1], y[y == 1]), (x[:1], np.ones(1))]
    found = shoal.simulate(job(rounds=6), [TreesLearner(one, trees=2, depth=2) for one in parts], progress=False)
    assert predict(found.model, x).min() > 0.99


def test_a_node_without_test_rows_does_not_evaluate() -> None:
    x, y = rows("tumours")
    assert TreesLearner((x, y), (x[:0], y[:0])).evaluate() == {}
