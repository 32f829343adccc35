"""A learner with a frozen part, its base model, which a seed of its own makes."""

import torch
from torch import nn

from shoal.learn import TorchLearner

WIDTH = 400
"""Width of the frozen layer: 8 kB of weights."""


def learner(base: int = 0, width: int = WIDTH) -> TorchLearner:
    """Return a learner whose frozen layer depends on `base` alone."""

    def network() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(base)
            frozen = nn.Linear(4, width).requires_grad_(False)
        return nn.Sequential(frozen, nn.Linear(width, 2))

    generator = torch.Generator().manual_seed(1)
    data = torch.randn(8, 4, generator=generator), torch.arange(8) % 2
    return TorchLearner(network, data, data, device="cpu")
