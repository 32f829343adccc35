"""Results of the papers and measurements, on real data.

McMahan et al., AISTATS 2017: section 2 (one full-batch local step is gradient descent on the union of the data) and
section 3 (more local work needs fewer rounds). BatchNorm: its statistics must be averaged like weights.
"""

import itertools
import statistics
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from shoal.algorithms.fedavg import FedAvg
from shoal.algorithms.fedsgd import FedSGD
from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots, Tree
from shoal.learn import TorchLearner, digits, models
from tests.learn.federation import accuracies, digit_learners, rounds_to, versions

SIZES = (100, 500, 837)
LR = 0.5


def unbalanced() -> list[TorchLearner]:
    x, y = digits.digits()
    edges = np.cumsum((0, *SIZES))
    return [TorchLearner(models.mlp, (x[a:b], y[a:b])) for a, b in itertools.pairwise(edges)]


def central_descent(steps: int) -> dict[str, torch.Tensor]:
    """Plain gradient descent on the union, written without shoal."""
    x, y = (part[: sum(SIZES)] for part in digits.digits())
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = models.mlp()
    for _ in range(steps):
        module.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        with torch.no_grad():
            for p in module.parameters():
                p.sub_(LR * p.grad)
    return dict(module.state_dict())


@dataclass(frozen=True)
class Unweighted(FedAvg):
    """The mistake of averaging clients instead of examples."""

    def local(self, learner, task, memory):
        local = super().local(learner, task, memory)
        return type(local)(1.0, local.slots, local.metrics)


def apart(model: Tree, other: dict[str, torch.Tensor]) -> float:
    return max(float(np.abs(model[name] - other[name].numpy()).max()) for name in model)


def after(algorithm: Algorithm, rounds: int) -> Tree:
    learners = unbalanced()
    model = learners[0].init(3)
    *_, last = itertools.islice(versions(algorithm, model, learners), rounds)
    return last["model"]


@pytest.mark.parametrize(
    "algorithm", [FedAvg(epochs=1, batch_size=0, lr=LR), FedSGD(lr=LR), FedSGD(batch_size=64, lr=LR)]
)
def test_one_full_batch_step_is_central_gradient_descent(algorithm: Algorithm) -> None:
    assert apart(after(algorithm, 5), central_descent(5)) < 1e-5


def test_weights_by_examples_matter() -> None:
    assert apart(after(Unweighted(epochs=1, batch_size=0, lr=LR), 5), central_descent(5)) > 1e-2


def test_local_epochs_save_rounds() -> None:
    """20 IID clients, a quarter of them per round, to 95 %: E = 5 and B = 10 against one gradient per round."""
    averaging, gradients = [], []
    for seed in range(3):
        learners, judge = digit_learners(20, seed=seed), digits.held_out()
        fedavg, fedsgd = FedAvg(epochs=5, batch_size=10, lr=0.1), FedSGD(lr=0.5)
        averaging.append(rounds_to(0.95, 25, accuracies(fedavg, learners, judge, 0.25, seed)))
        gradients.append(rounds_to(0.95, 100, accuracies(fedsgd, learners, judge, 0.25, seed)))
    assert max(averaging) <= 25
    assert all(40 <= rounds <= 100 for rounds in gradients)
    assert statistics.median(gradients) / statistics.median(averaging) >= 2.5


@dataclass(frozen=True)
class StatisticsLeft(FedAvg):
    """The mistake of averaging parameters only: BatchNorm's statistics stay what they were at the start."""

    def step(self, slots: Slots, totals: Totals) -> Slots:
        old, new = slots["model"], super().step(slots, totals)["model"]
        mixed = {name: (old if "running" in name else new)[name] for name in new}
        return {"model": Tree.of(mixed, statistics=new.layout.statistics)}


@pytest.mark.parametrize("split", ["iid", "shards:4"])
def test_batch_norm_is_averaged_with_its_statistics(split: str) -> None:
    reached = {}
    for algorithm in (FedAvg(epochs=2, batch_size=16, lr=0.1), StatisticsLeft(epochs=2, batch_size=16, lr=0.1)):
        learners, judge = digit_learners(10, split, model="bn"), digits.held_out("bn")
        reached[type(algorithm)] = list(itertools.islice(accuracies(algorithm, learners, judge), 20))[-1]
    assert reached[FedAvg] >= 0.95
    assert reached[StatisticsLeft] < reached[FedAvg] - 0.05


def test_batch_norm_stands_small_last_batches() -> None:
    """Parts that leave two examples over: trained on alone, those now and then halve the accuracy of a round."""
    learners = [digits.learner(part, 4, model="bn") for part in range(4)]
    assert {2} < {learner.train_data.examples % 8 for learner in learners}
    reached = accuracies(FedAvg(epochs=2, batch_size=8, lr=0.2), learners, digits.held_out("bn"))
    assert min(list(itertools.islice(reached, 25))[8:]) >= 0.95


def test_batch_norm_counts_its_batches_as_whole_numbers() -> None:
    learners = digit_learners(4, model="bn")
    model = learners[0].init(0)
    slots = next(versions(FedAvg(epochs=2, batch_size=16), model, learners))
    steps = 2 * -(-max(learner.train_data.examples for learner in learners) // 16)
    assert model["1.num_batches_tracked"] == 0
    assert slots["model"]["1.num_batches_tracked"] == steps


def test_gradients_carry_batch_norms_statistics() -> None:
    """One gradient per round trains BatchNorm's statistics too, or evaluation would use those of the start."""
    learners, judge = digit_learners(4, model="bn"), digits.held_out("bn")
    assert rounds_to(0.95, 60, accuracies(FedSGD(lr=0.5), learners, judge)) <= 60
