"""Learners of split jobs: of two clinics, of two parties with features of the same people, and of coordinators."""

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
from shoal.learn import TorchConfig, TorchLearner
from shoal.learn.split.vertical_network import VerticalNetwork

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
PEOPLE: dict[str, Any] = {
    "name": "people",
    "learner": f"{Path(__file__)}:joined",
    "parties": ["bank", "shop"],
    "labels": "shop",
    "rounds": 2,
    "batch_size": 8,
    "checkpoint_every": 2,
}

KNOWN = PEOPLE | {"name": "known", "ids_max": 100, "rounds": 3, "batch_size": 64}
PERSONS = {"bank": range(30, -1, -1), "shop": range(5, 35)}
"""The people that a party of `KNOWN` has, in its order."""


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


def heads() -> dict[str, nn.Module]:
    """A head without norms, and one with: a small rest of the data joins the batch before at both."""
    return {"bank": nn.Linear(4, 6), "shop": nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))}


def joined(rows: int = 1) -> TorchLearner:
    """The coordinator's learner; with all rows, that of the simulation."""
    data = (torch.zeros(1, 4), torch.zeros(1, 3), torch.zeros(1, dtype=torch.long)) if rows == 1 else people(rows)
    return TorchLearner(lambda: VerticalNetwork(heads(), nn.Linear(11, 2)), data, optimizer=momentum)


def people(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.randn(rows, 7, generator=torch.Generator().manual_seed(0))
    return x[:, :4], x[:, 4:], (x[:, 0] * x[:, 5] > 0).long()


def party(name: str, rows: int = 35) -> TorchLearner:
    """A party's learner: its head and its features, and the labels of the shop."""
    bank, shop, labels = people(rows)
    data = bank if name == "bank" else (shop, labels)
    return TorchLearner(lambda: heads()[name], data, optimizer=momentum)


def simulated_people(job: dict[str, Any]) -> Tree:
    """The model of the simulation on vertical data."""
    return shoal.simulate_vertical(parse_split_job(job).job(), joined(35)).model  # type: ignore[arg-type]


def known(name: str) -> TorchLearner:
    """A party's learner with ids of its rows, in an order of its own."""
    rows = torch.tensor([*PERSONS[name]])
    bank, shop, labels = (part[rows] for part in people(35))
    data, config = bank if name == "bank" else (shop, labels), TorchConfig(ids=[f"person-{n}" for n in rows.tolist()])
    return TorchLearner(lambda: heads()[name], data, optimizer=momentum, config=config)


def simulated_known() -> Tree:
    """The model of the simulation on the people that both have."""
    common = tuple(part[5:31] for part in people(35))
    learner = TorchLearner(lambda: VerticalNetwork(heads(), nn.Linear(11, 2)), common, optimizer=momentum)
    job = parse_split_job(KNOWN).job()
    return shoal.simulate_vertical(job, learner).model  # type: ignore[arg-type]
