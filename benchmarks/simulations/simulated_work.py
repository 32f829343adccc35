"""The work that simulations are compared on: three networks, and clients of 32 examples each, one pass in batches of 8.

The examples are noise: 64 numbers and one of ten classes. Programs of other frameworks share this file, so it needs
torch only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

EXAMPLES, BATCH, LR = 32, 8, 0.1
PIXELS, CLASSES = 64, 10


def mlp() -> nn.Module:
    """Return 64-128-10: 9,610 parameters."""
    return nn.Sequential(nn.Linear(PIXELS, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def cnn() -> nn.Module:
    """Return two 3x3 convolutions of 8x8 pixels and a layer: 6,090 parameters."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, CLASSES),
    )


class Transformer(nn.Module):
    """One encoder layer (two heads, width 32) over the eight rows of 8x8 pixels: 9,162 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.encode = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.classify = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes' scores."""
        scores: Tensor = self.classify(self.encode(self.embed(x.unflatten(1, (8, 8)))).mean(1))
        return scores


NETWORKS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "cnn": cnn, "transformer": Transformer}


def examples(client: int, size: int = EXAMPLES) -> tuple[Tensor, Tensor]:
    """Return a client's examples, drawn by its number: `float32[size, 64]` and `int64[size]`."""
    draw = torch.Generator().manual_seed(client)
    return torch.rand(size, PIXELS, generator=draw), torch.randint(CLASSES, (size,), generator=draw)


@cache
def kept_examples(client: int) -> tuple[Tensor, Tensor]:
    """Return a client's examples, and keep them in this process."""
    return examples(client)
