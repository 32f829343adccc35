"""McMahan et al., AISTATS 2017, section 2, through hub and workers: with E = 1 and B = infinity federated averaging is
federated SGD, and both are gradient descent on the union of the data."""

from dataclasses import dataclass

import numpy as np
import pytest

import shoal
from shoal.core.algorithm.algorithm import Algorithm, LocalResult
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.tree import Tree
from shoal.core.scheduling.schedule import Schedule
from shoal.schedules.rounds import Rounds
from tests.algorithms.softmax import central, unbalanced

LR = 0.5
SEED = 3


@dataclass(frozen=True)
class Job:
    """A job without a file."""

    algorithm: Algorithm
    sums: str = "float64"
    name: str = "exact"

    def plan(self) -> JobPlan:
        return JobPlan(5, SEED, self.sums)

    def build_algorithm(self) -> Algorithm:
        return self.algorithm

    def build_schedule(self) -> Schedule:
        return Rounds()


@dataclass(frozen=True)
class Unweighted(Algorithm):
    """The mistake of averaging nodes instead of examples."""

    def local(self, learner, task, memory):
        local = super().local(learner, task, memory)
        return LocalResult(1.0, local.slots, local.metrics)


def spec(name: str, **fields: float) -> shoal.JobSpec:
    return shoal.JobSpec(name="exact", rounds=5, seed=SEED, algorithm={"name": name, "lr": LR, **fields})


def apart(a: Tree, b: Tree) -> float:
    return max(float(np.abs(a[name].astype(np.float64) - b[name]).max()) for name in a)


@pytest.mark.parametrize(
    "job",
    [
        spec("fedavg", epochs=1, batch_size=0),
        spec("fedsgd"),
        spec("fedsgd", batch_size=64),
        Job(Algorithm(epochs=1, batch_size=0, lr=LR), sums="fixed"),
    ],
    ids=["fedavg", "fedsgd", "fedsgd in pieces", "fixed sums"],
)
def test_full_batches_are_central_gradient_descent(job) -> None:
    result = shoal.simulate(job, unbalanced())
    assert [version.reports for version in result.versions] == [0, 3, 3, 3, 3, 3]
    assert apart(result.model, central(5, LR, SEED)) < 1e-5


def test_the_weights_matter() -> None:
    result = shoal.simulate(Job(Unweighted(epochs=1, batch_size=0, lr=LR)), unbalanced())
    assert apart(result.model, central(5, LR, SEED)) > 1e-2


def test_fedsgd_is_fedavg_with_one_full_batch() -> None:
    by_weights = shoal.simulate(spec("fedavg", epochs=1, batch_size=0), unbalanced())
    by_gradients = shoal.simulate(spec("fedsgd"), unbalanced())
    assert apart(by_weights.model, by_gradients.model) < 1e-6


def test_more_local_work_goes_further_in_a_round() -> None:
    """Section 3: local epochs on small batches save rounds."""
    little = shoal.simulate(spec("fedsgd"), unbalanced(tested=True))
    much = shoal.simulate(spec("fedavg", epochs=5, batch_size=10), unbalanced(tested=True))
    assert much.metrics["eval/loss"] < 0.5 * little.metrics["eval/loss"]
    assert much.accuracy > 0.85 > little.accuracy
