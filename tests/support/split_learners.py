"""Learners of a split job: of two clinics and of their coordinator."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import shoal
from shoal.core.model.tree import Tree
from shoal.jobs.split_spec import parse_split_job
from shoal.learn import TorchLearner

JOB: dict[str, Any] = {
    "name": "clinics",
    "learner": f"{Path(__file__)}:shapes",
    "nodes": 2,
    "cut": [1, 3],
    "rounds": 2,
    "steps": 3,
    "batch_size": 8,
    "checkpoint_every": 2,
}
PARTS = {"a": 0, "b": 1}


def toml(job: dict[str, Any]) -> str:
    """The file of a split job."""
    rows = [(name, json.dumps(value)) for name, value in job.items() if name != "filters"]
    tables = [f"[[filters]]\nname = {json.dumps(one['name'])}" for one in job.get("filters", [])]
    return "\n".join([*(f"{name} = {value}" for name, value in rows), *tables])


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))


def momentum(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def shapes() -> TorchLearner:
    """The coordinator's learner: one example of zeros."""
    return TorchLearner(network, (torch.zeros(1, 4), torch.zeros(1, dtype=torch.long)), optimizer=momentum)


def clinic(part: int) -> TorchLearner:
    x = torch.randn(20 + part, 4, generator=torch.Generator().manual_seed(part))
    return TorchLearner(network, (x, (x[:, 0] > 0).long()), optimizer=momentum)


def simulated(job: dict[str, Any]) -> Tree:
    """The model of the simulation."""
    return shoal.simulate_split(parse_split_job(job).job(), {name: clinic(part) for name, part in PARTS.items()}).model
