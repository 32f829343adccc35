"""Trainings of a model whose stages are at the ranks of a site, and by a single process, for comparison."""

from __future__ import annotations

import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from shoal.algorithms.fedprox import FedProx
from shoal.core.algorithm.capability import check_learner
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob
from shoal.learn import Pipeline, TorchConfig, TorchLearner
from shoal.learn.site.divided_module import Site
from tests.learn.site_group import CONFIG, SIZE, Case, Found, X, Y, fork, momentum, pull, trained

CUTS: dict[int, tuple[int | str, ...]] = {1: (), SIZE: (1, "body.2")}
"""By the number of ranks; one of them is inside of a module."""
MICROBATCHES = 6
"""A batch of 16 rows has micro-batches of 3, 3, 3, 3, 3 and 1, one of 2 rows has 1, 1 and none."""


def network() -> nn.Module:
    body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
    return nn.Sequential(OrderedDict(first=nn.Linear(6, 8), body=body, last=nn.Linear(8, 2))).double()


def flat() -> nn.Module:
    """Return a chain without a chain in it."""
    return nn.Sequential(*(nn.Linear(6, 6) for _ in range(6)), nn.Linear(6, 2)).double()


def pipeline(site: Site | None, **options: Any) -> TorchConfig:
    """Return the settings of a pipeline for the ranks of a site."""
    return TorchConfig(parallel=Pipeline(CUTS[1 if site is None else site.size], MICROBATCHES), **options)


def learner(site: Site | None, config: TorchConfig, data: Any = (X, Y), **options: Any) -> TorchLearner:
    """Return a learner with new weights."""
    made = TorchLearner(network, data, device="cpu", config=config, **options)
    made.use(site=site)
    made.init(3)
    return made


def piped(site: Site | None, data: Any = (X, Y), task: TrainConfig = CONFIG, **options: Any) -> Found:
    """Return the model of a training in stages, with micro-batches that are not equal."""
    config = pipeline(site, **options.pop("config", {}))
    return trained(site, data, task, model=network, config=config, **options)


def ignoring(site: Site | None) -> Found:
    """Most targets are ignored, so that some micro-batches have none."""
    targets = torch.where(torch.arange(98) % 12 == 0, Y, -100)
    return piped(site, (X, targets), TrainConfig(steps=9, batch_size=49, lr=0.3, seed=2))


def evaluated(site: Site | None) -> Found:
    """Return the metrics over test data, after and before a training."""
    made = learner(site, pipeline(site, eval_batch_size=30), test=(X[:49], Y[:49]))
    before = made.evaluate()
    made.train(CONFIG)
    return {"before/" + name: one for name, one in before.items()} | made.evaluate()


def kept(site: Site | None) -> Found:
    """Return the model after two tasks with one optimizer."""
    made = learner(site, pipeline(site, keep_optimizer=True), optimizer=torch.optim.Adam)
    for seed in (1, 2):
        made.train(TrainConfig(steps=3, batch_size=16, lr=0.1, seed=seed))
    return {"model": made.model().buffer.view(np.float64)}


def automatic(site: Site | None) -> Found:
    """Return the model with cuts by measured time."""
    made = TorchLearner(flat, (X, Y), device="cpu", config=TorchConfig(parallel=Pipeline(microbatches=MICROBATCHES)))
    made.use(site=site)
    made.init(3)
    made.train(CONFIG)
    return {"model": made.model().buffer.view(np.float64)}


def measured(site: Site | None) -> Found:
    """Return the measurements of each stage."""
    config = pipeline(site)
    learner(site, config, optimizer=momentum).train(TrainConfig(steps=1, batch_size=14, lr=0.1))
    assert isinstance(config.parallel, Pipeline)
    reports = config.parallel.reports
    return {
        "bytes": np.array([one.bytes_sent for one in reports]),
        "memory": np.array([one.memory_bytes for one in reports]),
        "busy": np.array([0 < one.busy_s < one.seconds for one in reports]),
    }


def refusals(site: Site | None) -> Found:
    """Return the errors of pipelines that cannot be."""

    def text(do: Any) -> str:
        try:
            do()
        except InvalidJob as error:
            return error.message
        return "none"

    def use(config: TorchConfig, model: Any = network) -> Any:
        return lambda: TorchLearner(model, (X, Y), device="cpu", config=config).use(site=site)

    size = 1 if site is None else site.size
    others = ("body", "last", "none")[: size - 1]
    frozen, tied = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6)
    first_frozen = nn.Sequential(frozen, *(nn.Linear(6, 6) for _ in range(size)))
    known = learner(site, pipeline(site))
    return {
        "unknown": text(use(TorchConfig(parallel=Pipeline(("absent", *others[1:]))))),
        "number": text(use(TorchConfig(parallel=Pipeline(tuple(range(1, size + 1)))))),
        "few": text(use(TorchConfig(parallel=Pipeline(CUTS[size], microbatches=1)))),
        "no chain": text(use(pipeline(site), lambda: nn.Bilinear(2, 2, 2))),
        "frozen": text(use(TorchConfig(parallel=Pipeline(tuple(range(1, size)))), lambda: first_frozen)),
        "too few modules": text(use(TorchConfig(parallel=Pipeline()), lambda: nn.Sequential(nn.Linear(6, 2)))),
        "tied": text(use(TorchConfig(parallel=Pipeline(tuple(range(1, size)))), lambda: nn.Sequential(*[tied] * size))),
        "fp16": text(lambda: pipeline(site, precision="fp16")),
        "correction": text(lambda: known.train(CONFIG, correct=pull)),
        "gradient": text(lambda: known.gradient(CONFIG)),
        "state": text(lambda: known.load_optimizer_state(None)),
        "algorithm": text(lambda: check_learner(FedProx(), known)),
    }


CASES: dict[str, Case] = {
    "plain": piped,
    "momentum": lambda site: piped(site, optimizer=momentum),
    "adam": lambda site: piped(site, optimizer=torch.optim.Adam),
    "dataset": lambda site: piped(site, list(zip(X, Y, strict=True))),
    "accumulation": lambda site: piped(site, config={"accumulate": 3, "clip_norm": 0.5}, optimizer=momentum),
    "ignored targets": ignoring,
    "evaluation": evaluated,
    "kept optimizer": kept,
    "automatic": automatic,
}
"""Trainings with the same result in any number of processes."""

OTHERS: dict[str, Case] = {"measured": measured, "refusals": refusals}


if __name__ == "__main__":
    import torch.distributed.pipelining

    fork({**CASES, **OTHERS}, Path(sys.argv[1]))
