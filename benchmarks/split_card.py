"""Card E of the algorithms: split learning (Gupta and Raskar 2018; Vepakomma et al. 2018), on MNIST.

    python benchmarks/shelf.py split --data FOLDER     FOLDER: the four files of MNIST; see `shoal data`

784-64-64-32-10 on MNIST, 200 steps of 32 examples by SGD with momentum 0.9; with crashes, messages are lost and
repeated, and both sides die in the middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from card_figure import Figure
from torch import Tensor, nn

import shoal
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.model.tree import Tree
from shoal.filters.half import Half
from shoal.filters.quantize import Quantize
from shoal.learn import TorchLearner
from shoal.learn.data import datasets
from shoal.learn.mnist import classes, pixels

STEPS, BATCH, LR = 200, 32, 0.02
FAULTS = shoal.Faults(
    message_loss=0.05, message_duplicates=0.05, delay_s=0.02, coordinator_crashes=5, node_crashes=5, until_s=60.0
)
JOB = shoal.SplitJob(cut=2, steps=STEPS, batch_size=BATCH, lr=LR)


def network() -> nn.Module:
    """Return a model that can be cut in three places behind a layer to train."""
    return nn.Sequential(
        nn.Linear(784, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def momentum(parameters: Iterable[Any], lr: float) -> torch.optim.Optimizer:
    """Return SGD with momentum."""
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


@lru_cache(maxsize=1)
def data(folder: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the training images and the test images, with their classes."""
    images = datasets.load("mnist", Path(folder) if folder else None)
    train = pixels(images.train_x, "mnist"), classes(images.train_y)
    return train, (pixels(images.test_x, "mnist"), classes(images.test_y))


def learners(folder: str, parts: int) -> list[TorchLearner]:
    """Return learners that share the training images; each has all test images."""
    (x, y), test = data(folder)
    return [
        TorchLearner(network, (x[part::parts], y[part::parts]), test, optimizer=momentum, device="cpu")
        for part in range(parts)
    ]


def difference(one: Tree, other: Tree) -> float:
    """Return the greatest difference of two models' numbers."""
    return max(float(np.abs(one[name].astype(np.float64) - other[name]).max()) for name in one)


def figures(folder: str, seed: int) -> Iterator[Figure]:
    """Yield the figures of the card."""
    (central,) = learners(folder, 1)
    central.init(seed)
    central.train(TrainConfig(steps=STEPS, batch_size=BATCH, batch_index=0, sequence_seed=seed, lr=LR))
    seeded = replace(JOB, seed=seed)
    aim = central.evaluate()["eval/accuracy"]
    for labels in ("node", "coordinator"):
        for cut in (1, 2, 3):
            job = replace(seeded, cut=cut, labels=labels)  # type: ignore[arg-type]
            found = [difference(run(job, folder, faults).model, central.model()) for faults in (None, FAULTS)]
            shown = f"{found[0]:g}, {found[1]:g} with crashes"
            name = f"largest difference to central training, cut {cut}, labels at the {labels}"
            yield Figure(name, "0", shown, not any(found))
    for name, filters, expected in (
        ("float32", (), "16,640"),
        ("bf16", (Half(),), "8,448"),
        ("8 bits", (Quantize(),), "4,384"),
    ):
        result = run(replace(seeded, labels="coordinator", filters=filters), folder, None)
        up, down = (int(text) for text in result.events[0].text.split() if text.isdecimal() and int(text) > BATCH)
        sent = f"{up + down:,}"
        yield Figure(f"bytes per step, {name}, labels at the coordinator", expected, sent, sent == expected)
        yield Figure(f"accuracy, {name}", f"{aim:.4f} (central)", f"{result.metrics['held_out/accuracy']:.4f}")
    for order in ("sequential", "parallel"):
        job = replace(seeded, order=order, rounds=5, steps=STEPS // 5, labels="coordinator")  # type: ignore[arg-type]
        result = run(job, folder, None, parts=4)
        yield Figure(f"accuracy of four nodes, {order}, 5 rounds", "", f"{result.metrics['held_out/accuracy']:.4f}")


def run(job: shoal.SplitJob, folder: str, faults: shoal.Faults | None, parts: int = 1) -> shoal.Result:
    """Run a job over that number of nodes."""
    (held_out,) = learners(folder, 1)
    return shoal.simulate_split(job, learners(folder, parts), faults=faults, held_out=held_out)
