"""Douillard et al. 2023, Algorithm 1: the models of an independent script, and the inner optimizer's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import Cancelled, InvalidJob
from shoal.core.model.tree import digest
from shoal.jobs.spec import parse_job
from shoal.learn import TorchLearner

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
