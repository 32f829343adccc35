"""A module that takes a row of stacked tensors as its own parameters and buffers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from shoal.core.errors import LearnerFailed


class RowModule:
    """The module of a learner, whose tensors named in `rows` are stacked, `[row, …]`.

    For one row the module itself is faster than `functional_call`. Its other buffers, and the numbers and texts among
    its attributes, are the same for all rows, so that training must not change them.
    """

    def __init__(self, module: nn.Module, rows: Mapping[str, Tensor]) -> None:
        self.module, self._rows = module, rows
        buffers = dict(module.named_buffers())
        self._own = {name: one for name, one in [*module.named_parameters(), *buffers.items()] if name in rows}
        self._kept = {name: tensor.data for name, tensor in self._own.items()}
        self.buffers = {name: rows[name] for name in buffers if name in rows}
        """The stacked buffers."""
        self._common = {name: (one, one.clone()) for name, one in buffers.items() if name not in rows}
        self._plain = [(part, _plain_attributes(part)) for part in module.modules()]

    def take(self, row: int) -> None:
        """Let the module have the tensors of a row."""
        for name, tensor in self._own.items():
            tensor.data = self._rows[name][row]

    def keep_buffers(self, row: int) -> None:
        """Keep the buffers that the module has replaced, instead of changing them in place, since it took the row."""
        for name in self.buffers:
            present = self.module.get_buffer(name)
            if present is not self._own[name]:
                self.put_buffers(slice(row, row + 1), {name: present.unsqueeze(0)})
                self._set(name, self._own[name])

    def chosen_buffers(self, rows: slice | Tensor) -> dict[str, Tensor]:
        """Return copies of the buffers of some rows, without gaps: the batched form of `batch_norm` changes a copy of
        its running statistics otherwise."""
        return {name: one[rows].clone(memory_format=torch.contiguous_format) for name, one in self.buffers.items()}

    def put_buffers(self, rows: slice | Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Store the buffers of some rows. Raises `LearnerFailed` if they have another type or shape now."""
        for name, tensor in buffers.items():
            stacked = self.buffers[name]
            if tensor.dtype != stacked.dtype or tensor.shape[1:] != stacked.shape[1:]:
                raise LearnerFailed(f"training has changed the type or shape of {name}", code="learner.model")
            stacked[rows] = tensor

    def _set(self, name: str, tensor: Tensor) -> None:
        prefix, _, key = name.rpartition(".")
        setattr(self.module.get_submodule(prefix), key, tensor)

    def restore(self) -> str:
        """Give the module its own tensors back; return what has changed though all rows share it, or ""."""
        for name, tensor in self._own.items():
            tensor.data = self._kept[name]
        changed = ""
        for name, (tensor, before) in self._common.items():
            if self.module.get_buffer(name) is not tensor or not torch.equal(tensor, before):
                changed = f"the buffer {name}"
                tensor.copy_(before)
                self._set(name, tensor)
        for part, plain in self._plain:
            for name, value in plain.items():
                if vars(part).get(name) != value:
                    changed = f"the attribute {name}"
                    setattr(part, name, value)
        return changed


def _plain_attributes(part: nn.Module) -> dict[str, int | float | str]:
    return {name: value for name, value in vars(part).items() if isinstance(value, int | float | str)}


def is_tied(module: nn.Module) -> bool:
    """Return True if a tensor of the module has several names: torch looks for them at each call unless it is told."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return len({id(tensor) for _, tensor in named}) < len(named)
