"""Learners that are evaluated at once measure what each measures alone."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.jobs.spec import parse_job
from shoal.learn import TorchConfig, TorchLearner, digits, models
from shoal.learn.stacked.stacked_evaluation import evaluate_stacked
from tests.learn.stacked_learners import LENGTHS

JOB = parse_job({"name": "j", "rounds": 2, "algorithm": {"name": "fedavg", "batch_size": 8}})


def confidence(output: Tensor, target: Tensor) -> Tensor:
    return output.softmax(1).max(1).values.mean()


def learners(lengths: list[int] = LENGTHS, model: Any = models.mlp, **more: Any) -> list[TorchLearner]:
    """Return learners whose test data have these lengths."""
    x, y = digits.digits()
    places = pairwise(np.cumsum([0, *lengths]))
    return [TorchLearner(model, (x[:20], y[:20]), (x[a:b], y[a:b]), device="cpu", **more) for a, b in places]


def assert_as_alone(given: list[TorchLearner]) -> None:
    base = given[0].init(1)
    together = evaluate_stacked(given, base)
    for learner in given:
        learner.load(base)
        alone, found = learner.evaluate(), together[learner]
        assert not isinstance(found, str), found
        assert found == pytest.approx(alone, rel=1e-6, abs=1e-6)
        assert list(found) == list(alone)


@pytest.mark.parametrize("model", [models.mlp, models.bn])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"loss": nn.CrossEntropyLoss()},
        {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)},
        {"loss": nn.CrossEntropyLoss(ignore_index=3)},
        {"metrics": {"confidence": confidence}},
        {"metrics": {}},
        {"config": TorchConfig(eval_batch_size=40)},
    ],
    ids=["usual", "module", "smoothed", "class ignored", "metric", "no metric", "batches"],
)
def test_metrics_are_those_of_each_alone(model: Any, more: dict[str, Any]) -> None:
    assert_as_alone(learners(model=model, **more))


def test_targets_that_are_ignored() -> None:
    x, y = digits.digits()
    targets = y.where(torch.arange(len(y)) % 5 > 0, -100)
    assert_as_alone(
        [
            TorchLearner(models.mlp, (x[:20], y[:20]), (x[a:b], targets[a:b]), device="cpu")
            for a, b in ((0, 9), (9, 10), (10, 11), (11, 30))
        ]
    )


def test_statistics_of_batch_norm_do_not_change() -> None:
    given = learners(model=models.bn)
    base = given[0].init(1)
    evaluate_stacked(given, base)
    assert all(np.array_equal(value, base[name]) for name, value in given[0].model().items())


class Centered(nn.Linear):
    """A layer whose outputs depend on the other examples of their batch."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs - inputs.mean(0))


def fails(output: Tensor, target: Tensor) -> float:
    raise ValueError("no such metric")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"model": lambda: Centered(64, 10)}, "outputs seem to depend on other examples of their batch"),
        ({"config": TorchConfig(eval_batch_size=10)}, "they have more test data than eval_batch_size"),
        ({"metrics": {"broken": fails}}, "they cannot be evaluated at once (evaluating failed"),
    ],
    ids=["by batch", "large", "error"],
)
def test_others_are_evaluated_alone(more: dict[str, Any], reason: str) -> None:
    given = learners([11] * 9, **more)
    for why in evaluate_stacked(given, given[0].init(1)).values():
        assert isinstance(why, str)
        assert why.startswith(reason)


def test_test_data_of_another_kind_are_evaluated_alone() -> None:
    x, y = digits.digits()
    wide = TorchLearner(models.mlp, (x[:20], y[:20]), (x[:9], y[:9].to(torch.int32)), device="cpu")
    listed = TorchLearner(models.mlp, (x[:20], y[:20]), list(zip(x[:9], y[:9], strict=True)), device="cpu")
    given = [*learners([9, 9]), wide, listed]
    found = [*evaluate_stacked(given, given[0].init(1)).values()]
    assert sorted(map(str, found))[:2] == [
        "their test data are not tensors",
        "their test data differ in shape, type or place",
    ]
    assert sum(isinstance(one, dict) for one in found) == 2


def simulated(given: list[TorchLearner]) -> tuple[shoal.Result, shoal.Result]:
    return shoal.simulate(JOB, given), shoal.simulate(JOB, given, fidelity="wire")


def test_no_learner_of_a_simulation_is_evaluated_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    given = learners()
    expected = shoal.simulate(JOB, given, fidelity="wire")
    monkeypatch.setattr(TorchLearner, "evaluate", lambda self: pytest.fail("it is evaluated alone"))
    result = shoal.simulate(JOB, given)
    assert result.metrics == pytest.approx(expected.metrics, rel=1e-5)
    assert result.training == "30 tasks at once; 45 evaluations at once"


class Unstacked(TorchLearner):
    """A learner that is trained one by one, because it might train in a way of its own."""


@pytest.mark.parametrize(("kind", "expected"), [(TorchLearner, lambda given: given[:1]), (Unstacked, list)])
def test_no_learner_without_test_data_is_loaded(kind: Any, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first one of each stack that is trained, or each that is trained alone."""
    x, y = digits.digits()
    given = [kind(models.mlp, (x[:20], y[:20]), device="cpu") for _ in range(20)]
    loaded: list[object] = []
    load = TorchLearner.load
    monkeypatch.setattr(TorchLearner, "load", lambda self, model: (loaded.append(self), load(self, model))[1])
    shoal.simulate(JOB, given)
    assert loaded == expected(given) * 2


def test_the_result_says_which_were_evaluated_alone() -> None:
    result, wire = simulated(learners([9] * 12, model=lambda: Centered(64, 10)))
    assert result.training == (
        "24 tasks at once; 36 evaluations one by one: outputs seem to depend on other examples of their batch"
    )
    assert result.metrics == pytest.approx(wire.metrics, rel=1e-4)
