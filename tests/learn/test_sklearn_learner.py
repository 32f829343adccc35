"""Estimators of scikit-learn: what one node alone learns is what scikit-learn learns; many come near the union."""

from __future__ import annotations

import hashlib
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import (
    Lasso,
    LinearRegression,
    LogisticRegression,
    Perceptron,
    Ridge,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

import shoal
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import Cancelled, InvalidJob, InvalidPayload, LearnerFailed
from shoal.core.model.tree import digest
from shoal.learn import SklearnLearner
from shoal.learn.arrays.array_batches import ArraySource, generator_of
from tests.algorithms.softmax import digits
from tests.support.sampling import extended

DIGITS = range(10)
CLASSIFIERS: dict[str, Any] = {
    "sgd": SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.1),
    "optimal": SGDClassifier(loss="hinge"),
    "perceptron": Perceptron(),
    "logistic": LogisticRegression(C=0.1),
    "mlp": MLPClassifier((16,)),
    "mlp-sgd": MLPClassifier((16,), solver="sgd"),
}
REGRESSORS: dict[str, Any] = {
    "sgd": SGDRegressor(learning_rate="constant"),
    "mlp": MLPRegressor(hidden_layer_sizes=(16,)),
}
LR = {"mlp": 0.01, "mlp-sgd": 0.2}


def tumours() -> tuple[Any, Any]:
    """The breast cancer data, standardized."""
    x, y = load_breast_cancer(return_X_y=True)
    return (x - x.mean(0)) / x.std(0), y


def classifier(name: str, part: slice = slice(0, 400), **more: Any) -> SklearnLearner:
    x, y = digits()
    return SklearnLearner(CLASSIFIERS[name], (x[part], y[part]), (x[1437:], y[1437:]), classes=DIGITS, **more)


def config(name: str, **more: Any) -> TrainConfig:
    return TrainConfig(**{"epochs": 3, "batch_size": 32, "lr": LR.get(name, 0.1), "seed": 5, **more})


@pytest.mark.parametrize("name", ["sgd", "optimal", "perceptron", "mlp", "mlp-sgd"])
def test_one_task_is_what_scikit_learn_does_with_the_same_batches(name: str) -> None:
    """To the bit: coefficients, learning rates that fall, and a new optimizer for each task."""
    learner = classifier(name)
    learner.init(2)
    own = learner.estimator()
    for seed in (5, 6):
        learner.train(config(name, seed=seed))
        fresh = name.startswith("mlp")
        trained = clone(CLASSIFIERS[name]) if fresh else own
        x, y = digits()
        shuffle, random = generator_of(seed), generator_of(seed)
        trained.set_params(random_state=random)
        if "eta0" in trained.get_params() and name != "optimal":
            trained.set_params(eta0=0.1)
        if fresh:
            trained.set_params(learning_rate_init=1e-300, random_state=0).partial_fit(x[:1], y[:1], classes=DIGITS)
            # the initial values of a new optimizer are not available otherwise
            del vars(trained)["_optimizer"]
            trained.set_params(learning_rate_init=LR[name], random_state=random)
            trained.coefs_, trained.intercepts_ = own.coefs_, own.intercepts_
        for _ in range(3):
            for part_x, part_y in ArraySource((x[:400], y[:400])).epoch(32, shuffle):
                if fresh:
                    trained.set_params(batch_size=len(part_y))
                trained.partial_fit(part_x, part_y, classes=DIGITS)
        own = trained
    found = learner.estimator()
    for key in ("coef_", "intercept_", "coefs_", "intercepts_", "t_"):
        if hasattr(own, key) and not (fresh and key == "t_"):
            mine, theirs = getattr(found, key), getattr(own, key)
            pairs = zip(mine, theirs, strict=True) if isinstance(mine, list) else [(mine, theirs)]
            assert all(np.array_equal(one, other) for one, other in pairs), key


def test_the_bits_follow_the_seed_alone() -> None:
    for name in ("sgd", "logistic", "mlp"):
        found = []
        for seed in (5, 5, 6):
            learner = classifier(name, slice(0, 64))
            start = learner.init(1)
            learner.train(config(name, seed=9))
            learner.load(start)
            learner.train(config(name, seed=seed))
            found.append(digest(learner.model()))
        assert found[0] == found[1]
        assert (found[1] != found[2]) == (name != "logistic"), name


SETTINGS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "digits-sgd": (SGDClassifier(loss="log_loss", alpha=0.001), 30, {"batch_size": 0}),
    "digits-logistic": (LogisticRegression(C=10.0), 10, {"epochs": 5}),
    "tumours-sgd": (SGDClassifier(loss="log_loss", learning_rate="constant"), 10, {"epochs": 2, "lr": 0.01}),
    "tumours-mlp": (MLPClassifier((16,)), 6, {"epochs": 3, "lr": 0.01}),
}


@pytest.mark.parametrize("name", extended(SETTINGS, but=["digits-logistic"]))
def test_a_federation_comes_within_a_point_of_central_training(name: str) -> None:
    """Four nodes, and one that has all their data and trains as long."""
    estimator, rounds, work = SETTINGS[name]
    x, y = digits() if name.startswith("digits") else tumours()
    order = np.random.default_rng(0).permutation(len(y))
    test, rest = order[: len(y) // 5], order[len(y) // 5 :]

    def learner(part: Any) -> SklearnLearner:
        return SklearnLearner(estimator, (x[part], y[part]), (x[test], y[test]), classes=np.unique(y))

    learners = [learner(part) for part in np.array_split(rest, 4)]
    result = shoal.simulate({"name": "u", "rounds": rounds, "algorithm": {"name": "fedavg", **work}}, learners)
    central = learner(rest)
    central.init(0)
    for seed in range(rounds):
        central.train(TrainConfig(**work, seed=seed))
    reached, expected = learners[0].estimator(result.model).score(x[test], y[test]), central.evaluate()["eval/accuracy"]
    assert reached == pytest.approx(result.versions[-1].metrics["eval/accuracy"], abs=1e-12)
    assert reached >= expected - 0.01
    assert expected > 0.95


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors_learn(name: str) -> None:
    x, y = tumours()
    target = x[:, 3] + 0.1 * y
    rest = np.delete(x, 3, 1)
    learners = [SklearnLearner(REGRESSORS[name], (rest[a::3], target[a::3]), (rest, target)) for a in range(3)]
    result = shoal.simulate(
        {"name": "r", "rounds": 8, "algorithm": {"name": "fedavg", "lr": 0.005, "epochs": 2}}, learners
    )
    assert result.versions[-1].metrics["eval/loss"] < 0.1 * result.versions[0].metrics["eval/loss"]
    assert "eval/accuracy" not in result.versions[-1].metrics


def test_a_saved_model_predicts(tmp_path: Path) -> None:
    learner = classifier("mlp")
    result = shoal.simulate({"name": "s", "rounds": 2, "algorithm": {"name": "fedavg", "lr": 0.01}}, [learner])
    result.save(tmp_path / "model.safetensors")
    x, y = digits()
    fresh = classifier("mlp")
    fitted = fresh.estimator(shoal.load_model(tmp_path / "model.safetensors"))
    assert fitted.score(x[1437:], y[1437:]) == result.versions[-1].metrics["eval/accuracy"]
    assert fitted.classes_.tolist() == list(DIGITS)
    fresh.load(result.model)
    assert np.array_equal(fresh.predict(x[1437:]), fitted.predict_proba(x[1437:]))
    with pytest.raises(InvalidPayload):
        classifier("sgd").estimator(result.model)


def test_classes_that_a_node_lacks_are_kept() -> None:
    """Labels may be texts; the node with two of the three classes trains on the same form."""
    x = np.eye(6)
    y = np.array(["ape", "bee", "ape", "bee", "cat", "cat"])
    learners = [
        SklearnLearner(CLASSIFIERS[name], (x[:4], y[:4]), classes=["cat", "bee", "ape"]) for name in ("sgd", "logistic")
    ]
    full = SklearnLearner(CLASSIFIERS["sgd"], (x, y), classes=["ape", "bee", "cat"])
    assert learners[0].layout == learners[1].layout or learners[0].layout == full.layout
    for learner in learners:
        learner.train(config("sgd"))
        assert learner.estimator().classes_.tolist() == ["ape", "bee", "cat"]
        assert set(learner.estimator().predict(x[:4])) == {"ape", "bee"}


def test_nodes_of_other_classes_do_not_fit() -> None:
    """The empty tensor that names them makes another layout, which is refused when a node joins."""
    x, y = np.eye(4), np.array([0, 1, 0, 1])
    ours = SklearnLearner(CLASSIFIERS["sgd"], (x, y), classes=[0, 1])
    assert "classes: 0, 1" in ours.layout.index
    renamed = SklearnLearner(CLASSIFIERS["sgd"], (x, np.where(y, "b", "a")), classes=["a", "b"])
    with pytest.raises(InvalidPayload, match="classes: a, b"):
        ours.load(renamed.model())
    many = SklearnLearner(CLASSIFIERS["sgd"], (x, y), classes=range(100))
    shown = ", ".join(map(str, range(100)))
    assert f"classes: 100, {hashlib.sha256(shown.encode()).hexdigest()}" in many.layout.index


def test_pipelines_of_fixed_steps() -> None:
    """Fitted before on what every node has, or in no need of a fit; another scaler is another base model."""
    x, y = load_breast_cancer(return_X_y=True)
    fitted = [StandardScaler().fit(x[part]) for part in (slice(0, 100), slice(100, 200))]
    learners = [
        SklearnLearner(
            Pipeline([("scale", scaler), ("norm", Normalizer()), ("model", CLASSIFIERS["sgd"])]),
            (x[200:400], y[200:400]),
            (x[400:], y[400:]),
            classes=[0, 1],
        )
        for scaler in (fitted[0], fitted[0], fitted[1])
    ]
    for learner in learners:
        learner.train(config("sgd"))
    assert digest(learners[0].model()) == digest(learners[1].model())
    with pytest.raises(InvalidPayload, match="base model"):
        learners[0].load(learners[2].model())
    pipeline = learners[0].estimator()
    assert isinstance(pipeline, Pipeline)
    assert pipeline.score(x[400:], y[400:]) == learners[0].evaluate()["eval/accuracy"] > 0.8


def test_texts_are_hashed_in_a_pipeline() -> None:
    texts = np.array(["good work", "bad luck", "a good day", "a bad day"] * 5)
    y = np.array([1, 0] * 10)
    pipeline = make_pipeline(HashingVectorizer(n_features=64), SGDClassifier(loss="log_loss"))
    learner = SklearnLearner(pipeline, (texts, y), (texts, y), classes=[0, 1])
    learner.train(config("sgd"))
    assert learner.evaluate()["eval/accuracy"] == 1.0
    assert learner.estimator().predict(["such a good one"]).tolist() == [1]


UNFITTED = make_pipeline(StandardScaler(), SGDClassifier())


@pytest.mark.parametrize(
    ("estimator", "message", "hint"),
    [
        (
            RandomForestClassifier(),
            "models of RandomForestClassifier cannot be averaged",
            "SGDClassifier, SGDRegressor",
        ),
        (RandomForestRegressor(), "models of RandomForestRegressor cannot be averaged", "SGDRegressor"),
        (GaussianNB(), "models of GaussianNB cannot be averaged", "SGDClassifier"),
        (LinearRegression(), "LinearRegression cannot", r"SGDRegressor\(penalty=None\)"),
        (Ridge(), "Ridge cannot", r"SGDRegressor\(penalty='l2'\)"),
        (Lasso(), "Lasso cannot", r"SGDRegressor\(penalty='l1'\)"),
        (LogisticRegression(solver="liblinear"), "LogisticRegression cannot", "another solver"),
        (MLPClassifier(solver="lbfgs"), "MLPClassifier cannot", "solver='adam'"),
        (SGDClassifier(average=True), "average=True", "leave average out"),
        (SGDClassifier(early_stopping=True), "early_stopping should be False", ""),
        (UNFITTED, "step 'standardscaler' of the pipeline, a StandardScaler, is not fitted", "fit it before"),
        (SGDClassifier, "SGDClassifier is not an estimator", "not its class"),
        (object(), "object is not an estimator", ""),
    ],
)
def test_what_cannot_be_averaged_is_refused_by_name(estimator: Any, message: str, hint: str) -> None:
    classes = [0, 1] if hasattr(estimator, "predict_proba") or "Class" in str(estimator) else None
    if isinstance(estimator, (GaussianNB, LogisticRegression)) or estimator is UNFITTED:
        classes = [0, 1]
    with pytest.raises((InvalidJob, LearnerFailed), match=message) as caught:
        SklearnLearner(estimator, (np.eye(4), np.array([0, 1, 0, 1])), classes=classes)
    assert re.search(hint, caught.value.hint)


def test_classes_are_declared() -> None:
    x, y = np.eye(4), np.array([0, 1, 0, 7])
    with pytest.raises(InvalidJob, match="SGDClassifier needs at least two classes") as caught:
        SklearnLearner(CLASSIFIERS["sgd"], (x, y))
    assert "same on every node" in caught.value.hint
    with pytest.raises(InvalidJob, match=r"the label 7, which is none of the classes \[0, 1\]"):
        SklearnLearner(CLASSIFIERS["sgd"], (x, y), classes=[0, 1])
    with pytest.raises(InvalidJob, match="the label 7"):
        SklearnLearner(CLASSIFIERS["sgd"], (x[:2], y[:2]), (x, y), classes=[0, 1])
    lazy = SklearnLearner(CLASSIFIERS["sgd"], list(zip(x, y, strict=True)), classes=[0, 1])
    with pytest.raises(LearnerFailed, match="the label 7"):
        lazy.train(config("sgd"))
    with pytest.raises(InvalidJob, match="SGDRegressor knows no classes"):
        SklearnLearner(SGDRegressor(), (x, y), classes=[0, 1])
    with pytest.raises(InvalidJob, match="inputs and targets"):
        SklearnLearner(CLASSIFIERS["sgd"], x, classes=[0, 1])


def test_streams_have_the_weight_of_their_examples() -> None:
    learner = classifier("sgd")
    learner.init(0)
    task = config("sgd", steps=3, batch_index=4, sequence_seed=2)
    assert learner.train(task).weight == 96
    once = digest(learner.model())
    learner.init(0)
    learner.train(config("sgd", steps=2, batch_index=4, sequence_seed=2))
    learner.train(config("sgd", steps=1, batch_index=6, sequence_seed=2, seed=9))
    assert learner.model()["t_"] == 97
    assert digest(learner.model()) != once, "an estimator shuffles within a batch by the task's seed"
    with pytest.raises(LearnerFailed, match="LogisticRegression trains on all data at once") as caught:
        classifier("logistic").train(task)
    assert "SGDClassifier" in caught.value.hint


def test_without_a_learning_rate_nothing_is_learned() -> None:
    for name in CLASSIFIERS:
        learner = classifier(name)
        before = digest(learner.init(3))
        assert learner.train(config(name, lr=0.0, steps=1)).weight == 400
        assert learner.train(config(name, lr=0.0, steps=2, batch_index=0)).weight == 64
        assert learner.train(config(name, epochs=0, lr=0.1 if name != "logistic" else 0.0)).weight == 400
        assert digest(learner.model()) == before, name


def test_cancelling_leaves_the_weights() -> None:
    def stop(fraction: float) -> None:
        if fraction > 0.5:
            raise Cancelled("superseded")

    for name in CLASSIFIERS:
        learner = classifier(name)
        before = digest(learner.init(3))
        with pytest.raises(Cancelled):
            learner.train(config(name), progress=stop)
        assert digest(learner.model()) == before, name


def test_metrics_are_ones_own_if_wanted() -> None:
    learner = classifier("mlp", metrics={"wrong": lambda target, predicted: float((target != predicted).mean())})
    assert set(learner.evaluate()) == {"eval/examples", "eval/loss", "eval/wrong"}
    assert set(classifier("optimal").evaluate()) == {"eval/examples", "eval/accuracy"}
    x, y = digits()
    assert SklearnLearner(CLASSIFIERS["sgd"], (x, y), classes=DIGITS).evaluate() == {}
    assert "train/loss" in classifier("mlp").train(config("mlp")).metrics


def test_warnings_of_a_few_iterations_are_not_shown() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier("logistic").train(config("logistic", epochs=1))


def test_a_function_of_ones_own_needs_no_fit() -> None:
    x, y = digits()
    pipeline = make_pipeline(FunctionTransformer(np.sqrt), CLASSIFIERS["sgd"])
    learner = SklearnLearner(pipeline, (x.reshape(-1, 8, 8).reshape(-1, 64), y), classes=DIGITS)
    assert learner.layout.base_model == ""


def test_logistic_regression_goes_on_from_what_it_was_given() -> None:
    """The examples of classes that a node may lack have no weight."""
    x, y = digits()
    learner, own = classifier("logistic"), LogisticRegression(C=0.1, warm_start=True, max_iter=3)
    for _ in range(2):
        learner.train(config("logistic", epochs=2.5))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            own.fit(x[:400], y[:400])
        assert np.allclose(learner.estimator().coef_, own.coef_, atol=1e-6)
        assert np.allclose(learner.estimator().intercept_, own.intercept_, atol=1e-6)


def test_a_node_without_test_examples_does_not_evaluate() -> None:
    x, y = tumours()
    assert SklearnLearner(CLASSIFIERS["sgd"], (x, y), (x[:0], y[:0]), classes=[0, 1]).evaluate() == {}
