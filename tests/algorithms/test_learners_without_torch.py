"""Learners of numpy under every algorithm, filter and way of mixing, with faults."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier

import shoal
from shoal.algorithms.fedavg import FedAvg
from shoal.core.algorithm.capability import capability_error
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob
from shoal.core.gossip.termination import TerminationRule
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.tree import digest
from shoal.learn import SklearnLearner
from shoal.mixing.all_reduce import AllReduce
from shoal.mixing.neighbors import Neighbors
from shoal.mixing.pairwise import Pairwise
from shoal.mixing.push_sum import PushSum
from shoal.plugins import algorithms
from shoal.sim.hosts.gossip_world import GossipWorld
from shoal.sim.hosts.peers import GossipSetup
from tests.algorithms.softmax import SIZES, digits
from tests.algorithms.test_conformance import in_rounds, job
from tests.edge_client.test_filters_over_http import LISTS
from tests.learn.numpy_models import array_learners, loop

FAULTS = shoal.Faults(
    until_s=30, delay_s=0.2, message_loss=0.2, message_duplicates=0.2, coordinator_crashes=4, node_crashes=3
)
ANY_MODEL = [name for name in in_rounds() if name not in ("flexlora", "boosted_trees", "bagged_trees")]
"""The others are for models with adapters, and for trees."""
KEEPS_OPTIMIZER = {"diloco"}
"""It needs a learner with an optimizer whose state can be read and set."""
REFUSED = {"admm", "codistillation", "fedprox", "scaffold"} | KEEPS_OPTIMIZER
"""They need more of a learner than a loop of its own gives."""
OF_GRADIENTS = {"asgd", "fedsgd", "largebatch", "lbfgs"}


@pytest.mark.parametrize("name", [name for name in ANY_MODEL if name not in {"codistillation"} | KEEPS_OPTIMIZER])
def test_own_gradients_serve_every_algorithm(name: str) -> None:
    """They learn, whatever is lost, late, doubled or killed."""
    rounds = {"asgd": 30, "downpour": 30, "fedsgd": 10}.get(name, 3)
    one = job(name, rounds=rounds, algorithm={"name": name, "lr": 0.3})
    counts = name != "lbfgs"  # it refuses models with whole numbers
    result = shoal.simulate(one, array_learners(counts=counts), faults=FAULTS, fault_seed=1)
    assert result.versions[-1].metrics["eval/loss"] < 0.95 * result.versions[0].metrics["eval/loss"]
    assert not counts or result.model["steps"] == 3, "whole numbers stay"


def own_loops() -> list[Any]:
    return array_learners(loop=loop, gradient=None)


def estimators() -> list[Any]:
    x, y = digits()
    y = y % 2  # two classes are quicker
    edges = np.cumsum((0, *SIZES))
    test = x[edges[-1] :], y[edges[-1] :]
    one = SGDClassifier(loss="log_loss", learning_rate="constant", alpha=0.001)
    return [SklearnLearner(one, (x[a:b], y[a:b]), test, classes=[0, 1]) for a, b in pairwise(edges)]


@pytest.mark.parametrize("name", ANY_MODEL)
@pytest.mark.parametrize("made", [own_loops, estimators])
def test_without_gradients_it_serves_those_that_need_none(made: Callable[[], list[Any]], name: str) -> None:
    one = job(name, rounds=1, algorithm={"name": name, "lr": 0.1, "batch_size": 128})
    learners = made()
    error = capability_error(one.build_algorithm(), learners[0])
    assert (error is not None) == (name in REFUSED | OF_GRADIENTS)
    if error is None:
        assert shoal.simulate(one, learners).state == "done"
        return
    with pytest.raises(InvalidJob, match=f"node-0: {name} .*{type(learners[0]).__name__}"):
        shoal.simulate(one, learners)


def test_only_gradients_need_gradients() -> None:
    assert {n for n, kind in algorithms().items() if "gradients" in kind().required_capabilities} == OF_GRADIENTS


@pytest.mark.parametrize("preset", ["dynamic", "periodic"])
@pytest.mark.parametrize("made", [array_learners, own_loops, estimators])
def test_streams_go_on_where_they_were(preset: str, made: Callable[[], list[Any]]) -> None:
    """Positions and seeds are in private memory: journal, disks and processes change nothing."""
    schedule = {"min_nodes": 3} if preset == "periodic" else {"min_nodes": 3, "in_step": True}
    if preset == "dynamic":
        schedule["delta"] = 0.5
    fields = {"name": "s", "preset": preset, "rounds": 3, "algorithm": {"lr": 0.3}, "schedule": schedule}
    good = shoal.simulate({**fields, "aggregation_precision": "fixed"}, made())
    again = shoal.simulate({**fields, "aggregation_precision": "fixed"}, made(), fidelity="wire")
    assert digest(good.model) == digest(again.model)
    assert good.versions[-1].metrics["eval/loss"] < 0.7 * good.versions[0].metrics["eval/loss"]


@pytest.mark.parametrize(
    ("made", "name"),
    [(array_learners, name) for name in LISTS] + [(estimators, name) for name in ("8-bits", "delta-top-k-8-bits")],
)
def test_filters_take_its_tensors(made: Callable[[], list[Any]], name: str) -> None:
    one = job("fedavg", rounds=3, filters=LISTS[name], algorithm={"name": "fedavg", "lr": 0.1, "batch_size": 64})
    result = shoal.simulate(one, made(), faults=FAULTS, fault_seed=2)
    assert result.versions[-1].metrics["eval/loss"] < result.versions[0].metrics["eval/loss"]


@pytest.mark.parametrize("mixing", [Pairwise(), Neighbors("ring"), PushSum(), AllReduce()], ids=lambda one: one.name)
@pytest.mark.parametrize("made", [array_learners, estimators])
def test_peers_mix_its_models(made: Callable[[], list[Any]], mixing: Any) -> None:
    """Without a coordinator, to one model that knows more than the first."""
    named = {f"n{number}": learner for number, learner in enumerate(made())}
    first = named["n0"]
    first.init(0)
    first.train(TrainConfig(lr=0.01))  # of zeros no relative error can be told
    start = first.model()
    setup = GossipSetup(
        JobPlan(1, seed=0), FedAvg(lr=0.3), mixing.mixer, {"model": start}, TerminationRule(6, convergence_tol=0.05), 0
    )
    world = GossipWorld(
        setup, named, {name: float(one.examples or 0) for name, one in named.items()}, dict.fromkeys(named, 1.0)
    )
    assert world.run(600.0, 400_000)
    accuracies = []
    for name, learner in named.items():
        gossip = world.peers[name].gossip
        assert gossip is not None
        learner.load(gossip.me.model)
        accuracies.append(learner.evaluate()["eval/accuracy"])
    assert np.ptp(accuracies) < 0.05
    assert min(accuracies) > 0.8
