"""Methods against oracles of a few lines of numpy, written from their papers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shoal
from shoal.algorithms.codistillation import Codistillation
from shoal.algorithms.largebatch import LargeBatch
from shoal.core.algorithm.algorithm import LocalResult, LocalTask, tree_slot
from shoal.core.model.tree import Slots
from shoal.jobs.spec import parse_job
from tests.algorithms.quadratics import DIMENSIONS, Floats, Quadratic, fleet, weights
from tests.algorithms.softmax import Softmax, digits, odds_of

ALL = {"weight_fraction_max": 1.0}
"""One of two nodes may have nearly all of the weight."""

SIZES = (1.0, 5.0, 2.0, 9.0)
LR, STEPS = 0.1, 3


def simulated(nodes: list[Quadratic], rounds: int, algorithm: dict[str, Any], **job: Any) -> Floats:
    schedule = {"name": "rounds", "min_nodes": len(nodes), **job.pop("schedule", {})}
    given = {"name": "papers", "rounds": rounds, "algorithm": {"lr": LR, **algorithm}, "schedule": schedule, **job}
    return weights(shoal.simulate(parse_job(given), nodes).model)


def descended(node: Quadratic, start: Floats, mu: float = 0.0) -> Floats:
    """Take `steps` gradient steps on f_k + mu/2 |w - start|^2."""
    w = start
    for _ in range(STEPS):
        w = w - LR * (node.slope(w) + mu * (w - start))
    return w


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_server_optimizers_begin_with_v_of_tau_squared(name: str) -> None:
    """Reddi et al. 2021, Algorithm 2: v_{-1} >= tau^2."""
    nodes, _ = fleet(4, SIZES)
    tau, rate, b1, b2 = 0.5, 0.3, 0.9, 0.95
    fields = {"epochs": STEPS, "tau": tau, "server_lr": rate, "beta1": b1}
    found = simulated(nodes, 5, {"name": name, **fields, **({} if name == "fedadagrad" else {"beta2": b2})})
    x, m, v = np.zeros(DIMENSIONS), np.zeros(DIMENSIONS), np.full(DIMENSIONS, tau**2)
    for _ in range(5):
        d = sum(node.examples * (descended(node, x) - x) for node in nodes) / sum(SIZES)
        m, squared = b1 * m + (1 - b1) * d, d * d
        if name == "fedadagrad":
            v = v + squared
        elif name == "fedadam":
            v = b2 * v + (1 - b2) * squared
        else:
            v = v - (1 - b2) * squared * np.sign(v - squared)
        x = x + rate * m / (np.sqrt(v) + tau)
    np.testing.assert_allclose(found, x, atol=1e-5)


def test_large_batches_are_averaged_plainly_and_warm_up_from_one_nodes_rate() -> None:
    """Goyal et al. 2017, section 2.2: from eta by equal amounts to k eta; a mean over k n examples, n of each node."""
    nodes, _ = fleet(4, SIZES)
    lr, warm_up, beta = 0.02, 4, 0.9
    fields = {"name": "largebatch", "warm_up": warm_up, "beta": beta, "lr": lr}
    found = simulated(nodes, 8, fields)
    x, m = np.zeros(DIMENSIONS), np.zeros(DIMENSIONS)
    for step in range(8):
        rate = lr + (len(nodes) * lr - lr) * min(step, warm_up) / warm_up
        m = beta * m + rate * np.mean([node.slope(x) for node in nodes], axis=0)
        x = x - m
    np.testing.assert_allclose(found, x, atol=1e-5)
    assert [LargeBatch(lr=1.0, warm_up=4).rate(step, 5) for step in range(6)] == [1, 2, 3, 4, 5, 5]


@pytest.mark.parametrize("plain", [True, False])
def test_fedprox_as_its_algorithm_two(plain: bool) -> None:
    """Li et al. 2020: devices drawn by p_k, and the plain mean of what they come to; or weighed by their examples."""
    nodes, log = fleet(4, SIZES)
    fields = {"name": "fedprox", "epochs": STEPS, "mu": 0.5, "uniform_weights": plain}
    found = simulated(nodes, 6, fields, schedule={"cohort": 2}, selection={"name": "examples"}, limits=ALL)
    x = np.zeros(DIMENSIONS)
    for start in range(0, len(log), 2):
        cohort = [node for node in nodes if node.name in log[start : start + 2]]
        shares = [1.0 if plain else node.examples for node in cohort]
        x = sum(s * descended(node, x, 0.5) for s, node in zip(shares, cohort, strict=True)) / sum(shares)
    np.testing.assert_allclose(found, x, atol=1e-5)


def test_codistillation_from_the_mean_of_all_teachers() -> None:
    """Anil et al. 2018, Algorithm 1: the second term's teacher is the mean of all other models' probabilities."""
    x, y = digits()
    x, y = x[:200], y[:200]
    algorithm = Codistillation(teachers="all", weight=0.7, burn_in=1, lr=0.5, batch_size=0)
    models = {name: Softmax(x, y).init(seed) for seed, name in enumerate("abcd", 1)}
    slots: Slots = {"model": models["a"], "versions": 3.0} | {f"model.{name}": model for name, model in models.items()}
    sent = algorithm.task_slots(slots, "b", "train")
    assert sorted(name for name in sent if name.startswith("teacher")) == ["teacher.0", "teacher.1", "teacher.2"]
    made = algorithm.local(Softmax(x, y), LocalTask((1, 1), "train", 3, 0, sent), {})
    assert isinstance(made, LocalResult)
    student = Softmax(x, y)
    student.load(models["b"])
    taught = np.mean([odds_of(models[name], x) for name in "acd"], axis=0)
    odds = student.odds(x)
    right = np.eye(10)[y]
    slope = (odds - right + 0.7 * (odds - taught)) / len(y)
    moved = tree_slot(made.slots, "model")
    np.testing.assert_allclose(moved["w"], -0.5 * x.T @ slope, atol=1e-5)
    np.testing.assert_allclose(moved["b"], -0.5 * slope.sum(0), atol=1e-5)
