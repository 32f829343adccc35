"""In which order a node that trains on and on takes its examples, and at what pace in a simulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.jobs.spec import parse_job
from shoal.learn.training.torch_learner import TorchLearner
from tests.algorithms.quadratics import fleet

SEEDS, NODES = (1, 2, 3), 3


class Noting(nn.Module):
    """A linear model that writes down the numbers of the examples it trains on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.seen: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += x.flatten().tolist()
        return torch.as_tensor(self.layer(x))


def seen(seed: int, schedule: dict[str, Any]) -> list[list[float]]:
    """Return the training order of each of three nodes with equal data: one pass."""
    x = torch.arange(40.0).reshape(-1, 1)
    learners = [TorchLearner(Noting, (x, 0 * x), loss=nn.functional.mse_loss) for _ in range(NODES)]
    name = {"periodic": "periodic", "divergence": "dynamic"}[schedule["name"]]
    algorithm = {"name": name, "steps": 2, "batch_size": 4, "lr": 1e-6, "local_steps": 10}
    job = {"name": "task", "seed": seed, "algorithm": algorithm, "schedule": {"min_nodes": NODES, **schedule}}
    shoal.simulate(parse_job(job), learners)
    return [learner.module.seen for learner in learners if isinstance(learner.module, Noting)]


@pytest.mark.parametrize("schedule", [{"name": "periodic"}, {"name": "divergence", "delta": 1e-9}])
def test_nodes_with_equal_data_and_jobs_of_other_seeds_draw_other_orders(schedule: dict[str, Any]) -> None:
    found = [order for seed in SEEDS for order in seen(seed, schedule)]
    assert all(sorted(order) == list(np.arange(40.0)) for order in found)
    assert len({tuple(order) for order in found}) == len(SEEDS) * NODES
    assert seen(SEEDS[0], schedule) == found[:NODES]


def test_equal_nodes_keep_step_without_being_told_to() -> None:
    """Each was 5 ms slower a turn than the one before: 112 versions out of step, where in step there are 76."""
    found = []
    for in_step in (False, True):
        nodes, _ = fleet(10)
        algorithm = {"name": "dynamic", "steps": 1, "batch_size": 1, "lr": 0.05, "local_steps": 150}
        schedule = {"name": "divergence", "delta": 1.0, "min_nodes": 10, "in_step": in_step}
        job = parse_job({"name": "step", "algorithm": algorithm, "schedule": schedule})
        found.append(len(shoal.simulate(job, nodes).versions))
    assert found[0] == found[1]
