"""The optimizer of several learners at once: torch's own, whose parameters are rows of stacked tensors.

The optimizers of `BY_NUMBER` move each number by its own gradients alone. Given the stacked tensors instead of a
learner's, they move each row as they would move it alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.learn.stacked.stacked_batches import Indices, Rows
from shoal.learn.training.descent import CLIP_EPSILON
from shoal.learn.training.torch_learner import TorchLearner
from shoal.learn.user_errors import user_code

BY_NUMBER = {
    torch.optim.SGD,
    torch.optim.Adadelta,
    torch.optim.Adam,
    torch.optim.Adamax,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
}

CHANGED = ("step", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
"""Attributes of an optimizer that have a value where something else is called at each step: a hook, or a scheduler."""


def why_not_stepped(learner: TorchLearner) -> str:
    """Return why this learner's steps cannot be made together with those of others; empty if they can."""
    config = learner.config
    if config.precision != "float32" or config.tf32 is not None or config.deterministic or config.compile:
        return "they set their precision or arithmetic, or compile the model"
    if config.callbacks:
        return "they have callbacks"
    if config.accumulate != 1:
        return "they accumulate the gradients of several batches"
    if learner.optimizer is torch.optim.SGD:
        return ""
    if config.keep_optimizer:
        return "they keep their optimizer from task to task"
    return _why_not_by_number(made_optimizer(learner, 1.0), learner.weights.trainable().values())


def _why_not_by_number(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> str:
    if type(optimizer) not in BY_NUMBER:
        return f"their optimizer, {type(optimizer).__name__}, may not move each number by itself"
    if any(vars(optimizer).get(name) for name in CHANGED):
        return "their optimizer has hooks or a scheduler"
    if not {id(p) for group in optimizer.param_groups for p in group["params"]} <= {id(p) for p in parameters}:
        return "their optimizer moves other tensors than the model's parameters"
    return ""


def made_optimizer(learner: TorchLearner, lr: float) -> Optimizer:
    """Return a new optimizer of the learner's parameters."""
    with user_code("making the optimizer"):
        return learner.optimizer(list(learner.weights.trainable().values()), lr)


class StackedOptimizer:
    """The state of an optimizer for each row of stacked parameters.

    State of a parameter's shape has rows. Other state, such as a count of steps, is the same for all rows that have
    made equally many steps, and only those are moved together.
    """

    def __init__(self, optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], rows: int) -> None:
        names = {id(p): name for name, p in parameters.items()}
        self._optimizer = optimizer
        self._groups = [(group, [names[id(p)] for p in group["params"]]) for group in optimizer.param_groups]
        self._made = np.zeros(rows, np.int64)
        self._numbers: dict[str, dict[Hashable, Tensor]] = {name: {} for name in parameters}
        self._others: dict[int, dict[str, dict[Hashable, Any]]] = {}

    def step(self, rows: Rows, values: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        """Move the values of some rows, `[n, …]`, in place. Values without a gradient stay."""
        chosen = np.atleast_1d(np.arange(len(self._made))[rows.cpu().numpy() if isinstance(rows, Tensor) else rows])
        made = self._made[chosen]
        if (made == made[0]).all():
            self._step(rows, int(made[0]), values, gradients)
        else:
            for count in np.unique(made):
                self._step_some(chosen, np.flatnonzero(made == count), int(count), values, gradients)
        self._made[chosen] += 1
        least = int(self._made.min())
        self._others = {count: state for count, state in self._others.items() if count >= least}

    def _step_some(
        self,
        rows: Indices,
        some: Indices,
        count: int,
        values: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
    ) -> None:
        """Move those of the rows that have made `count` steps, which `some` lists."""
        device = next(iter(values.values())).device
        places = torch.from_numpy(some).to(device)
        moved = {name: values[name][places] for name in gradients}
        own = {name: gradient[places] for name, gradient in gradients.items()}
        self._step(torch.from_numpy(rows[some]).to(device), count, moved, own)
        for name, tensor in moved.items():
            values[name][places] = tensor

    def _step(self, rows: Rows, count: int, values: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        """Move rows that have made `count` steps."""
        state = self._optimizer.state
        state.clear()
        given: dict[str, dict[Hashable, Any]] = {}
        for group, names in self._groups:
            group["params"] = [values[name] for name in names if name in gradients]
        for name, gradient in gradients.items():
            values[name].grad = gradient
            given[name] = self._given(name, rows, count)
            if given[name]:
                state[values[name]] = dict(given[name])
        self._optimizer.step()
        others = self._others.setdefault(count + 1, {})
        for name in gradients:
            others[name] = self._kept(name, rows, values[name], state.get(values[name], {}), given[name])
            values[name].grad = None
        state.clear()

    def _given(self, name: str, rows: Rows, count: int) -> dict[Hashable, Any]:
        """Return the state of a parameter's rows, as the optimizer has left it; empty before the first step."""
        others = self._others.get(count, {}).get(name, {})
        copies = {key: value.clone() if isinstance(value, Tensor) else value for key, value in others.items()}
        return copies | {key: tensor[rows] for key, tensor in self._numbers[name].items()} if count else {}

    def _kept(
        self, name: str, rows: Rows, value: Tensor, state: Mapping[Hashable, Any], given: Mapping[Hashable, Any]
    ) -> dict[Hashable, Any]:
        """Keep the state that has rows; return what else there is."""
        others = {}
        for key, entry in state.items():
            if not isinstance(entry, Tensor) or entry.shape != value.shape:
                others[key] = entry
                continue
            if key not in self._numbers[name]:
                self._numbers[name][key] = entry.new_zeros(len(self._made), *entry.shape[1:])
            if entry is not given.get(key) or isinstance(rows, Tensor):  # else it is a view, and up to date
                self._numbers[name][key][rows] = entry
        return others


def clipped(gradients: Mapping[str, Tensor], norm_max: float) -> dict[str, Tensor]:
    """Return each row's gradients, `[row, …]`, scaled to a norm of at most this, as `torch.nn.utils.clip_grad_norm_`
    does."""
    norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients.values()]).norm(dim=0)
    scales = (norm_max / (norms + CLIP_EPSILON)).clamp(max=1.0)
    return {name: gradient * scales.view(-1, *[1] * (gradient.ndim - 1)) for name, gradient in gradients.items()}
