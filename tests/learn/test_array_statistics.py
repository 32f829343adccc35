"""Arrays of an `ArrayLearner` that are measured and not optimized."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shoal
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob
from shoal.core.model.tree import Tree
from shoal.learn import ArrayConfig, ArrayLearner

DECAY = 0.5
NAMES = ["norm.running_mean", "norm.running_var"]
LR = 0.1


def parameters(seed: int) -> dict[str, Any]:
    norm = {"running_mean": np.zeros(2, np.float32), "running_var": np.ones(2, np.float32), "seen": np.int64(0)}
    return {"w": np.ones(2, np.float32), "norm": norm}


def gradient(p: dict[str, Any], batch: Any) -> tuple[Any, Any]:
    """The gradient of a sum of weights, and running values of a batch."""
    norm = p["norm"]
    moved = {
        "running_mean": DECAY * norm["running_mean"] + (1 - DECAY) * batch[0].mean(0),
        "running_var": DECAY * norm["running_var"] + (1 - DECAY) * batch[0].var(0),
        "seen": None,
    }
    return p["w"].sum(), {"w": np.ones(2, np.float32), "norm": moved}


def learner(level: float = 8.0, **config: Any) -> ArrayLearner:
    """A node whose examples all have this level and no variance."""
    x = np.full((4, 2), level, np.float32)
    return ArrayLearner(parameters, (x, x), gradient=gradient, config=ArrayConfig(**{"statistics": NAMES} | config))


@pytest.mark.parametrize("patterns", [NAMES, ["norm.running_*"], ("*.running_mean", "*_var")])
def test_statistics_are_named_by_path_or_pattern(patterns: Any) -> None:
    layout = learner(statistics=patterns).layout
    assert layout.statistics == set(NAMES)
    assert {leaf.name for leaf in layout.leaves if layout.is_weight(leaf)} == {"w"}


def test_without_names_all_floats_are_weights() -> None:
    assert learner(statistics=()).layout.statistics == frozenset()


@pytest.mark.parametrize("wrong", [["norm.mean"], ["norm.seen"], ["w", "nothing.*"]])
def test_a_name_of_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidJob, match="statistics"):
        learner(statistics=wrong)


def test_a_text_is_no_list_of_names() -> None:
    with pytest.raises(InvalidJob, match="statistics is a text"):
        ArrayConfig(statistics="*")


def test_local_steps_take_the_measured_values() -> None:
    """At any learning rate: 0 -> 4 -> 6 towards 8, and 1 -> 1/2 -> 1/4 towards 0."""
    own = learner()
    own.train(TrainConfig(steps=2, batch_size=2, lr=LR))
    model = own.model()
    assert model["norm.running_mean"].tolist() == [6.0, 6.0]
    assert model["norm.running_var"].tolist() == [0.25, 0.25]
    assert model["w"] == pytest.approx(1 - 2 * LR)


def test_a_gradient_holds_the_values_after_its_pass() -> None:
    own = learner()
    _, slope = own.gradient(TrainConfig(batch_size=2))
    assert slope["norm.running_mean"].tolist() == [6.0, 6.0]
    assert slope["w"].tolist() == [1.0, 1.0]
    assert own.model()["norm.running_mean"].tolist() == [0.0, 0.0]


def test_no_value_keeps_the_statistic() -> None:
    own = learner()

    def weights_alone(p: dict[str, Any], batch: Any) -> tuple[Any, Any]:
        return p["w"].sum(), {"w": np.ones(2, np.float32), "norm": dict.fromkeys(p["norm"])}

    own._gradient = weights_alone
    own.train(TrainConfig(steps=1, batch_size=2, lr=LR))
    assert own.model()["norm.running_var"].tolist() == [1.0, 1.0]


def test_corrections_leave_statistics_alone() -> None:
    own = learner()

    def correct(weights: Tree, slope: Tree) -> Tree:
        return Tree.of({name: 0 * slope[name] for name in slope}, statistics=NAMES)

    own.train(TrainConfig(steps=1, batch_size=2, lr=LR), correct=correct)
    model = own.model()
    assert model["norm.running_mean"].tolist() == [4.0, 4.0]
    assert model["w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "fedsgd", "scaffold"])
def test_statistics_are_averaged_and_not_stepped(name: str) -> None:
    """The mean of two equal nodes with levels 8 and 16 is (4 + 8) / 2 after one batch; a step of Adam would be 0.03."""
    job = shoal.JobSpec(name="norms", rounds=1, algorithm={"name": name, "batch_size": 4} if name != "fedsgd" else name)
    model = shoal.simulate(job, [learner(8.0), learner(16.0)], progress=False).model
    assert model["norm.running_mean"].tolist() == [6.0, 6.0]
    assert model["norm.running_var"].tolist() == [0.5, 0.5]
    assert (model["w"] < 1).all()
