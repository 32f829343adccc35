"""Asynchronous methods against their papers: staleness by hand, and what it buys (studies B2, B3b, G2).

Time is that of the simulator: a task takes a second, of the slow node twenty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from shoal.algorithms.asgd import AsyncSGD
from shoal.algorithms.downpour import Downpour
from shoal.algorithms.fedasync import FedAsync
from shoal.algorithms.fedbuff import FedBuff
from shoal.core.algorithm.algorithm import Algorithm, Update, tree_slot
from shoal.core.algorithm.learner import TrainConfig, Trained
from shoal.core.algorithm.server_optimizer import Momentum
from shoal.core.errors import InvalidJob
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots, Tree
from shoal.core.scheduling.schedule import Schedule
from shoal.learn import digits
from shoal.schedules.buffer import Buffer
from shoal.schedules.rounds import Rounds
from tests.algorithms.softmax import Softmax
from tests.algorithms.softmax import digits as softmax_digits
from tests.learn.federation import digit_learners
from tests.support.sampling import nightly

torch.set_num_threads(1)


@dataclass(frozen=True)
class Job:
    """A job without a file."""

    algorithm: Algorithm
    schedule: Schedule
    versions: int
    seed: int = 1
    name: str = "asynchronous"

    def plan(self) -> JobPlan:
        return JobPlan(self.versions, self.seed)

    def build_algorithm(self) -> Algorithm:
        return self.algorithm

    def build_schedule(self) -> Schedule:
        return self.schedule


def tree(*values: float) -> Tree:
    return Tree.of({"w": np.array(values, np.float32)})


def folded(algorithm: Algorithm, slots: Slots, reports: list[tuple[Tree, int]]) -> np.ndarray:
    """The model after one version of these updates and their ages."""
    totals = Totals()
    for number, (moved, staleness) in enumerate(reports):
        update = Update(str(number), 0, 10.0 * (number + 1), {"model": moved}, 1e3)
        totals = algorithm.fold(totals, update, algorithm.staleness_weight(staleness))
    return np.asarray(tree_slot(algorithm.step(slots, totals), "model")["w"])


def test_fedbuff_divides_by_k() -> None:
    slots: Slots = {"model": tree(1.0, 1.0)}
    after = folded(FedBuff(server_lr=0.5), slots, [(tree(2.0, 0.0), 0), (tree(0.0, 4.0), 3)])
    assert np.allclose(after, [1 + 0.5 / 2 * 2, 1 + 0.5 / 2 * 4 / 2])


def test_fedasync_mixes_models() -> None:
    slots: Slots = {"model": tree(1.0, 1.0)}
    share = 0.6 / 2  # of a model that is three versions old: (1 + 3) ** -0.5
    assert np.allclose(folded(FedAsync(), slots, [(tree(3.0, 0.0), 3)]), [1 + share * 2, 1 - share])
    hinge = FedAsync(staleness="hinge", a=10, b=4)
    assert [hinge.staleness_weight(tau) for tau in (0, 4, 5, 6)] == [1.0, 1.0, 1 / 11, 1 / 21]
    assert {FedAsync(staleness="constant").staleness_weight(tau) for tau in (0, 9)} == {1.0}


def test_a_gradients_step_is_divided_by_its_age() -> None:
    """Eq. 3: lr / tau, momentum on top; a fresh one and one that is one version old count in full."""
    algorithm = AsyncSGD(momentum=0.5)
    slots = algorithm.init(tree(0.0, 0.0))
    assert np.allclose(folded(algorithm, slots, [(tree(1.0, 0.0), 0), (tree(0.0, 4.0), 4)]), [0.5, 0.5])
    assert [algorithm.staleness_weight(tau) for tau in (0, 1, 2)] == [1.0, 1.0, 0.5]
    assert AsyncSGD(staleness="ignore").staleness_weight(7) == 1.0


def test_downpours_adagrad_does_not_see_the_local_rate() -> None:
    for scale in (1.0, 0.01):
        algorithm = Downpour(server_lr=0.3)
        slots = algorithm.init(tree(0.0, 0.0))
        first = algorithm.step(
            slots, algorithm.fold(Totals(), Update("a", 0, 1.0, {"model": tree(3 * scale, 0)}, 9), 1.0)
        )
        assert np.allclose(tree_slot(first, "model")["w"], [0.3, 0.0], atol=1e-5)
        again = algorithm.step(
            first, algorithm.fold(Totals(), Update("a", 0, 1.0, {"model": tree(4 * scale, 0)}, 9), 1.0)
        )
        assert np.allclose(tree_slot(again, "model")["w"], [0.3 + 0.3 * 4 / 5, 0.0], atol=1e-5)


WRONG: list[tuple[type[Algorithm], str, Any]] = [
    (FedBuff, "server_lr", 0.0),
    (FedBuff, "exponent", -1.0),
    (FedAsync, "alpha", 1.5),
    (FedAsync, "a", -1.0),
    (FedAsync, "b", -1),
    (AsyncSGD, "momentum", 1.0),
    (Downpour, "server_lr", -1.0),
]


@pytest.mark.parametrize(("kind", "name", "value"), WRONG)
def test_numbers_that_make_no_sense(kind: type[Algorithm], name: str, value: Any) -> None:
    with pytest.raises(InvalidJob, match=name):
        kind(**{name: value})


# ------------------------------------------------------------------------------------------------- in virtual time
class Seeds(Softmax):
    """Remembers the randomness that it was given."""

    def __init__(self) -> None:
        x, y = softmax_digits()
        super().__init__(x[:50], y[:50])
        self.seeds: list[int] = []

    def train(self, config: TrainConfig, **more: Any) -> Trained:
        self.seeds.append(config.seed)
        return super().train(config, **more)


def test_who_trains_again_from_the_same_model_draws_other_batches() -> None:
    """One node alone makes versions of three reports each."""
    learner = Seeds()
    result = shoal.simulate(Job(FedBuff(), Buffer(size=3), 4), [learner])
    assert [version.reports for version in result.versions] == [0, 3, 3, 3, 3]
    assert len(set(learner.seeds)) == len(learner.seeds) == 12


@pytest.mark.parametrize("size", [1, 2, 5])
def test_nobody_waits_for_the_slowest(size: int) -> None:
    """One of ten nodes is ten times slower: a tenth of the work is missing, and nothing else."""
    ends = []
    for slow in ({}, {"node-9": 10.0}):
        result = shoal.simulate(Job(FedBuff(), Buffer(size=size, min_nodes=10), 100 // size), crowd(), slow=slow)
        ends.append(result.versions[-1].closed_s - result.versions[0].closed_s)
    assert ends[1] <= 1.2 * ends[0]


def crowd() -> list[Softmax]:
    x, y = softmax_digits()
    return [Softmax(x[start : start + 20], y[start : start + 20]) for start in range(0, 200, 20)]


@dataclass(frozen=True)
class Ages(AsyncSGD):
    """Writes down how old each gradient was."""

    seen: list[int] = field(default_factory=list)

    def staleness_weight(self, staleness: int) -> float:
        self.seen.append(staleness)
        return super().staleness_weight(staleness)


def judged(model: Tree) -> float:
    judge = digits.held_out()
    judge.load(model)
    return judge.evaluate()["eval/accuracy"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("versions", "good"), nightly([(1500, 0.85), (5389, 0.92)], but=[(1500, 0.85)]))
def test_softsync_needs_the_division_by_age(versions: int, good: float) -> None:
    """B2: 30 nodes, gradients of 4 examples, one per version (30-softsync): mean age 28 to 30, none above 60. With
    lr / tau it learns; with the same lr whatever the age it does not. 5,389 versions are 15 epochs."""
    reached = {}
    for staleness in ("divide", "ignore"):
        algorithm = Ages(batch_size=4, lr=0.03, staleness=staleness)  # type: ignore[arg-type]
        result = shoal.simulate(Job(algorithm, Buffer(), versions), digit_learners(30))
        assert 28 <= fmean(algorithm.seen) <= 30
        assert max(algorithm.seen) <= 60
        reached[staleness] = judged(result.model)
    assert reached["divide"] >= good
    assert reached["ignore"] <= 0.15


@dataclass(frozen=True)
class Plain(Downpour):
    """The same pushes, applied as they come."""

    @property
    def rule(self) -> Any:
        return Momentum(1.0, 0.0)


@pytest.mark.timeout(600)
def test_downpour_learns_with_few_pushes_and_plain_sgd_does_not() -> None:
    """B3b: 8 replicas, 1,500 mini-batches in all. With a push after each, at least .955; with one after twenty of them,
    as seldom as 75 times, at least .80, where plain sums do nothing at any rate."""
    given: dict[str, Any] = {"batch_size": 10, "lr": 0.1}
    often = Job(Downpour(steps=1, server_lr=0.03, **given), Buffer(), 1500)
    seldom = Job(Downpour(steps=20, server_lr=0.01, **given), Buffer(), 75)
    assert judged(shoal.simulate(often, digit_learners(8)).model) >= 0.955
    assert judged(shoal.simulate(seldom, digit_learners(8)).model) >= 0.80
    for lr in (0.03, 0.1, 0.3, 1.0):
        plain = Job(Plain(batch_size=10, lr=lr, steps=20), Buffer(), 75)
        assert judged(shoal.simulate(plain, digit_learners(8)).model) <= 0.30


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_fedasync_earns_by_its_discount() -> None:
    """G2: the nodes of the next test; polynomial weights of age five points above constant ones (mean of two seeds)."""
    given: dict[str, Any] = {"epochs": 5, "batch_size": 10, "lr": 0.1, "alpha": 0.6}
    reached = {
        staleness: fmean(
            after_a_minute(Job(FedAsync(staleness=staleness, **given), Buffer(concurrency=10), 600, seed))
            for seed in (0, 1)
        )
        for staleness in ("constant", "polynomial")
    }
    assert reached["polynomial"] >= reached["constant"] + 0.05


@pytest.mark.timeout(600)
def test_a_straggler_slows_nobody() -> None:
    """G2: 20 clients with two labels each, ten at work at once, one of them twenty times slower: after a minute of
    virtual time FedBuff is 8 points above rounds that wait for it."""
    given: dict[str, Any] = {"epochs": 5, "batch_size": 10, "lr": 0.1}
    rounds = Job(Algorithm(**given), Rounds(cohort=10, deadline_s=1000.0), 20)
    buffer = Job(FedBuff(**given), Buffer(size=5, concurrency=10), 80)
    waiting, buffered = after_a_minute(rounds), after_a_minute(buffer)
    assert buffered >= waiting + 0.08
    assert buffered >= 0.85


def after_a_minute(job: Job) -> float:
    learners = {f"node-{i}": one for i, one in enumerate(digit_learners(20, "shards:2", seed=job.seed))}
    result = shoal.simulate(job, learners, held_out=digits.held_out(), slow={"node-0": 20.0})
    return fmean([one.metrics["held_out/accuracy"] for one in result.versions if one.closed_s <= 60][-3:])
