"""Losses, metrics and their means over examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.errors import InvalidJob
from shoal.core.protocol.message import Metrics
from shoal.core.protocol.metrics import EVAL_WEIGHT, METRIC_RULE, METRICS_MAX, metrics_fault, own_count

Loss = Callable[[Any, Any], Tensor]
"""`(output, target) -> scalar`, the mean over the batch."""

Measured = Tensor | float | tuple[Tensor | float, Tensor | float]
"""The mean over the batch, or (mean, number of values) if the number differs from that of the examples."""

Measure = Callable[[Any, Any], Measured]
"""`(output, target) -> scalar`, for evaluations."""

IGNORED = -100
"""The class that torch's cross entropy ignores by default."""

RESERVED = ("asked", "examples", "loss", "nodes")
"""Names of metrics that have a meaning already."""


class Mean:
    """A mean weighted by examples, summed and counted on the device so that steps do not wait for it."""

    def __init__(self, device: torch.device) -> None:
        self._device, self.added = device, 0
        self._sum: float | Tensor = 0.0
        self._weight: int | Tensor = 0

    @property
    def total(self) -> Tensor:
        """The weighted sum, on the device, where it may be changed."""
        if not isinstance(self._sum, Tensor):
            dtype = torch.float32 if self._device.type == "mps" else torch.float64  # Metal has no float64
            self._sum = torch.tensor(self._sum, dtype=dtype, device=self._device)
        return self._sum

    @property
    def weight(self) -> int:
        """The number of examples; waits for the device if it has counted them."""
        return int(self._weight)

    def add(self, value: Tensor | float, weight: int | Tensor) -> None:
        """Add the mean of `weight` examples; nothing without examples, of which the mean is undefined."""
        if isinstance(weight, Tensor):
            self._add_counted(value, weight.detach().to(self._device, torch.int64))
            return
        if not weight:
            return
        if not isinstance(value, Tensor):
            self._sum += value * weight
        elif value.dtype is torch.float32 and value.is_cpu and not value.ndim:
            self._sum += value.item() * weight  # an exact product, so that the sum is that of torch to the bit
        else:
            self.total.add_(value.detach(), alpha=weight)
        self._weight = self._weight + weight
        self.added += 1

    def _add_counted(self, value: Tensor | float, weight: Tensor) -> None:
        """Add the mean of a number of examples that only the device knows."""
        factor = value.detach().to(self.total) if isinstance(value, Tensor) else value
        self.total.add_(torch.where(weight != 0, weight.to(self.total.dtype) * factor, 0.0))
        self._weight = self._weight + weight
        self.added += 1

    def add_measured(self, measured: Measured, examples: int) -> None:
        """Add what a measure gives for a batch."""
        value, weight = measured if isinstance(measured, tuple) else (measured, examples)
        self.add(value, weight if isinstance(weight, Tensor) else int(weight))

    def named(self, name: str) -> Metrics:
        """Return the mean under this name; nothing if nothing was added."""
        weight = self.weight
        return {name: float(self._sum) / weight} if weight else {}


def accuracy(output: Tensor, target: Tensor, ignore_index: int = IGNORED) -> tuple[Tensor, Tensor]:
    """Return the fraction of outputs `[batch, classes, …]` whose maximum is the target, and the number of targets.

    A target is a class, or as many numbers as there are classes, of which the maximum counts. Targets of `ignore_index`
    are left out.
    """
    classes = target.ndim == output.ndim
    truth = target.argmax(1) if classes else target
    counted = torch.ones_like(truth, dtype=torch.bool) if classes else truth != ignore_index
    number = counted.sum()
    return ((output.argmax(1) == truth) & counted).sum() / number.clamp(min=1), number


def class_loss(loss: Loss) -> tuple[bool, int]:
    """Return whether a loss is the mean of a cross entropy of classes, and the class that it ignores."""
    function, options = (loss.func, loss.keywords) if isinstance(loss, partial) else (loss, {})
    if isinstance(function, nn.CrossEntropyLoss):
        return True, function.ignore_index
    return function is nn.functional.cross_entropy, options.get("ignore_index", IGNORED)


def default_metrics(loss: Loss) -> dict[str, Measure]:
    """Return accuracy if the loss is a cross entropy of classes."""
    of_classes, ignored = class_loss(loss)
    return {"accuracy": partial(accuracy, ignore_index=ignored)} if of_classes else {}


def class_targets(loss: Loss, target: Any) -> Tensor | None:
    """Return the number of targets over which a cross entropy of classes takes its mean; None for other losses."""
    of_classes, ignored = class_loss(loss)
    if not of_classes or not isinstance(target, Tensor) or target.is_floating_point():
        return None
    return (target != ignored).sum()


def targets_counted(loss: Loss, target: Any, examples: int) -> int | Tensor:
    """Return the number of targets over which a loss takes its mean: all examples, unless it ignores some. A tensor on
    the device where these must be counted."""
    counted = class_targets(loss, target)
    return examples if counted is None else torch.where(counted == target.numel(), examples, counted)


def named_means(means: Mapping[str, Mean], examples: int) -> Metrics:
    """Return each mean as "eval/NAME", with "eval/NAME/examples" where it was not taken over this many examples."""
    values: Metrics = {}
    for name, mean in means.items():
        values |= mean.named(f"eval/{name}")
        if mean.weight not in (0, examples):
            values[own_count(f"eval/{name}")] = float(mean.weight)
    return values


class Evaluation:
    """The means of the loss and of the metrics over test data."""

    def __init__(self, loss: Loss, metrics: Mapping[str, Measure], device: torch.device) -> None:
        self._loss, self._metrics, self._examples = loss, metrics, 0
        self._means = {name: Mean(device) for name in ("loss", *metrics)}

    def add(self, output: Any, target: Any, loss: Tensor, examples: int) -> None:
        """Add a batch, whose mean loss is known."""
        self._examples += examples
        self._means["loss"].add(loss, targets_counted(self._loss, target, examples))
        for name, measure in self._metrics.items():
            self._means[name].add_measured(measure(output, target), examples)

    def named(self) -> Metrics:
        """Return "eval/examples", "eval/loss" and each metric as "eval/NAME"."""
        return {EVAL_WEIGHT: float(self._examples), **named_means(self._means, self._examples)}


def checked_metrics(metrics: Mapping[str, Measure]) -> dict[str, Measure]:
    """Return the metrics. Raises `InvalidJob` for a name that cannot be reported, or has a meaning already."""
    text = metrics_fault({f"eval/{name}": 0.0 for name in metrics}, METRICS_MAX)
    hint = METRIC_RULE
    if taken := [name for name in metrics if name in RESERVED or name.endswith(("/examples", "/nodes"))]:
        text, hint = f"{taken[0]!r}, which has another meaning", "choose another name"
    if text:
        raise InvalidJob(f"the metrics hold {text}", code="learner.metrics", hint=hint)
    return dict(metrics)


def check_without_parameters(functions: Mapping[str, Any]) -> None:
    """Raise `InvalidJob` if a loss or a metric is a module with trainable parameters."""
    for name, function in functions.items():
        found = function.named_parameters() if isinstance(function, nn.Module) else ()
        if own := [parameter for parameter, values in found if values.requires_grad]:
            raise InvalidJob(
                f"{name} has parameters of its own ({', '.join(own[:3])}), which nodes would not exchange",
                code="learner.model",
                hint="make them part of the model, or freeze them by requires_grad_(False)",
            )
