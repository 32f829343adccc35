"""Small models for the ready data sets. Inputs are flat, `float32[batch, pixels]`; outputs are ten logits.

two_nn and mcmahan_cnn: McMahan et al., AISTATS 2017, section 3 (its 2NN of 199,210 and its CNN of 1,663,370 numbers).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from shoal.core.errors import InvalidJob


def mlp() -> nn.Module:
    """Return 64-64-10 for the 8x8 digits: 4,810 parameters."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def cnn() -> nn.Module:
    """Return two 3x3 convolutions for the 8x8 digits: 10,370 parameters."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 40),
        nn.ReLU(),
        nn.Linear(40, 10),
    )


def bn() -> nn.Module:
    """Return the 64-64-10 network with BatchNorm before its ReLU."""
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))


def two_nn() -> nn.Module:
    """Return 784-200-200-10 for 28x28 images."""
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))


def mcmahan_cnn() -> nn.Module:
    """Return two 5x5 convolutions (32 and 64 channels), each with 2x2 max pooling, then 512 units, for 28x28 images."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


DIGITS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "cnn": cnn, "bn": bn}
MNIST: dict[str, Callable[[], nn.Module]] = {"2nn": two_nn, "cnn": mcmahan_cnn}


def named(models: dict[str, Callable[[], nn.Module]], name: str) -> Callable[[], nn.Module]:
    """Return the model function of a name. Raises `InvalidJob` when there is none."""
    if name not in models:
        raise InvalidJob(f"no model is called {name!r}", hint=f"use {' or '.join(models)}")
    return models[name]
