"""Trainings of a model in shards at the ranks of a site, and by a single process, for comparison."""

from __future__ import annotations

import sys
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import Cancelled, InvalidJob
from shoal.learn import FullyShard, TensorParallel, TorchConfig, TorchLearner
from shoal.learn.site.divided_module import Site
from shoal.learn.site.shards import local
from tests.learn.site_group import CONFIG, Case, Found, X, Y, alike, fork, momentum, pull, trained


class Network(nn.Module):
    """A list of blocks, one of which has a frozen part, between layers that are not in it. Training is another mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.unused = nn.Linear(6, 9), nn.Linear(9, 2), nn.Linear(2, 2)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 9)) for _ in range(3))
        self.blocks[1].get_submodule("0").requires_grad_(False)
        self.double()

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x) * (2 if self.training else 1)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


def convolutions() -> nn.Module:
    """Return convolutions and dense layers, with a function in place between the latter."""
    found = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 3), nn.Tanh(), nn.Flatten())
    dense = nn.Sequential(nn.Linear(12, 12), nn.ReLU(inplace=True), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 6))
    return nn.Sequential(OrderedDict(found=found, dense=dense)).double()


PAIR = (("dense.0", "dense.2"),)
MIXED = (*PAIR, "dense.4")
ACCUMULATING = {"accumulate": 3, "clip_norm": 0.5}


def adamw(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr / 10)


def sharded(site: Site | None, data: Any = (X, Y), task: TrainConfig = CONFIG, **options: Any) -> Found:
    """Return the model of a training in shards."""
    config = TorchConfig(parallel=FullyShard(("blocks.0", "blocks.1", "blocks.2")), **options.pop("config", {}))
    return trained(site, data, task, model=Network, config=config, **options)


def dense(site: Site | None, data: Any = (X, Y), task: TrainConfig = CONFIG, **options: Any) -> Found:
    """Return the model of a training whose dense layers compute in shards."""
    config = TorchConfig(parallel=TensorParallel(MIXED), **options.pop("config", {}))
    return trained(site, data, task, model=convolutions, config=config, **options)


def learner(site: Site | None, model: Any = Network, parallel: Any = None, **options: Any) -> TorchLearner:
    """Return a learner with new weights."""
    config = TorchConfig(parallel=parallel or FullyShard(), **options.pop("config", {}))
    made = TorchLearner(model, (X, Y), device="cpu", config=config, **options)
    made.use(site=site)
    made.init(3)
    return made


def ignoring(site: Site | None) -> Found:
    """Most targets are ignored, so that some ranks have none in a batch."""
    targets = torch.where(torch.arange(98) % 12 == 0, Y, -100)
    return sharded(site, (X, targets), TrainConfig(steps=9, batch_size=49, lr=0.3, seed=2))


def evaluated(site: Site | None) -> Found:
    """Return the metrics over test data, after and before a training."""
    made = learner(site, test=(X[:49], Y[:49]), config={"eval_batch_size": 30})
    before = made.evaluate()
    made.train(CONFIG)
    return {"before/" + name: one for name, one in before.items()} | made.evaluate()


def kept(site: Site | None) -> Found:
    """Return the model after two tasks with one optimizer."""
    made = learner(site, optimizer=adamw, config={"keep_optimizer": True})
    for seed in (1, 2):
        made.train(TrainConfig(steps=3, batch_size=16, lr=0.1, seed=seed))
    return {"model": made.model().buffer.view(np.float64)}


def state(site: Site | None, *way: Any) -> Found:
    """Return the optimizer's state after two tasks, between which the job keeps it, and the metrics."""
    made, state = learner(site, *way, optimizer=adamw, test=(X[:49], Y[:49])), None
    for seed in (1, 2):
        made.load_optimizer_state(state)
        made.train(TrainConfig(steps=6, batch_size=19, lr=0.1, seed=seed))
        state = made.optimizer_state()
    return made.evaluate() | dict(state.items() if state is not None else {})


def measured(site: Site | None, model: Any, parallel: Any) -> Found:
    """Return the measurements of each rank."""
    learner(site, model, parallel, optimizer=momentum).train(TrainConfig(steps=2, batch_size=14, lr=0.1))
    reports = parallel.reports
    names = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "bytes_sent")
    return {name: np.array([getattr(one, name) for one in reports]) for name in names}


def withdrawn(site: Site | None) -> Found:
    """Return the bytes that a rank has of parameters and gradients after a task that is withdrawn."""

    def progress(fraction: float) -> None:
        raise Cancelled("the task was withdrawn")

    made = learner(site, optimizer=momentum)
    with suppress(Cancelled):
        made.train(CONFIG, progress=progress)
    parts: Any = made._asked.site
    tensors = [one for p in parts.sharded.module.parameters() for one in (p, p.grad) if one is not None]
    return {"bytes": sum(local(one).untyped_storage().nbytes() for one in tensors)}


def refusals(site: Site | None) -> Found:
    """Return the errors of shards that cannot be."""

    def text(do: Any) -> str:
        try:
            do()
        except InvalidJob as error:
            return error.message
        return "none"

    def use(model: Any, *modules: str) -> Any:
        return lambda: learner(site, model, FullyShard(modules))

    def divide(*layers: Any) -> Any:
        return lambda: learner(site, convolutions, TensorParallel(layers))

    class Scaled(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(6, 2))
            self.scale = nn.Parameter(torch.ones(()))

    tied = nn.Linear(6, 6)
    known = learner(site)
    return {
        "unknown": text(use(Network, "absent")),
        "container": text(use(Network, "blocks")),
        "without parameters": text(use(Network, "blocks.0.1")),
        "whole": text(use(lambda: nn.Bilinear(2, 2, 2))),
        "tied": text(use(lambda: nn.ModuleList([nn.Sequential(tied), nn.Sequential(tied)]), "0", "1")),
        "number": text(use(Scaled)),
        "types": text(use(lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6).double())), "0")),
        "fp16": text(lambda: TorchConfig(parallel=FullyShard(), precision="fp16")),
        "unknown layer": text(divide("dense.9")),
        "convolution": text(divide(("found.1", "dense.0"))),
        "twice": text(divide("dense.0", ("dense.0", "dense.2"))),
        "no pair": text(divide(("dense.0", "dense.4"))),
        "odd": text(divide("dense.2")),
        "correction": text(lambda: known.train(CONFIG, correct=pull)),
        "gradient": text(lambda: known.gradient(CONFIG)),
    }


CASES: dict[str, Case] = {
    "adamw": lambda site: sharded(site, optimizer=adamw),
    "accumulation": lambda site: sharded(site, config=ACCUMULATING, optimizer=momentum),
    "ignored targets": ignoring,
    "evaluation": evaluated,
    "kept optimizer": kept,
    "optimizer's state": state,
    "dense layers": lambda site: dense(site, config=ACCUMULATING, optimizer=adamw),
    "optimizer's state of dense layers": lambda site: state(site, convolutions, TensorParallel(MIXED)),
}
"""Trainings with the same result in any number of processes."""

OTHERS: dict[str, Case] = {
    "alike": lambda site: alike(cast("Site", site), TorchConfig(parallel=FullyShard())),
    "measured": lambda site: measured(site, Network, FullyShard(("blocks.0", "blocks.1", "blocks.2"))),
    "dense layers, measured": lambda site: measured(site, convolutions, TensorParallel(PAIR)),
    "withdrawn": withdrawn,
    "refusals": refusals,
}

if __name__ == "__main__":
    import torch.distributed.fsdp
    import torch.distributed.tensor

    fork({**CASES, **OTHERS}, Path(sys.argv[1]))
