"""Roles of a module's tensors: which ones nodes exchange, and which stay on each node.

Those that stay are of two kinds. The base model is never trained and the same on every node; its digest stands in the
layout of the exchanged tensors, so that models of different bases cannot be mixed. Local tensors are trained, and each
node has its own.

Statistics of BatchNorm are exchanged, unless the layer's own parameters are all frozen: then they belong to the base
model, and the layer stays in evaluation mode. All other buffers count as constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from shoal.core.errors import InvalidJob
from shoal.learn.training.weights import TensorRoles, base_digest, norm_tensors, saved_tensors, unwrapped

Travels = Literal["trainable", "all"] | Callable[[str, Tensor], bool]
"""The tensors that nodes exchange: the trained ones, all, or those for which a function of name and tensor is true."""


def tensor_roles(module: nn.Module, travels: Travels | None, *, local_norms: bool = False) -> TensorRoles:
    """Return the roles of a module's tensors. `travels` None: "trainable" if a parameter is frozen, else "all".

    `local_norms`: BatchNorm stays on each node (FedBN). Raises `InvalidJob` for another `travels`.
    """
    module = unwrapped(module)
    chosen = _chosen(module, travels)
    tensors, trained = saved_tensors(module), _trained(module)
    statistics, frozen = _statistics(module)
    moving = trained | statistics
    staying = {name for name, tensor in tensors.items() if not _is_exchanged(chosen, name, tensor, moving)}
    base = frozenset(staying - moving)
    local = frozenset(staying - base) | (norm_tensors(module) - base if local_norms else frozenset())
    norms = tuple(name for name, parts in frozen.items() if parts <= base)
    return TensorRoles(base, local, base_digest(module, base) if base else "", norms)


def _chosen(module: nn.Module, travels: Travels | None) -> Travels:
    if travels is None:
        return "all" if all(p.requires_grad for p in module.parameters()) else "trainable"
    if travels in ("trainable", "all") or callable(travels):
        return travels
    hint = 'use "trainable", "all", or a function of name and tensor'
    raise InvalidJob(f"travels is {travels!r}", code="learner.travels", hint=hint)


def _is_exchanged(chosen: Travels, name: str, tensor: Tensor, moving: Iterable[str]) -> bool:
    if callable(chosen):
        return bool(chosen(name, tensor))
    return chosen == "all" or name in moving


def _trained(module: nn.Module) -> set[str]:
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


def _statistics(module: nn.Module) -> tuple[set[str], dict[str, set[str]]]:
    """Return the statistics that training moves, and all tensors of the frozen layers by the layers' names."""
    moving: set[str] = set()
    frozen: dict[str, set[str]] = {}
    for prefix, part in module.named_modules():
        if isinstance(part, _NormBase):
            own = list(part.parameters(recurse=False))
            names = {f"{prefix}.{name}" if prefix else name for name in dict(part.named_buffers(recurse=False))}
            if own and not any(parameter.requires_grad for parameter in own):
                frozen[prefix] = names
            else:
                moving |= names
    return moving, frozen
