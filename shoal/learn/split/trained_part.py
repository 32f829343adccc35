"""One side's modules and their optimizer, as slots and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import InvalidPayload, LearnerFailed
from shoal.core.model.tree import Layout, Slots, Tree, same_layout
from shoal.learn.training.descent import OptimizerOf, descend, taken_gradients
from shoal.learn.training.weights import NAME_OF, TORCH_DTYPES, pack, saved_tensors, unpack

MODEL, OPTIMIZER = "model", "optimizer"


class TrainedPart:
    """Modules that train together. Tensors have their names in the whole model; buffers of floats are statistics.

    Plain SGD needs no optimizer of torch, whose first one imports much of torch.
    """

    def __init__(self, modules: Sequence[nn.Sequential], optimizer: OptimizerOf, lr: float) -> None:
        self.modules = tuple(modules)
        self._tensors = {name: one for module in modules for name, one in saved_tensors(module).items()}
        self.layout = layout_of(self._tensors, statistics=True)
        self._trained = {n: one for module in modules for n, one in module.named_parameters() if one.requires_grad}
        self._lr = lr
        self._optimizer = None if optimizer is torch.optim.SGD else optimizer(list(self._trained.values()), lr)
        for module in self.modules:
            module.train()

    def step(self) -> None:
        """Move the parameters along the gradients that they hold."""
        if self._optimizer is not None:
            self._optimizer.step()
        else:
            parameters = list(self._trained.values())
            descend(parameters, taken_gradients(parameters), self._lr)

    def clear(self) -> None:
        """Discard all gradients."""
        taken_gradients(list(self._trained.values()))

    def save(self) -> Slots:
        """Return a copy of the tensors, and of the optimizer's state if it has any."""
        state = self._optimizer_state()
        slots: Slots = {MODEL: pack(self.layout, self._tensors)}
        return slots | ({OPTIMIZER: tree_of(state)} if state else {})

    def _optimizer_state(self) -> dict[str, Tensor]:
        """Return the optimizer's tensors. Raises `LearnerFailed` if it keeps something else."""
        if self._optimizer is None:
            return {}
        state = {
            f"{name}/{key}": value
            for name, parameter in self._trained.items()
            for key, value in self._optimizer.state.get(parameter, {}).items()
            if value is not None
        }
        for name, value in state.items():
            if not isinstance(value, Tensor):
                text = f"{type(self._optimizer).__name__} keeps {name}, which is not a tensor"
                raise LearnerFailed(text, code="split.optimizer", hint="use another optimizer, such as SGD or Adam")
        return state

    def load(self, slots: Slots) -> None:
        """Load what `save` returned. Raises `InvalidPayload` for another layout."""
        model, state = tree_slot(slots, MODEL), slots.get(OPTIMIZER)
        same_layout(self.layout, model.layout)
        unpack(model, self._tensors)
        if self._optimizer is None:
            return
        self._optimizer.state.clear()
        for name, value in tensors_of(state).items() if isinstance(state, Tree) else ():
            owner, _, key = name.rpartition("/")
            if owner not in self._trained:
                raise InvalidPayload(f"the optimizer's state of {owner[:80]}, which is not a parameter")
            self._optimizer.state[self._trained[owner]][key] = value


def layout_of(tensors: dict[str, Tensor], *, statistics: bool = False) -> Layout:
    """Return the layout of tensors; with `statistics`, buffers of floats are statistics."""
    measured = [
        name
        for name, one in tensors.items()
        if statistics and one.is_floating_point() and not isinstance(one, nn.Parameter)
    ]
    return Layout.of(((n, NAME_OF[one.dtype], tuple(one.shape)) for n, one in tensors.items()), "", measured)


def tree_of(tensors: dict[str, Tensor]) -> Tree:
    """Return a tree of copies of tensors."""
    return pack(layout_of(tensors), tensors)


def tensors_of(tree: Tree) -> dict[str, Tensor]:
    """Return copies of a tree's tensors."""
    found = {one.name: torch.empty(one.shape, dtype=TORCH_DTYPES[one.dtype]) for one in tree.layout.leaves}
    unpack(tree, found)
    return found
