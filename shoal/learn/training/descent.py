"""One local step: gradients of batches, corrected for algorithms that need it, and a move of the parameters.

Plain SGD moves the parameters directly, which saves time in a small model's step and computes the very same numbers;
every other optimizer is the user's. Gradients come from `backward`, which hooks and reentrant checkpointing need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.core.errors import InvalidJob
from shoal.core.model.tree import Layout, Tree
from shoal.learn.site.shards import shard_like, whole
from shoal.learn.training.corrections import Corrector, correct_in_place
from shoal.learn.training.weights import NAME_OF, Weights, empty_tensors, pack, unpack

CLIP_EPSILON = 1e-6
"""Keeps the division defined for a gradient of zero, as in `torch.nn.utils.clip_grad_norm_`."""

OptimizerOf = Callable[[Iterable[Any], float], Optimizer]
"""`(parameters, lr) -> optimizer`."""


def other_than_plain(optimizer: Optimizer) -> str:
    """Return an optimizer's name and the settings that change its steps; "" for plain SGD, whose step is -lr times the
    gradient."""
    if type(optimizer) is not torch.optim.SGD:
        return type(optimizer).__name__
    names = ("momentum", "weight_decay", "nesterov", "maximize")
    found = [f"{name}={group[name]}" for group in optimizer.param_groups for name in names if group[name]]
    return f"SGD({', '.join(dict.fromkeys(found))})" if found else ""


def gradients_of(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradient of each parameter; None where the loss does not depend on it. Their `grad` is None then."""
    for parameter in parameters:
        parameter.grad = None
    loss.backward()  # type: ignore[no-untyped-call]
    return taken_gradients(parameters)


def taken_gradients(parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradient that each parameter holds, and take it from there."""
    found = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return found


def descend(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], lr: float) -> None:
    """Move parameters against their gradients, where they have one."""
    moving = [p for p, gradient in zip(parameters, gradients, strict=True) if gradient is not None]
    with torch.set_grad_enabled(False):  # in half the time of `no_grad`
        torch._foreach_add_(moving, [gradient for gradient in gradients if gradient is not None], alpha=-lr)


class Descent:
    """An optimizer of a module's trainable parameters. `optimizer` None is plain SGD; `scaler` scales fp16 losses.

    The gradients of `accumulate` batches make one step: their mean, weighted by the batches' examples. `combine`
    averages those of several ranks for a step of fewer batches.
    """

    def __init__(
        self,
        weights: Weights,
        lr: float,
        *,
        optimizer: Optimizer | None = None,
        scaler: torch.amp.GradScaler | None = None,
        corrector: Corrector | None = None,
        clip_norm: float | None = None,
        accumulate: int = 1,
        combine: Callable[[Sequence[nn.Parameter]], None] | None = None,
    ) -> None:
        self.weights, self.lr, self.optimizer, self.scaler = weights, lr, optimizer, scaler
        self.corrector, self.clip_norm, self.accumulate, self._combine = corrector, clip_norm, accumulate, combine
        self.trained = weights.trainable()
        self.total_norm: Callable[[Sequence[Tensor]], Tensor] = nn.utils.get_total_norm
        self._sizes: list[int] = []  # of the batches whose gradients the parameters hold

    @property
    def completes_step(self) -> bool:
        """True if the next batch makes the step."""
        return len(self._sizes) + 1 == self.accumulate

    def add(self, loss: Tensor, examples: int) -> None:
        """Add the gradient of a batch's mean loss to those of the next step; make the step if it is complete."""
        if (factor := self.begin(examples)) != 1.0:
            loss = loss * factor
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        self.end()

    def begin(self, examples: int) -> float:
        """Prepare for the gradients of another batch; return the factor of its mean loss."""
        if not self._sizes:
            self._clear()
        self._sizes.append(max(1, examples))
        return self._sizes[-1] / self._sizes[0]

    def end(self) -> None:
        """Make the step if the gradients of its last batch are there."""
        if len(self._sizes) == self.accumulate:
            self.step()

    def step(self) -> None:
        """Make one step along the mean gradient of the batches since the last one; none without batches."""
        if not self._sizes:
            return
        if self._combine is not None and len(self._sizes) < self.accumulate:
            self._combine(list(self.trained.values()))
        if len(self._sizes) > 1:
            held = [parameter.grad for parameter in self.trained.values() if parameter.grad is not None]
            torch._foreach_div_(held, sum(self._sizes) / self._sizes[0])
        self._sizes = []
        if self.optimizer is None:
            self._plain()
        else:
            self._optimized(self.optimizer)

    def _clear(self) -> None:
        """Discard the gradients of the step before."""
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)
        for parameter in self.trained.values():
            parameter.grad = None

    def _plain(self) -> None:
        parameters = list(self.trained.values())
        gradients: Sequence[Tensor | None] = taken_gradients(parameters)
        if self.corrector is not None:
            gradients = self.corrector.corrected(gradients)
        self._clip(gradients)
        descend(parameters, gradients, self.lr)

    def _clip(self, gradients: Iterable[Tensor | None]) -> None:
        if self.clip_norm is not None:
            found = [gradient for gradient in gradients if gradient is not None]
            total = self.total_norm(found)
            scale = (self.clip_norm / (total + CLIP_EPSILON)).clamp(max=1.0)
            torch._foreach_mul_(found, scale)

    def _optimized(self, optimizer: Optimizer) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
        if self.corrector is not None:
            correct_in_place(self.weights, self.corrector)
        self._clip(parameter.grad for parameter in self.trained.values())
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()


class KeptOptimizer:
    """An optimizer that lives across tasks if `lasts`. Each task sets its learning rate; groups keep their ratios."""

    def __init__(self) -> None:
        self.lasts = False
        self._optimizer: Optimizer | None = None
        self._parameters: Mapping[str, nn.Parameter] = {}
        self._factors: list[float] = []
        self._state: Tree | None = None  # for the optimizer that is made next
        self._is_saved = False  # True if `save` will be called after the task

    def take(self, make: OptimizerOf, parameters: Mapping[str, nn.Parameter], lr: float) -> Optimizer:
        """Return the kept optimizer with this learning rate, or a new one with the loaded state."""
        if self._optimizer is None:
            self._optimizer, self._parameters = make(list(parameters.values()), lr), parameters
            self._factors = [float(group["lr"]) / lr if lr else 1.0 for group in self._optimizer.param_groups]
            if self._state is not None:
                restore_optimizer(self._optimizer, parameters, self._state)
        for group, factor in zip(self._optimizer.param_groups, self._factors, strict=True):
            group["lr"] = lr * factor
        return self._optimizer

    def load(self, state: Tree | None) -> None:
        """Discard the optimizer; the next one begins with this state, and is there until `save` or another `load`."""
        self.forget()
        self._state, self._is_saved = state, True

    def save(self) -> Tree:
        """Return the optimizer's state; an empty tree without one."""
        found = {} if self._optimizer is None else optimizer_tensors(self._optimizer, self._parameters)
        self._is_saved = False
        self.end_task()
        return pack(Layout.of((name, NAME_OF[one.dtype], tuple(one.shape)) for name, one in found.items()), found)

    def end_task(self) -> None:
        """Discard the optimizer, unless it lives on: its moments may be as large as the model."""
        if not self.lasts and not self._is_saved:
            self.forget()

    def forget(self) -> None:
        """Discard the optimizer, whose state is incomplete or on another device."""
        self._optimizer, self._parameters, self._state, self._is_saved = None, {}, None, False


def optimizer_tensors(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return an optimizer's state as tensors by "CLASS/KEY/PARAMETER". Raises `InvalidJob` if other things are in
    it."""
    kind, found = type(optimizer).__name__, {}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is None:
                continue
            if not isinstance(value, Tensor) or value.dtype not in NAME_OF:
                text = f"{kind} keeps {key} for each parameter, and only tensors can be kept from round to round"
                raise InvalidJob(text, code="learner.optimizer", hint="use AdamW, Adam, or SGD with momentum")
            found[f"{kind}/{key}/{name}"] = whole(value)
    return found


def restore_optimizer(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], state: Tree) -> None:
    """Set the state of a new optimizer. Raises `InvalidJob` for that of another class or of other parameters."""
    kind, tensors = type(optimizer).__name__, empty_tensors(state.layout)
    unpack(state, tensors)
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = {id(parameter): number for number, parameter in enumerate(held)}
    entries: dict[int, dict[str, Tensor]] = {}
    for path, tensor in tensors.items():
        owner, key, name = path.split("/", 2)
        if owner != kind or name not in parameters:
            text = f"this node keeps the state of {owner} for {name}, which the learner's {kind} cannot take"
            hint = "start the learner with the model and the optimizer that it had, or join with a new data folder"
            raise InvalidJob(text, code="learner.optimizer", hint=hint)
        parameter = parameters[name]
        entries.setdefault(numbers[id(parameter)], {})[key] = shard_like(tensor, parameter)
    optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})
