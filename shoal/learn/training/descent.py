"""One local step: gradients of a loss, corrected where an algorithm asks for it, and a move of the parameters.

Plain SGD moves the parameters directly, which saves a fifth of the time of a small model's step and computes the very
same numbers; every other optimizer is the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.core.learner import Correct
from shoal.learn.weights import Weights, pack, unpack

OptimizerOf = Callable[[Iterable[Any], float], Optimizer]
"""`(parameters, lr) -> optimizer`."""


def gradients_of(loss: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradient for each parameter; None for one that the loss does not depend on."""
    return torch.autograd.grad(loss, parameters, allow_unused=True)


class Descent:
    """Moves a module's trainable parameters. `optimizer` None is plain SGD; `scaler` guards small fp16 gradients."""

    def __init__(
        self,
        weights: Weights,
        lr: float,
        *,
        optimizer: Optimizer | None = None,
        scaler: torch.amp.GradScaler | None = None,
        correct: Correct | None = None,
    ) -> None:
        self.weights, self.lr, self.optimizer, self.scaler, self.correct = weights, lr, optimizer, scaler, correct
        self.trained = weights.trainable()

    def step(self, loss: Tensor) -> None:
        """One step down the gradient of a scalar loss."""
        if self.optimizer is None:
            self._plain(loss)
        else:
            self._optimized(loss, self.optimizer)

    def _plain(self, loss: Tensor) -> None:
        parameters = list(self.trained.values())
        gradients = gradients_of(loss, parameters)
        if self.correct is not None:
            gradients = self._corrected(gradients, self.correct)
        moving = [(p, gradient) for p, gradient in zip(parameters, gradients, strict=True) if gradient is not None]
        with torch.no_grad():
            torch._foreach_add_([p for p, _ in moving], [g for _, g in moving], alpha=-self.lr)

    def _optimized(self, loss: Tensor, optimizer: Optimizer) -> None:
        optimizer.zero_grad(set_to_none=True)
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
        if self.correct is not None:
            gradients = self._corrected([p.grad for p in self.trained.values()], self.correct)
            for p, gradient in zip(self.trained.values(), gradients, strict=True):
                p.grad = gradient
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()

    def _corrected(self, gradients: Iterable[Tensor | None], correct: Correct) -> tuple[Tensor, ...]:
        """The gradients as `correct` wants them. Parameters that stay with this node are not its business."""
        dense = {
            name: torch.zeros_like(p)
            if gradient is None
            else gradient.to_dense().clone(memory_format=torch.contiguous_format)
            for (name, p), gradient in zip(self.trained.items(), gradients, strict=True)
        }
        layout = self.weights.layout
        travelling = {name: gradient for name, gradient in dense.items() if name in layout.index}
        unpack(correct(self.weights.save(), pack(layout, travelling)), travelling)
        return tuple(dense.values())


class KeptOptimizer:
    """An optimizer that outlives one order. Each order sets its learning rate; groups keep their proportions."""

    def __init__(self) -> None:
        self._optimizer: Optimizer | None = None
        self._factors: list[float] = []

    def take(self, make: OptimizerOf, parameters: Iterable[nn.Parameter], lr: float) -> Optimizer:
        """The kept optimizer at this learning rate; a new one where there is none."""
        if self._optimizer is None:
            self._optimizer = make(parameters, lr)
            self._factors = [float(group["lr"]) / lr if lr else 1.0 for group in self._optimizer.param_groups]
        for group, factor in zip(self._optimizer.param_groups, self._factors, strict=True):
            group["lr"] = lr * factor
        return self._optimizer

    def forget(self) -> None:
        """Start anew with the next order: the state was left half-way, or belongs to another device."""
        self._optimizer = None
