"""Douillard et al. 2023, Algorithm 1: the models of an independent script, and the inner optimizer's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.algorithms.diloco import DiLoCo
from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import Cancelled, InvalidJob
from shoal.core.gossip.gossip_state import GossipState
from shoal.core.gossip.mixer import Mixing
from shoal.core.gossip.termination import TerminationRule
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.tree import Tree, digest
from shoal.jobs.spec import parse_job
from shoal.learn import TorchLearner
from shoal.mixing.all_reduce import AllReduce
from shoal.mixing.neighbors import Neighbors
from shoal.sim.hosts.gossip_world import GossipWorld
from shoal.sim.hosts.peers import GossipSetup
from tests.sim.peers_scenario import PeerStage

NODES, EXAMPLES, OUTER, H = 3, 12, 3, 4


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def adamw(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.05)


def data(node: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(node)
    return torch.randn(EXAMPLES, 6, generator=rng), torch.randint(0, 3, (EXAMPLES,), generator=rng)


def learner(node: int, optimizer: Callable[..., torch.optim.Optimizer] = adamw) -> TorchLearner:
    return TorchLearner(model, data(node), data(99), optimizer=optimizer)


def job(**tables: Any) -> Any:
    algorithm = {"name": "diloco", "steps": H, "batch_size": EXAMPLES, "lr": 0.02}
    values = {"name": "j", "rounds": OUTER, "seed": 4, "aggregation_precision": "fixed", "algorithm": algorithm}
    return parse_job(values | {"schedule": {"name": "rounds", "min_nodes": NODES, "quorum": NODES}} | tables)


def script(start: dict[str, Tensor]) -> dict[str, Tensor]:
    """Run Algorithm 1 with torch's own optimizers: every mini-batch is a node's whole data."""
    outer_model = model()
    outer_model.load_state_dict(start)
    outer = torch.optim.SGD(outer_model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    inner_models = [model() for _ in range(NODES)]
    inner = [adamw(one.parameters(), 0.02) for one in inner_models]
    for _ in range(OUTER):
        for node, (one, optimizer) in enumerate(zip(inner_models, inner, strict=True)):
            one.load_state_dict(outer_model.state_dict())
            x, y = data(node)
            for _ in range(H):
                optimizer.zero_grad()
                nn.functional.cross_entropy(one(x), y).backward()
                optimizer.step()
        for name, parameter in outer_model.named_parameters():
            trained = torch.stack([dict(one.named_parameters())[name].detach() for one in inner_models])
            parameter.grad = parameter.detach() - trained.mean(0)
        outer.step()
    return outer_model.state_dict()


def final(result: Any) -> dict[str, np.ndarray]:
    return {name: np.array(result.model[name]) for name in result.model}


def test_three_outer_steps_are_those_of_an_independent_script() -> None:
    found = final(shoal.simulate(job(), [learner(node) for node in range(NODES)]))
    unmoved = job(rounds=1, algorithm={"name": "fedavg", "lr": 0.0}, schedule={"name": "rounds"})
    start = {name: torch.from_numpy(one) for name, one in final(shoal.simulate(unmoved, [learner(0)])).items()}
    wanted = script(start)
    assert max(float(np.abs(found[name] - one.numpy()).max()) for name, one in wanted.items()) < 1e-5
    assert max(float((wanted[name] - one).abs().max()) for name, one in start.items()) > 0.1


def test_versions_that_are_sent_as_differences_are_the_same() -> None:
    whole, differences = (
        final(shoal.simulate(job(filters=filters), [learner(node) for node in range(NODES)]))
        for filters in ([], [{"name": "delta"}])
    )
    assert max(float(np.abs(whole[name] - differences[name]).max()) for name in whole) < 1e-5


def test_the_inner_optimizer_survives_crashes_of_nodes_and_coordinator() -> None:
    calm, hit = (
        shoal.simulate(job(), [learner(node) for node in range(NODES)], faults=faults)
        for faults in (None, shoal.Faults(message_loss=0.1, node_crashes=3, coordinator_crashes=2))
    )
    assert digest(calm.model) == digest(hit.model)


def test_divergence_decides_when_nodes_report() -> None:
    schedule = {"name": "variance", "theta": 1.5, "min_nodes": NODES}
    algorithm = {"name": "diloco", "steps": H, "batch_size": EXAMPLES, "lr": 0.02, "local_steps": 40}
    result = shoal.simulate(
        job(algorithm=algorithm, schedule=schedule, rounds=50), [learner(node) for node in range(NODES)]
    )
    assert 1 < len(result.versions) < 40 / H


def test_a_round_without_a_step_is_refused() -> None:
    with pytest.raises(InvalidJob, match=r"diloco: steps: .* greater than or equal to 1"):
        job(algorithm={"name": "diloco", "steps": 0})


def test_an_optimizer_of_another_class_is_refused_by_name() -> None:
    first, second = learner(0), learner(0, lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9))
    config = TrainConfig(steps=1)
    first.load_optimizer_state(None)
    first.init(1)
    first.train(config)
    second.init(1)
    second.load_optimizer_state(first.optimizer_state())
    with pytest.raises(InvalidJob, match=r"keeps the state of AdamW for .*, which the learner's SGD cannot take"):
        second.train(config)


def test_after_a_cancelled_task_those_of_other_algorithms_begin_with_new_optimizers() -> None:
    def stop(fraction: float) -> None:
        raise Cancelled("superseded")

    one, found = learner(0), set()
    start = one.init(1)
    one.load_optimizer_state(None)
    with pytest.raises(Cancelled):
        one.train(TrainConfig(steps=1), progress=stop)
    for _ in range(2):
        one.load(start)
        one.train(TrainConfig(steps=1))
        found.add(digest(one.model()))
    assert len(found) == 1


def peers(mixing: Mixing) -> list[Tree]:
    """Return the models of peers without a coordinator that have made the rounds of Algorithm 1."""
    learners = {f"n{node}": learner(node) for node in range(NODES)}
    algorithm, start = job().build_algorithm(), learner(0).init(4)
    setup = GossipSetup(JobPlan(1, seed=4), algorithm, mixing.mixer, algorithm.init(start), TerminationRule(OUTER))
    same = dict.fromkeys(learners, float(EXAMPLES)), dict.fromkeys(learners, 1.0)
    world = GossipWorld(setup, learners, *same)
    assert world.run(600.0, 400_000)
    return [one.gossip.me.model for one in world.peers.values() if one.gossip is not None]


@pytest.mark.parametrize("mixing", [AllReduce(), Neighbors("complete")])
def test_peers_that_mix_fully_make_the_steps_of_the_script(mixing: Mixing) -> None:
    start = learner(0).init(4)
    wanted = script({name: torch.from_numpy(start[name].copy()) for name in start})
    for model in peers(mixing):
        assert max(float(np.abs(model[name] - one.numpy()).max()) for name, one in wanted.items()) < 1e-5


def holdings(stage: PeerStage) -> dict[str, GossipState]:
    """Return what the nodes that gossip hold."""
    gossip = {node: stage.world.peer(node).peer.gossip for node in stage.nodes}
    return {node: one.me for node, one in gossip.items() if one is not None}


def test_the_momentum_goes_to_the_peers_and_back() -> None:
    """Peers begin with the coordinator's, and it goes on with the weighted mean of theirs."""
    stage = PeerStage(algorithm=DiLoCo(steps=1))
    stage.switch("gossip", at=11.0)
    stage.until(11.5)
    momentum, held = tree_slot(stage.hub.store.slots, "m"), holdings(stage)
    assert held.keys() == {*stage.nodes}
    assert {digest(tree_slot(me.slots, "m")) for me in held.values()} == {digest(momentum)}
    assert np.abs(momentum["w"]).max() > 1
    stage.switch("server", at=60.0)
    while stage.clock.now < 60.0 or stage.hub.progress.mode != "server":
        held |= holdings(stage)
        stage.until(stage.clock.now + 0.25)
    whole = sum(me.weight for me in held.values())
    mean = sum(me.weight / whole * tree_slot(me.slots, "m")["w"] for me in held.values())
    found = tree_slot(stage.hub.store.slots, "m")["w"]
    assert found == pytest.approx(mean, rel=1e-5)
    assert found != pytest.approx(momentum["w"], rel=0.1)
    stage.finish()
