"""Methods of rounds against their papers, by hand, and on parts of the digits with two labels each (study G1)."""

from __future__ import annotations

from itertools import islice
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from shoal.algorithms.fedavg import FedAvg
from shoal.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from shoal.algorithms.fedprox import FedProx
from shoal.algorithms.scaffold import Scaffold
from shoal.core.algorithm.algorithm import Algorithm, LocalResult, LocalTask, Update, tree_slot
from shoal.core.algorithm.learner import Learner
from shoal.core.algorithm.server_optimizer import Adagrad, Adam, Momentum, UpdateRule, Yogi, optimizer_slots, take_step
from shoal.core.errors import InvalidJob
from shoal.core.gossip.termination import TerminationRule
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots, Tree, norm, sub, zeros
from shoal.jobs.spec import parse_job
from shoal.learn import digits
from shoal.mixing.all_reduce import AllReduce
from shoal.sim.hosts.gossip_world import GossipWorld
from shoal.sim.hosts.peers import GossipSetup
from tests.algorithms.softmax import tree_of, unbalanced
from tests.learn.federation import accuracies, digit_learners

torch.set_num_threads(1)

LOCAL: dict[str, Any] = {"epochs": 2, "batch_size": 50, "lr": 0.5}


def task(slots: Slots, seed: int = 1) -> LocalTask:
    return LocalTask((1, 1), "train", 1, seed, slots)


def local(algorithm: Algorithm, learner: Learner, slots: Slots, memory: Slots | None = None) -> LocalResult:
    made = algorithm.local(learner, task(algorithm.task_slots(slots, "a", "train")), memory or {})
    assert isinstance(made, LocalResult)
    return made


def close(a: Tree, b: Tree, within: float = 1e-6) -> bool:
    return all(np.allclose(a[name], b[name], atol=within) for name in a)


# ------------------------------------------------------------------------------------------- the hub's optimizers
BY_HAND = {
    "adam": (Adam(0.5), lambda v, d: 0.99 * v + 0.01 * d * d),
    "yogi": (Yogi(0.5), lambda v, d: v - 0.01 * d * d * np.sign(v - d * d)),
    "adagrad": (Adagrad(0.5), lambda v, d: v + d * d),
}
STEPS = [np.array([0.5, 0.0]), np.array([-0.25, 1.0]), np.array([0.01, -0.1])]


@pytest.mark.parametrize("name", BY_HAND)
def test_algorithm_2_of_reddi(name: str) -> None:
    rule, second = BY_HAND[name]
    slots = optimizer_slots(rule, Tree.of({"w": np.array([1.0, -2.0], np.float32)}))
    w, m, v = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
    for d in STEPS:
        before = tree_slot(slots, "model")
        slots = take_step(rule, slots, Tree.of({"w": (before["w"] + d).astype(np.float32)}))
        m, v = 0.9 * m + 0.1 * d, second(v, d)
        w = w + 0.5 * m / (np.sqrt(v) + 1e-3)
        assert np.allclose(tree_slot(slots, "model")["w"], w, atol=1e-4)


def test_momentum_adds_up() -> None:
    slots = optimizer_slots(Momentum(0.5, 0.9), Tree.of({"w": np.zeros(2, np.float32)}))
    for _ in range(3):
        averaged = Tree.of({"w": tree_slot(slots, "model")["w"] + np.float32([1.0, -2.0])})
        slots = take_step(Momentum(0.5, 0.9), slots, averaged)
    assert np.allclose(tree_slot(slots, "model")["w"], 0.5 * (1 + 1.9 + 2.71) * np.array([1.0, -2.0]))


def test_peers_that_mix_the_momentum_fully_make_the_models_of_a_coordinator() -> None:
    """All examples are one batch, so that no seed has a part in it."""
    fields, learners = LOCAL | {"batch_size": 0}, {f"n{number}": one for number, one in enumerate(unbalanced())}
    schedule = {"name": "rounds", "min_nodes": 3, "quorum": 3}
    job = {"name": "j", "rounds": 4, "algorithm": {"name": "fedavgm", **fields}, "schedule": schedule}
    wanted = shoal.simulate(job, unbalanced()).model
    algorithm, start = FedAvgM(**fields), unbalanced()[0].init(0)
    setup = GossipSetup(JobPlan(1), algorithm, AllReduce().mixer, algorithm.init(start), TerminationRule(4))
    weights = {node: float(len(one.y)) for node, one in learners.items()}
    world = GossipWorld(setup, learners, weights, dict.fromkeys(learners, 1.0))
    assert world.run(600.0, 400_000)
    held = [peer.gossip.me for peer in world.peers.values() if peer.gossip is not None]
    assert len(held) == 3
    assert all(close(me.model, wanted, 1e-5) for me in held)
    assert all(close(tree_slot(me.slots, "m"), tree_slot(held[0].slots, "m"), 1e-5) for me in held)


@pytest.mark.parametrize(
    "rule", [Momentum(), *(rule for rule, _ in BY_HAND.values())], ids=lambda one: type(one).__name__
)
def test_statistics_and_whole_numbers_are_averaged_and_blocks_do_not_show(rule: UpdateRule) -> None:
    size = 70_000  # more than a block
    tensors = {
        "w": np.zeros(size, np.float32),
        "bn.running_var": np.full(3, 0.5, np.float32),
        "bn.num_batches_tracked": np.array([4], np.int64),
    }
    moved = {
        "w": np.ones(size, np.float32),
        "bn.running_var": np.full(3, 0.01, np.float32),
        "bn.num_batches_tracked": np.array([9], np.int64),
    }
    start, mean = (Tree.of(one, statistics=["bn.running_var"]) for one in (tensors, moved))
    after = tree_slot(take_step(rule, optimizer_slots(rule, start), mean), "model")
    assert after["bn.running_var"].tolist() == moved["bn.running_var"].tolist()
    assert after["bn.num_batches_tracked"].tolist() == [9]
    assert len(set(after["w"].tolist())) == 1
    assert after["w"][0] > 0


WRONG: list[tuple[type[Algorithm], str, float]] = [
    (FedAdam, "beta1", 1.0),
    (FedYogi, "beta2", -0.1),
    (FedAdagrad, "tau", 0.0),
    (FedAvgM, "server_lr", float("nan")),
    (FedAvgM, "beta", 1.5),
    (FedProx, "mu", -1.0),
    (FedProx, "mu", float("inf")),
    (Scaffold, "nodes", -1),
]


@pytest.mark.parametrize(("kind", "field", "value"), WRONG)
def test_numbers_that_make_no_sense(kind: type[Algorithm], field: str, value: float) -> None:
    with pytest.raises(InvalidJob, match=field):
        kind(**{field: value})


# --------------------------------------------------------------------------------------------------------- FedProx
def test_the_spring_pulls_by_mu_times_the_way_gone() -> None:
    """Two full-batch steps: the second adds mu (w_1 - w_0) to the gradient there."""
    plain, held = unbalanced()[0], unbalanced()[0]
    start, lr, mu = plain.init(3), 0.5, 0.7
    slots: Slots = {"model": start}
    moved = local(FedProx(mu=mu, epochs=2, batch_size=0, lr=lr), held, slots).slots["model"]
    plain.load(start)
    first = {name: value.astype(np.float64) for name, value in plain.slope(plain.x, plain.y)[1].items()}
    w1 = {name: start[name] - lr * first[name] for name in first}
    plain.load(tree_of(**w1))
    second = plain.slope(plain.x, plain.y)[1]
    by_hand = {name: w1[name] - lr * (second[name] + mu * (w1[name] - start[name])) - start[name] for name in w1}
    assert isinstance(moved, Tree)
    assert all(np.allclose(moved[name], by_hand[name], atol=1e-6) for name in by_hand)


def test_a_stronger_spring_keeps_nearer() -> None:
    start = unbalanced()[0].init(3)
    gone = [
        norm(tree_slot(local(FedProx(mu=mu, **LOCAL), unbalanced()[0], {"model": start}).slots, "model"))
        for mu in (0, 1, 1.9)
    ]
    assert gone == sorted(gone, reverse=True)
    assert gone[2] < 0.5 * gone[0]


def test_some_orders_are_done_in_part() -> None:
    """Nine in ten of many orders draw 1 to 5 epochs: 4 in 5 of these are fewer than all."""
    algorithm = FedProx(partial_work_fraction=0.9, epochs=5)
    drawn = [algorithm.train_config(task({}, seed)).epochs for seed in range(4000)]
    assert set(drawn) == {1, 2, 3, 4, 5}
    assert np.mean([epochs == 1 for epochs in drawn]) == pytest.approx(0.18, abs=0.02)
    assert np.mean([epochs == 5 for epochs in drawn]) == pytest.approx(0.28, abs=0.025)
    assert drawn == [algorithm.train_config(task({}, seed)).epochs for seed in range(4000)], "by the task's seed"
    assert {FedProx(epochs=5).train_config(task({}, seed)).epochs for seed in range(50)} == {5}


def test_it_learns_from_work_done_in_part() -> None:
    job = parse_job({
        "name": "j", "rounds": 8, "seed": 1, "schedule": {"name": "rounds", "min_nodes": 3},
        "algorithm": {"name": "fedprox", "partial_work_fraction": 0.9, "epochs": 5, "lr": 0.5, "mu": 0.1},
    })  # fmt: skip
    assert shoal.simulate(job, unbalanced(tested=True)).accuracy > 0.85


def test_partial_work_of_one_epoch_makes_no_sense() -> None:
    with pytest.raises(InvalidJob, match=r"partial_work_fraction is .*, but epochs is 1") as caught:
        FedProx(partial_work_fraction=0.5)
    assert "epochs" in caught.value.hint
    with pytest.raises(InvalidJob, match="partial_work_fraction is 2"):
        FedProx(partial_work_fraction=2, epochs=5)


# -------------------------------------------------------------------------------------------------------- SCAFFOLD
def test_option_ii() -> None:
    """c_k' = c_k - c + (x - y) / (S eta), whatever c_k and c are."""
    algorithm, learner = Scaffold(**LOCAL), unbalanced()[0]
    start = learner.init(3)
    own, common = ({name: np.full_like(start[name], value) for name in start} for value in (0.02, -0.01))
    slots: Slots = {"model": start, "control": tree_of(**common)}
    made = local(algorithm, learner, slots, {"control": tree_of(**own)})
    moved, assumed = tree_slot(made.slots, "model"), tree_slot(made.slots, "control")
    steps = 2 * 2  # epochs, batches of 50 of 100 examples
    for name in start:
        now = own[name] - common[name] - moved[name] / (steps * LOCAL["lr"])
        assert np.allclose(assumed[name], now - own[name], atol=1e-5)
        assert made.memory is not None
        assert np.allclose(tree_slot(made.memory, "control")[name], now, atol=1e-5)


def test_controls_are_averaged_plainly_and_by_the_share_that_took_part() -> None:
    algorithm, model = Scaffold(nodes=8), Tree.of({"w": np.zeros(2, np.float32)})
    slots, totals = algorithm.init(model), Totals()
    for weight, value in ((1.0, 1.0), (99.0, 3.0)):
        tree = Tree.of({"w": np.full(2, value, np.float32)})
        totals = algorithm.fold(totals, Update("n", 0, weight, {"model": tree, "control": tree}, norm(tree)), 1.0)
    after = algorithm.step(slots, totals)
    assert np.allclose(tree_slot(after, "model")["w"], 2.0)
    assert np.allclose(tree_slot(after, "control")["w"], 2 / 8 * 2.0)


def test_with_equal_nodes_corrections_cancel() -> None:
    start = unbalanced()[0].init(3)
    slots = Scaffold(**LOCAL).init(start)
    made = local(Scaffold(**LOCAL), unbalanced()[0], slots)
    control = tree_slot(made.slots, "control")
    again = local(Scaffold(**LOCAL), unbalanced()[0], {"model": start, "control": control}, made.memory)
    assert close(tree_slot(again.slots, "model"), tree_slot(made.slots, "model"))
    assert not close(tree_slot(made.slots, "control"), zeros(start.layout))


def test_who_measures_gets_the_model_alone() -> None:
    slots = Scaffold().init(unbalanced()[0].init(3))
    assert set(Scaffold().task_slots(slots, "a", "evaluate")) == {"model"}
    assert set(Scaffold().task_slots(slots, "a", "train")) == {"model", "control"}


# ------------------------------------------------------------------------------------------------- odd parts of data
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_unlike_parts() -> None:
    """G1: 20 clients with two label shards each, C = 0.25, E = 5, B = 10; the mean of rounds 91-100 and of two seeds.

    The study's gates: SCAFFOLD three points above federated averaging, FedAdam two.
    """
    given: dict[str, Any] = {"epochs": 5, "batch_size": 10, "lr": 0.1}
    reached = {
        type(algorithm): fmean(
            fmean(list(islice(accuracies(algorithm, parts(seed), digits.held_out(), 0.25, seed), 100))[-10:])
            for seed in (0, 1)
        )
        for algorithm in (FedAvg(**given), Scaffold(nodes=20, **given), FedAdam(**given))
    }
    assert reached[Scaffold] >= reached[FedAvg] + 0.03
    assert reached[FedAdam] >= reached[FedAvg] + 0.02


def parts(seed: int) -> list[Any]:
    return digit_learners(20, "shards:2", seed=seed)


def test_displacements_are_what_is_told() -> None:
    """Everything on the shelf reports how far the model has gone from the one that it was sent."""
    for algorithm in (FedProx(**LOCAL), FedAvgM(**LOCAL), Scaffold(**LOCAL)):
        learner = unbalanced()[0]
        start = learner.init(3)
        made = local(algorithm, learner, algorithm.init(start))
        assert close(tree_slot(made.slots, "model"), sub(learner.model(), start))
