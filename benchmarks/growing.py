"""Card of growing networks: small pictures and a small network first, then larger ones, on MNIST.

    python benchmarks/shelf.py growing --data FOLDER     FOLDER: the four files of MNIST; see `shoal data`

10,000 pictures, at last three convolutions with 16, 32 and 32 filters before an adaptive pool, Adam, one seed. Three
epochs with 7x7 pixels train two narrower convolutions, three with 14x14 three of them, one with 28x28 the last network:
each grows from the one before (Net2Net, Chen et al. 2016). For comparison the last network trains from scratch with
28x28 pixels, until it is as accurate. Accuracies are those of the 10,000 test pictures. Computation is counted in
multiply-accumulates of convolutions and linear layers: for each example trained on, three times those of the output.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from card_figure import Figure
from torch import Tensor, nn

from shoal.core.algorithm.learner import TrainConfig
from shoal.learn import GrowingLearner, TorchLearner, mnist
from shoal.learn.data import datasets

PICTURES, RATE, BATCH = 10_000, 0.002, 50
ACCURACY, SAVING, KEPT, EPOCHS_MAX = 0.96, 2.0, 1e-5, 8


class Stage(NamedTuple):
    """A stage: width of the pictures, filters of the convolutions, and epochs."""

    pixels: int
    filters: tuple[int, ...]
    epochs: int


STAGES = (Stage(7, (8, 16), 3), Stage(14, (16, 24, 24), 3), Stage(28, (16, 32, 32), 1))


class Pictures(NamedTuple):
    """Pictures of 28x28 pixels, and labels."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    def of_width(self, pixels: int) -> Pictures:
        """Return the pictures with fewer pixels, each the mean of some."""
        parts = ((nn.functional.avg_pool2d(x, 28 // pixels), y) for x, y in self)
        return Pictures(*parts)


def pictures(folder: str, seed: int) -> Pictures:
    """Return MNIST's test pictures and a part of those to train on."""
    found = datasets.load("mnist", Path(folder) if folder else None)
    part = np.random.default_rng(seed).permutation(len(found.train_y))[:PICTURES]

    def seen(images: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
        return mnist.pixels(images, "mnist").reshape(-1, 1, 28, 28), mnist.classes(labels)

    return Pictures(seen(found.train_x[part], found.train_y[part]), seen(found.test_x, found.test_y))


def network(stage: Stage) -> nn.Sequential:
    """Return the convolutions of a stage before an adaptive pool and a linear layer."""
    layers: dict[str, nn.Module] = {}
    for number, (before, after) in enumerate(zip((1, *stage.filters), stage.filters, strict=False)):
        layers[f"convolution_{number}"] = nn.Conv2d(before, after, 3, padding=1)
        layers[f"norm_{number}"], layers[f"relu_{number}"] = nn.BatchNorm2d(after), nn.ReLU()
    layers |= {"pool": nn.AdaptiveAvgPool2d(4), "flat": nn.Flatten(), "scores": nn.Linear(16 * stage.filters[-1], 10)}
    return nn.Sequential(OrderedDict(layers))


def operations(stage: Stage) -> int:
    """Return the multiply-accumulates of an epoch."""
    counts, module = list[int](), network(stage).eval()

    def count(layer: nn.Conv2d | nn.Linear, _: object, output: Tensor) -> None:
        counts.append(layer.weight[0].numel() * output.numel())

    for layer in module:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    with torch.no_grad():
        module(torch.zeros(1, 1, stage.pixels, stage.pixels))
    return 3 * sum(counts) * PICTURES


def learner_of(data: Pictures, stage: Stage) -> TorchLearner:
    """Return the learner of a stage."""
    train, test = data.of_width(stage.pixels)
    return TorchLearner(
        lambda: network(stage), train, test, optimizer=lambda parts, lr: torch.optim.Adam(parts, lr=lr), device="cpu"
    )


def train_epoch(learner: GrowingLearner | TorchLearner, epoch_seed: int) -> float:
    """Train for an epoch, and return the accuracy."""
    learner.train(TrainConfig(epochs=1, batch_size=BATCH, lr=RATE, seed=epoch_seed))
    return learner.evaluate()["eval/accuracy"]


def scores(learner: TorchLearner, inputs: Tensor) -> Tensor:
    """Return a network's scores of some pictures."""
    with torch.no_grad():
        return learner.module.eval()(inputs)  # type: ignore[no-any-return]


def figures(folder: str, seed: int) -> Iterator[Figure]:
    """Yield all figures."""
    data = pictures(folder, seed)
    growing = GrowingLearner(lambda number: learner_of(data, STAGES[number]), len(STAGES))
    growing.init(seed)
    spent, accuracy, epochs = 0, 0.0, 0
    for number, stage in enumerate(STAGES):
        if number:
            seen, small = data.of_width(STAGES[number - 1].pixels).test[0], growing.learner
            growing.grow(growing.model(), seed)
            before, after = scores(small, seen), scores(growing.learner, seen)
            gap = float((before - after).abs().max() / before.abs().max())
            name = f"growth to {stage.pixels}x{stage.pixels}: greatest difference of scores, by the greatest score"
            yield Figure(name, f"at most {KEPT:g}", f"{gap:.1e}", gap <= KEPT)
        for _ in range(stage.epochs):
            accuracy, epochs = train_epoch(growing, seed + epochs), epochs + 1
        spent += stage.epochs * operations(stage)
        if stage is not STAGES[-1]:
            yield Figure(f"{stage.pixels}x{stage.pixels}: accuracy after {stage.epochs} epochs", "", f"{accuracy:.4f}")
    yield Figure(
        "28x28: accuracy after its first epoch", "at least .96 (.9693)", f"{accuracy:.4f}", accuracy >= ACCURACY
    )
    yield Figure("computation until then", "(.72 TMAC)", f"{spent / 1e12:.2f} TMAC")
    yield from scratch_figures(learner_of(data, STAGES[-1]), seed, accuracy, spent)


def scratch_figures(scratch: TorchLearner, seed: int, wanted: float, spent: int) -> Iterator[Figure]:
    """Yield the figures of the last network, trained from scratch until it is as accurate as the grown one."""
    scratch.init(seed)
    found = [train_epoch(scratch, seed)]
    yield Figure("from scratch: accuracy after the first epoch", "(.934)", f"{found[0]:.4f}", found[0] < wanted)
    while found[-1] < wanted and len(found) < EPOCHS_MAX:
        found.append(train_epoch(scratch, seed + len(found)))
    cost = len(found) * operations(STAGES[-1])
    text = f"{found[-1]:.4f} after {len(found)} epochs, {cost / 1e12:.2f} TMAC"
    yield Figure("from scratch: as accurate", "(.9699 after 4 epochs, 1.48 TMAC)", text)
    yield Figure("times less computation", "at least 2 (2.05)", f"{cost / spent:.2f}", cost >= SAVING * spent)
