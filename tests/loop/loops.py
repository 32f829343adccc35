"""A small model, data, and the training loop that does what a `TorchLearner` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from shoal.learn import TorchLearner
from shoal.learn.seeds import CPU, seeded
from shoal.loop.task import LoopTask

NODES = 3


def network() -> nn.Module:
    """Return a module with the same weights each time, also where two threads call this: `seeded` holds a lock."""
    with seeded(7, CPU):
        return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Dropout(0.2), nn.ReLU(), nn.Linear(12, 2))


def adapted() -> nn.Module:
    """A frozen base, also of a BatchNorm, and a trained head."""
    module = network()
    for part in (module[0], module[1]):
        part.requires_grad_(False)
    return module


def parts(count: int = NODES) -> list[tuple[Tensor, Tensor]]:
    """The data of each node, of unequal sizes."""
    x = torch.randn(70 * count, 8, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] + x[:, 1] > 0).long()
    places = [0, *(50 * (n + 1) + 20 * n * (n + 1) // count for n in range(count - 1)), len(x)]
    return [(x[a:b], y[a:b]) for a, b in pairwise(places)]


def learners(make: Callable[[], nn.Module] = network, **more: Any) -> list[TorchLearner]:
    return [TorchLearner(make, part, **more) for part in parts()]


def train(task: LoopTask, model: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Train as a user does; the examples and the mean loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr)
    seen, total = 0, 0.0
    for x, y in task.batches(data):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        seen, total = seen + len(x), total + loss.item() * len(x)
    return float(seen if task.steps else len(data[0])), total / max(1, seen)


def loop(tasks: Iterable[LoopTask], model: nn.Module, data: list[tuple[Tensor, Tensor]] | None = None) -> int:
    """Train on every task; how many there were."""
    data, count = data or parts(), 0
    for task in tasks:
        examples, loss = train(task, model, data[task.index])
        task.report(model, examples=examples, metrics={"loss": loss})
        count += 1
    return count
