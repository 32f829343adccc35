"""A learner may give its weights and gradients as a dictionary of arrays."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.conformance.reference_learner import ConformanceLearner
from shoal.core.algorithm.algorithm import LocalResult, LocalTask, run_task
from shoal.core.algorithm.learner import TrainConfig, Trained, no_progress
from shoal.core.errors import LearnerFailed
from shoal.core.model.tree import Tree
from shoal.learn.example_count import count_examples
from shoal.learn.model_form import describe_layout, layout_of
from shoal.plugins import algorithms
from tests.algorithms.softmax import Softmax, digits, tree_of, unbalanced

NAMES = ["admm", "asgd", "dynamic", "fedasync", "fedavg", "fedprox", "fedsgd", "largebatch", "lbfgs", "scaffold"]


class Named:
    """The learner of a softmax regression, which gives dictionaries, also to `correct`."""

    applies_corrections = True

    def __init__(self, x: Any, y: Any) -> None:
        self.inner = Softmax(x, y)

    def init(self, seed: int) -> dict[str, Any]:
        return dict(self.inner.init(seed))

    def load(self, model: Tree) -> None:
        self.inner.load(tree_of(**model))

    def model(self) -> dict[str, Any]:
        return dict(self.inner.model())

    def train(self, config: TrainConfig, *, correct: Any = None, **more: Any) -> Trained:
        named = None if correct is None else lambda weights, gradient: tree_of(**correct(dict(weights), dict(gradient)))
        return self.inner.train(config, correct=named, **more)

    def gradient(self, config: TrainConfig, *, progress: Any = no_progress) -> tuple[Trained, dict[str, Any]]:
        trained, gradient = self.inner.gradient(config, progress=progress)
        return trained, dict(gradient)

    def evaluate(self) -> Any:
        return self.inner.evaluate()


def same(one: Any, other: Any) -> bool:
    """Return whether two models have the same tensors, whatever base model they complete."""
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def named() -> list[Named]:
    return [Named(one.x, one.y) for one in unbalanced()]


@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_that_of_trees(name: str) -> None:
    fields = {"local_steps": 20} if algorithms()[name].continual else {}
    job = {"name": "a", "rounds": 2, "algorithm": {"name": name, **fields}}
    found = [shoal.simulate(job, learners, progress=False) for learners in (named(), unbalanced())]
    assert same(found[0].model, found[1].model)


def test_nodes_know_the_model_of_such_a_learner() -> None:
    one, other = named()[0], unbalanced()[0]
    result = run_task(algorithms()["fedavg"](), one, LocalTask((1, 1), "init", 0, 3, {}), {})
    assert isinstance(result, LocalResult)
    assert isinstance(result.slots["model"], Tree)
    assert same(result.slots["model"], other.init(3))
    found = layout_of(one)
    assert found is not None
    assert found.leaves == other.model().layout.leaves
    assert count_examples(one, 3) == count_examples(other, 3)


class Late(Named):
    """A learner that has no weights before they are made: `model` gives `before`, or fails."""

    def __init__(self, before: dict[str, Any] | None) -> None:
        super().__init__(*digits())
        self.before, self.is_made = before, False

    def init(self, seed: int) -> dict[str, Any]:
        self.is_made = True
        return super().init(seed)

    def model(self) -> dict[str, Any]:
        if self.is_made:
            return super().model()
        if self.before is None:
            raise AttributeError("it has no weights")
        return self.before


@pytest.mark.parametrize("before", [None, {}])
def test_the_form_of_a_model_is_known_before_there_are_weights(before: dict[str, Any] | None) -> None:
    layout = Tree.of(Named(*digits()).model()).layout
    assert describe_layout(layout_of(Late(before))) == {"model": asdict(layout.form), "layout": layout.shown}


def test_a_learner_that_cannot_make_weights_tells_no_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Named, "init")
    assert describe_layout(layout_of(Late(None))) == {}


def test_a_learner_of_any_model_tells_no_form() -> None:
    learner = ConformanceLearner()
    learner.init(0)
    assert describe_layout(layout_of(learner)) == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([np.zeros(2)], "Wrong.init gives list, not arrays by name"),
        (None, "Wrong.init gives NoneType, not arrays by name"),
        ({1: np.zeros(2)}, "Wrong.init gives dict, not arrays by name"),
        ({"w": "text"}, "Wrong.init gives no arrays of numbers"),
        ({"w": {"inner": np.zeros(2)}}, "Wrong.init gives no arrays of numbers"),
        ({"w": [[1.0], [1.0, 2.0]]}, "Wrong.init gives no arrays of numbers"),
    ],
)
def test_other_things_are_refused_by_name(given: Any, says: str) -> None:
    wrong = type("Wrong", (Softmax,), {"init": lambda self, seed: given})
    task = LocalTask((1, 1), "init", 0, 1, {})
    with pytest.raises(LearnerFailed) as refused:
        run_task(algorithms()["fedavg"](), unbalanced(kind=wrong)[0], task, {})
    assert refused.value.message.startswith(says)
    assert refused.value.code == "learner.weights"
    assert "dictionary of arrays" in refused.value.hint
