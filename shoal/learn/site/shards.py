"""Tensors of which each rank of a site has a shard: torch's `DTensor`, whose import takes seconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def local(tensor: Any) -> Tensor:
    """Return the numbers that this rank has of a tensor; a change of them changes the tensor."""
    found: Tensor = tensor.detach()
    return found.to_local() if hasattr(found, "to_local") else found


def whole(tensor: Any) -> Tensor:
    """Return a tensor with the shards of all ranks, which all call this."""
    found: Tensor = tensor.detach()
    return found.full_tensor() if hasattr(found, "full_tensor") else found


def copy_shard(source: Tensor, target: Any) -> None:
    """Copy this rank's shard of a tensor; all of it if the target is whole."""
    for dimension, placement in enumerate(getattr(target, "placements", ())):
        if placement.is_shard():
            pieces = source.chunk(target.device_mesh.size(dimension), placement.dim)
            number = target.device_mesh.get_local_rank(dimension)
            source = pieces[number] if number < len(pieces) else source.narrow(placement.dim, 0, 0)
    local(target).copy_(source)


def shard_like(source: Tensor, tensor: Tensor) -> Tensor:
    """Return the same numbers divided as a tensor of the same shape is."""
    if not hasattr(tensor, "placements") or source.shape != tensor.shape:
        return source
    made = torch.empty_like(tensor.detach(), dtype=source.dtype)
    copy_shard(source, made)
    return made


def bytes_here(tensors: Iterable[Any]) -> int:
    """Return the bytes that this rank has of tensors."""
    return sum(local(one).nbytes for one in tensors if isinstance(one, Tensor))


def memory_here(module: nn.Module, optimizer: Optimizer | None) -> tuple[int, int, int]:
    """Return the bytes that this rank has of weights and buffers, of gradients, and of the optimizer's state."""
    parameters = list(module.parameters())
    state = () if optimizer is None else optimizer.state.values()
    return (
        bytes_here([*parameters, *module.buffers()]),
        bytes_here(one for one in parameters if one.requires_grad),
        bytes_here(one for each in state for one in each.values()),
    )
