"""Small networks with exits, and the digits as several devices see them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.learn.exits import ExitLevel, ExitNetwork

FILTERS, CLASSES = 3, 4
VIEW = (1, 4, 4)


def device() -> ExitLevel:
    """A convolution, and scores of its filters."""
    return ExitLevel(
        nn.Conv2d(1, FILTERS, 3, stride=2, padding=1), nn.Sequential(nn.Flatten(), nn.Linear(FILTERS * 4, CLASSES))
    )


def small(devices: int = 3, scheme: str = "AP-CC", *, edge: bool = False, absence: float = 0.0) -> ExitNetwork:
    """A network of random weights for views of 4x4 pixels."""
    torch.manual_seed(0)
    width = FILTERS * devices if scheme.endswith("CC") else FILTERS
    middle = ExitLevel(nn.Conv2d(width, 5, 1), nn.Sequential(nn.Flatten(), nn.Linear(5 * 4, CLASSES))) if edge else None
    cloud = nn.Sequential(nn.Flatten(), nn.Linear((5 if edge else width) * 4, CLASSES))
    parts = [device() for _ in range(devices)]
    return ExitNetwork(parts, middle, cloud, classes=CLASSES, scheme=scheme, absence=absence)


def views(devices: int = 3, examples: int = 50, seed: int = 0) -> Tensor:
    """Random views, [examples, devices, 1, 4, 4]."""
    return torch.randn(examples, devices, *VIEW, generator=torch.Generator().manual_seed(seed))
