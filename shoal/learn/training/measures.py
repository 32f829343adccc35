"""Losses, metrics and their means over examples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.protocol.message import Metrics

Loss = Callable[[Any, Any], Tensor]
"""`(output, target) -> scalar`, the mean over the batch."""

Measure = Callable[[Any, Any], Tensor | float]
"""`(output, target) -> scalar`, the mean over the batch, for evaluations."""


class Mean:
    """A mean weighted by examples, summed on the device so that steps do not wait for it."""

    def __init__(self, device: torch.device) -> None:
        dtype = torch.float32 if device.type == "mps" else torch.float64  # Metal has no float64
        self.weight, self.added, self._sum = 0, 0, torch.zeros((), dtype=dtype, device=device)

    def add(self, value: Tensor | float, weight: int) -> None:
        """Add the mean of `weight` examples."""
        if isinstance(value, Tensor):
            self._sum.add_(value.detach(), alpha=weight)
        else:
            self._sum.add_(value * weight)
        self.weight += weight
        self.added += 1

    def named(self, name: str) -> Metrics:
        """Return the mean under this name; nothing if nothing was added."""
        return {name: float(self._sum) / self.weight} if self.weight else {}


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of outputs `[batch, classes, …]` whose maximum is the target: a class, or the maximum of a
    target."""
    truth = target.argmax(1) if target.ndim == output.ndim else target
    return (output.argmax(1) == truth).float().mean()


def default_metrics(loss: Loss) -> dict[str, Measure]:
    """Return accuracy if the loss is a cross entropy of classes."""
    function = loss.func if isinstance(loss, partial) else loss
    classes = function is nn.functional.cross_entropy or isinstance(function, nn.CrossEntropyLoss)
    return {"accuracy": accuracy} if classes else {}
