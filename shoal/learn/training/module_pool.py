"""Modules of learners that are made for each task: one module serves them one after the other.

Learners whose models are made by the same recipe take a module when they first need it, and leave it to others when
they are gone. Each finds it as the model function made it; a module that cannot be restored serves no other learner.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, partial
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any
from weakref import finalize

import torch
from torch import Tensor, nn

from shoal.core.model.tree import Layout
from shoal.learn.training.devices import release
from shoal.learn.training.weights import ModuleTraits, Weights, has_hooks, norm_tensors

if TYPE_CHECKING:
    from shoal.learn.training.passes import ModelSite

POOLS_MAX = 8
"""Recipes whose modules are kept: those of the others are made each time."""

TENSORS = ("_parameters", "_buffers", "_modules")
"""Attributes of a module that hold its tensors and parts."""

PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
SAME = (type, FunctionType, BuiltinFunctionType)

MakeModule = Callable[[], tuple[nn.Module, Weights]]


def recipe(function: Any) -> Hashable:
    """Return a value that is equal for functions which do the same: of equal code over the same objects.

    A module without tensors and parts is what its class and its attributes say.
    """
    if isinstance(function, nn.Module) and not function.state_dict() and not list(function.children()):
        return type(function), tuple((name, Same(value)) for name, value in vars(function).items() if name[0] != "_")
    if isinstance(function, partial):
        named = tuple(sorted((name, Same(value)) for name, value in function.keywords.items()))
        return recipe(function.func), tuple(map(Same, function.args)), named
    if not isinstance(function, FunctionType):
        return Same(function)
    cells = tuple(Same(cell.cell_contents) for cell in function.__closure__ or ())
    usual = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    known = function.__globals__
    read = tuple(Same(known[name]) for name in function.__code__.co_names if name in known)
    return function.__code__, cells, tuple(map(Same, usual)), read, Same(known)


class Same:
    """An object, equal to itself and to equal numbers and texts alone. It is kept, so that no other takes its place."""

    def __init__(self, kept: Any) -> None:
        self._kept = kept
        self._key = kept if type(kept) in (str, int, float, bool, bytes, type(None)) else id(kept)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and (type(self._kept), self._key) == (type(other._kept), other._key)

    def __hash__(self) -> int:
        return hash(self._key)


class ModulePool:
    """The modules of one recipe. Raises the errors of the first one."""

    def __init__(self, make: MakeModule) -> None:
        self._make = make
        module, weights = make()
        self.traits, self.has_norms = ModuleTraits.of(module, weights), bool(norm_tensors(module))
        self._begin = _ModuleState(module)
        self._idle = [(module, weights)]

    def take(self, learner: object) -> tuple[nn.Module, Weights]:
        """Return a module for a learner alone, as long as it lives."""
        found = self._idle.pop() if self._idle else self._make()
        if not self._begin.restore(found[0]):
            found = self._make()
        finalize(learner, self._idle.append, found).atexit = False
        return found


class ModulePools:
    """The pools of a simulation's process."""

    def __init__(self) -> None:
        self._pools: dict[Hashable, ModulePool] = {}

    def of(self, recipe: Hashable, make: MakeModule) -> ModulePool:
        """Return the pool of a recipe."""
        pool = self._pools.pop(recipe, None) or ModulePool(make)
        self._pools[recipe] = pool  # as the newest
        if len(self._pools) > POOLS_MAX:
            del self._pools[next(iter(self._pools))]
        return pool


_POOLS: ContextVar[ModulePools | None] = ContextVar("pools", default=None)


@contextmanager
def shared_modules(pools: ModulePools) -> Iterator[None]:
    """Let the learners that are made in a block take their modules from pools."""
    token = _POOLS.set(pools)
    try:
        yield
    finally:
        _POOLS.reset(token)


class OwnModule:
    """The module of one learner and its weights: made at once or, with a pool, taken from there at their first use."""

    def __init__(self, recipe: Hashable, make: MakeModule) -> None:
        self.site: ModelSite | None = None  # the ranks that have parts of the module in a task
        pools = _POOLS.get()
        self._pool, self._device = pools.of(recipe, make) if pools is not None else None, torch.device("cpu")
        if self._pool is None:
            self.module, self.weights = self._taken = make()

    @cached_property
    def _taken(self) -> tuple[nn.Module, Weights]:
        assert self._pool is not None
        module, weights = self._pool.take(self)
        return module.to(self._device), weights

    @cached_property
    def module(self) -> nn.Module:
        """The module."""
        return self._taken[0]

    @cached_property
    def weights(self) -> Weights:
        """The exchanged tensors of the module."""
        return self._taken[1]

    def place(self, device: torch.device) -> None:
        """Move the module to a device, now or when it is taken."""
        self._device = device
        if "_taken" in vars(self):
            self.module.to(device)

    def free(self, device: torch.device) -> None:
        """Give back the memory of a task that has ended in any way."""
        if self.site is not None:
            self.site.free()
            device = self.site.device
        release(device)

    @property
    def traits(self) -> ModuleTraits:
        """The traits of the module."""
        if self._pool is not None and "_taken" not in vars(self):
            return self._pool.traits
        return ModuleTraits.of(self.module, self.weights)

    @property
    def layout(self) -> Layout:
        """The layout of the weights."""
        if self._pool is not None and "_taken" not in vars(self):
            return self._pool.traits.layout
        return self.weights.layout

    @property
    def has_norms(self) -> bool:
        """True if the module has BatchNorm."""
        return self._pool.has_norms if self._pool is not None else bool(norm_tensors(self.module))


class _ModuleState:
    """Tensors and plain attributes of a module's parts, as the model function made them."""

    def __init__(self, module: nn.Module) -> None:
        found = _tensors(module)
        self._tensors = {name: one.detach().clone() for name, one in found.items()}
        self._forms = [(name, _form(one)) for name, one in found.items()]
        parts = [(name, type(part), _attributes(part)) for name, part in module.named_modules()]
        self._parts = _copied(parts) if _is_plain(parts) else []

    def restore(self, module: nn.Module) -> bool:
        """Restore this state; return False if the module has changed in another way."""
        tensors = _tensors(module)
        for part, (_, _, before) in zip(module.modules(), self._parts, strict=False):
            part.training = before["training"]
        if not self._is_alike(module, tensors):
            return False
        for name, tensor in tensors.items():
            tensor.grad = None
            tensor.detach().copy_(self._tensors[name])
        return True

    def _is_alike(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> bool:
        """Return whether a module has this state but for the values of its tensors."""
        try:
            parts = [(name, type(part), _attributes(part)) for name, part in module.named_modules()]
            if parts != self._parts:
                return False
        except RuntimeError:  # a tensor has taken the place of a number
            return False
        forms = [(name, _form(one)) for name, one in tensors.items()]
        return forms == self._forms and not any(map(has_hooks, tensors.values()))


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict([*module.named_parameters(), *module.named_buffers()])


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return type(tensor), tensor.shape, tensor.dtype, tensor.requires_grad


def _attributes(part: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(part).items() if name not in TENSORS}


def _is_plain(value: Any) -> bool:
    """Return whether a value can be compared with a copy of its beginning."""
    if isinstance(value, Mapping):
        return all(_is_plain(one) for pair in value.items() for one in pair)
    if isinstance(value, tuple | list | set | frozenset):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN + SAME)


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(one) for name, one in value.items()}
    return type(value)(map(_copied, value)) if type(value) in (tuple, list, set, frozenset) else value
