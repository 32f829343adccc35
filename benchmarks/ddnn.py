"""Card F1 of the algorithms: a network with exits on devices and in the cloud (Teerapittayanon et al. 2017), on MNIST.

    python benchmarks/shelf.py ddnn --data FOLDER     FOLDER: the four files of MNIST; see `shoal data`

20,000 pictures, three epochs of Adam with falling rates, one seed, the scheme AP-CC. Six devices see 14x14 pixels each,
which overlap by half from left to right; a device is left out of 15 % of its training examples. Thresholds are chosen
on 5,000 other pictures, all figures are those of the 10,000 test pictures. The second network has one device that sees
the whole picture, and an edge server; it answers on the device without sending anything.

The card counts 45 bytes per device, and 784 for the picture; the bytes of all devices are another line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from card_figure import Figure
from torch import Tensor, nn

from shoal.core.algorithm.learner import TrainConfig
from shoal.learn import mnist
from shoal.learn.data import datasets
from shoal.learn.exits import ExitLevel, ExitNetwork, answer, choose_by_accuracy, exit_learner, record_exits

RATES, PICTURE = (0.004, 0.002, 0.0005), 784
CARD_THRESHOLD = 0.2
LOSS_MAX, MARGIN = 0.005, 2.0
"""Points below the cloud that the choice of thresholds allows, and its distance from there in standard errors."""


class Pictures(NamedTuple):
    """Views of the devices, and labels, for training, for the choice of thresholds, and for tests."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def six_views(images: Tensor) -> Tensor:
    """Return what each of six devices sees: [pictures, 6, 1, 14, 14]."""
    views = [images[..., row : row + 14, column : column + 14] for row in (0, 14) for column in (0, 7, 14)]
    return torch.stack(views, 1)


def pictures(folder: str, seed: int, view: Callable[[Tensor], Tensor]) -> Pictures:
    """Return MNIST as the devices see it."""
    found = datasets.load("mnist", Path(folder) if folder else None)
    order = np.random.default_rng(seed).permutation(len(found.train_y))

    def seen(images: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
        return view(mnist.pixels(images, "mnist").reshape(-1, 1, 28, 28)), mnist.classes(labels)

    train, validation = order[:20_000], order[20_000:25_000]
    return Pictures(
        seen(found.train_x[train], found.train_y[train]),
        seen(found.train_x[validation], found.train_y[validation]),
        seen(found.test_x, found.test_y),
    )


def level(before: int, filters: int, outputs: int) -> ExitLevel:
    """Return a convolution whose features have `outputs` places, with a linear exit."""
    body = nn.Sequential(nn.Conv2d(before, filters, 3, padding=1), nn.BatchNorm2d(filters), nn.MaxPool2d(3, 2))
    return ExitLevel(body, nn.Sequential(nn.Flatten(), nn.Linear(filters * outputs, 10)))


def upper(before: int, places: int) -> nn.Module:
    """Return the cloud's part: two convolutions and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(before, 48, 3, padding=1),
        nn.BatchNorm2d(48),
        nn.ReLU(),
        nn.Conv2d(48, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * places, 10),
    )


def six_devices() -> ExitNetwork:
    """Return six devices with four filters each, and the cloud."""
    devices = [level(1, 4, 36) for _ in range(6)]
    return ExitNetwork(devices, None, upper(24, 36), classes=10, scheme="AP-CC", absence=0.15)


def one_device() -> ExitNetwork:
    """Return a device with four filters, an edge server with sixteen, and the cloud."""
    return ExitNetwork([level(1, 4, 169)], level(4, 16, 36), upper(16, 36), classes=10)


def trained(
    model: Callable[[], ExitNetwork],
    data: Pictures,
    seed: int,
    weights: tuple[float, ...] = (),
    rates: tuple[float, ...] = RATES,
) -> ExitNetwork:
    """Return a network after an epoch with each of the rates."""
    learner = exit_learner(
        model, data.train, weights=weights, device="cpu", optimizer=lambda parts, lr: torch.optim.Adam(parts, lr=lr)
    )
    learner.init(seed)
    for epoch, rate in enumerate(rates):
        learner.train(TrainConfig(epochs=1, batch_size=50, lr=rate, seed=seed + epoch))
    network = learner.module
    assert isinstance(network, ExitNetwork)
    return network


def six_figures(data: Pictures, seed: int) -> Iterator[Figure]:
    """Yield the figures of six devices."""
    network, (views, labels) = trained(six_devices, data, seed), data.test
    record = record_exits(network, [views], labels)
    chosen = choose_by_accuracy(record_exits(network, [data.validation[0]], data.validation[1]), LOSS_MAX, MARGIN)
    local, cloud = record.exit_accuracies
    yield Figure("six devices: accuracy of the cloud", "at least .955 (.9693)", f"{cloud:.4f}", cloud >= 0.955)
    yield Figure("accuracy of the devices' exit", "", f"{local:.4f}")
    for name, thresholds in ((f"T = {CARD_THRESHOLD}", (CARD_THRESHOLD,)), (f"T = {chosen[0]:.3f}, chosen", chosen)):
        found = answer(network, [views], thresholds)
        answered = float(np.mean(found.exits == 0))
        accuracy, sent = float(np.mean(found.classes == labels.numpy())), found.sent / len(labels)
        reached = accuracy >= cloud - LOSS_MAX
        yield Figure(f"{name}: answered by the devices", "at least 60 % (76 %)", f"{answered:.1%}", answered >= 0.6)
        yield Figure(f"{name}: accuracy", "at least cloud - .005 (.9676)", f"{accuracy:.4f}", reached)
        yield Figure(f"{name}: bytes per answer and device", "45", f"{sent / 6:.1f}", sent / 6 <= 45)
        yield Figure(f"{name}: bytes per answer, all devices", f"(picture: {PICTURE})", f"{sent:.0f}")
        losses = []
        for device in range(6):
            network.leave_out([device])
            losses.append(accuracy - record_exits(network, [views], labels).outcome(thresholds).accuracy)
        network.leave_out()
        text = f"{max(losses):.4f} (mean {np.mean(losses):.4f})"
        yield Figure(f"{name}: loss without a device, at most", ".03", text, max(losses) <= 0.03)
    alone = record_exits(trained(six_devices, data, seed, (0.0, 1.0), RATES[:1]), [views], labels).exit_accuracies[0]
    yield Figure("devices' exit if only the cloud's loss is trained", "chance (.08)", f"{alone:.4f}", alone < 0.3)


def one_figures(data: Pictures, seed: int) -> Iterator[Figure]:
    """Yield the figures of one device that sees the whole picture, with an edge server."""
    network, (views, labels) = trained(one_device, data, seed), data.test
    record = record_exits(network, [views], labels)
    accuracies = " / ".join(f"{one:.4f}" for one in record.exit_accuracies)
    yield Figure("one device, edge, cloud: accuracies", "", accuracies)
    thresholds = choose_by_accuracy(record_exits(network, [data.validation[0]], data.validation[1]), LOSS_MAX, MARGIN)
    found = answer(network, [views], thresholds)
    accuracy, sent = float(np.mean(found.classes == labels.numpy())), found.sent / len(labels)
    answered = [float(np.mean(found.exits == number)) for number in range(3)]
    shares = " / ".join(f"{one:.1%}" for one in answered)
    bound = record.exit_accuracies[-1] - LOSS_MAX
    yield Figure("answered by device / edge / cloud", "at least 60 %", shares, answered[0] >= 0.6)
    yield Figure("accuracy", "at least cloud - .005", f"{accuracy:.4f}", accuracy >= bound)
    yield Figure("bytes per answer, all links", f"45 (picture: {PICTURE})", f"{sent:.1f}", sent <= 45)


def figures(folder: str, seed: int) -> Iterator[Figure]:
    """Yield all figures."""
    yield from six_figures(pictures(folder, seed, six_views), seed)
    yield from one_figures(pictures(folder, seed, lambda images: images), seed)
