"""Conversion between a torch module and a tree, with one copy in each direction.

A tree has the module's parameters and persistent buffers (its `state_dict`); buffers of floats are statistics. A
tensor that several modules share travels once, under the first of its names; because weights are copied into the
tensors that are there, loading keeps the tie. Whole-number buffers travel as values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from shoal.core.errors import InvalidJob, InvalidPayload, LearnerFailed
from shoal.core.model.model_form import base_name
from shoal.core.model.tree import Bytes, Layout, Tree, same_layout

TORCH_DTYPES: dict[str, torch.dtype] = {
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMED_MAX = 5
"""Maximum number of missing tensors that an error names."""

_PARTS, _PARAMETERS, _BUFFERS = map(attrgetter, ("_modules", "_parameters", "_buffers"))  # torch has no public names
_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)

Module = TypeVar("Module", bound=nn.Module)

NAME_OF = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def built(factory: Callable[[], nn.Module], *, calls_training_step: bool = False) -> nn.Module:
    """Return the module of the user's factory. Raises `InvalidJob` if it cannot be averaged, or trains itself where
    that is not called."""
    if isinstance(factory, nn.Module):
        raise InvalidJob(
            "the model is a module; give a function that makes one",
            code="learner.model",
            hint=f"write model=lambda: {type(factory).__name__}(…), so that each seed gives fresh weights",
        )
    module = factory()
    if not isinstance(module, nn.Module):
        raise InvalidJob(f"the model function gave {type(module).__name__}, not a torch module", code="learner.model")
    if not calls_training_step and callable(getattr(module, "training_step", None)):
        kind = type(module).__name__
        raise InvalidJob(
            f"{kind} has a training_step, which is not called here: TorchLearner trains forward with its own loss and "
            "optimizer",
            code="learner.model",
            hint="use shoal.learn.lightning.LightningLearner for a LightningModule; or give the network inside it "
            f"(model=lambda: {kind}(…).net), and what training_step and configure_optimizers do as loss=… and "
            "optimizer=…",
        )
    check_tensors(module)
    return module


def check_tensors(module: nn.Module) -> None:
    """Raise `InvalidJob` if a tensor of the module cannot be averaged."""
    for name, what, hint in _faults(module):
        raise InvalidJob(f"the model's {name} {what}", code="learner.model", hint=hint)


def _faults(module: nn.Module) -> Iterator[tuple[str, str, str]]:
    """Yield (name, fault, remedy) for each tensor that cannot be shared."""
    for name, part in module.named_modules():
        if parametrize.is_parametrized(part):
            why = "is parametrized: the mean of its coordinates is not the mean of its weights"
            yield name or type(part).__name__, why, "use torch.nn.utils.parametrize.remove_parametrizations"
    for name, tensor in _state(module).items():
        if is_lazy(tensor):
            yield name, "has no shape yet (a lazy module)", "run one batch through the module in the model function"
        elif tensor.is_meta:
            yield name, "is on the meta device and holds no numbers", "build the module on the CPU"
        elif tensor.layout is not torch.strided or tensor.dtype not in NAME_OF:
            types = ", ".join(str(dtype).removeprefix("torch.") for dtype in NAME_OF)
            yield name, f"is {tensor.dtype}, {tensor.layout}: such tensors cannot be sent", f"use dense {types}"
        elif _overlaps(tensor):
            yield name, "is a view whose numbers share memory (expand)", "make it of its own memory: .clone()"
    for name in module.state_dict():
        if name.endswith("_extra_state"):
            yield name, "is not a tensor (get_extra_state)", "register it as a buffer"


def _overlaps(tensor: Tensor) -> bool:
    """Return whether several numbers of a strided tensor are one in memory."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return span < tensor.numel()


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside `torch.compile` and `DataParallel`, whose prefixes are not part of a tensor's name."""
    while True:
        inner = module.module if isinstance(module, _PARALLEL) else getattr(module, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def _state(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers, each once under its first name."""
    plain = unwrapped(module)
    return dict([*plain.named_parameters(), *plain.named_buffers()])


def _tensor(module: nn.Module, parts: Sequence[str], name: str) -> Tensor | None:
    """Return a parameter or buffer by the names of the parts that lead to it and its own, in a fraction of the time in
    which torch finds it; None if it is there no more."""
    try:
        for part in parts:
            module = _PARTS(module)[part]
        own: Mapping[str, Tensor] = _PARAMETERS(module)
        return own[name] if name in own else _BUFFERS(module)[name]
    except (KeyError, AttributeError):  # a part may be None
        return None


def _is_statistic(tensor: Tensor) -> bool:
    """Return whether an exchanged tensor is measured and not optimized: a buffer of floats."""
    return not isinstance(tensor, nn.Parameter) and tensor.is_floating_point()


def norm_tensors(module: nn.Module) -> frozenset[str]:
    """Return the names of all parameters and buffers of BatchNorm modules."""
    return frozenset(
        f"{prefix}.{name}" if prefix else name
        for prefix, part in unwrapped(module).named_modules()
        if isinstance(part, _BatchNorm)
        for name in _state(part)
    )


def saved_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and persistent buffers, each once under its first name."""
    saved = set(unwrapped(module).state_dict().keys())
    return {name: tensor for name, tensor in _state(module).items() if name in saved}


def base_digest(module: nn.Module, names: Iterable[str]) -> str:
    """Return the SHA-256 of the safetensors file with these tensors of a module. Copies one tensor at a time."""
    layout, tensors = base_tensors(module, names)
    sha = hashlib.sha256(layout.header)
    for leaf in layout.leaves:
        if leaf.elements:
            flat = tensors[leaf.name].cpu().contiguous().reshape(-1)
            sha.update(flat.view(torch.uint8).numpy().data)
    return sha.hexdigest()


def base_tensors(module: nn.Module, names: Iterable[str]) -> tuple[Layout, dict[str, Tensor]]:
    """Return these tensors of a module, and the layout of a file of them."""
    wanted = set(names)
    found = {name: one.detach() for name, one in saved_tensors(module).items() if name in wanted}
    return Layout.of((name, NAME_OF[one.dtype], tuple(one.shape)) for name, one in found.items()), found


@dataclass(frozen=True)
class TensorRoles:
    """The names of tensors that stay on a node."""

    base: frozenset[str] = frozenset()
    local: frozenset[str] = frozenset()
    base_model: str = ""
    """SHA-256 of the base model as a safetensors file; empty without one."""
    frozen_norms: tuple[str, ...] = ()
    """Layers of BatchNorm that belong to the base model."""


class Weights:
    """The exchanged tensors of a module: `layout`, and copies to and from a tree."""

    def __init__(self, module: nn.Module, roles: TensorRoles = TensorRoles()) -> None:
        self._module, self.roles = unwrapped(module), roles
        state = saved_tensors(module)
        self._all = frozenset(self._module.state_dict())
        names = state.keys() - roles.local - roles.base
        self._local = state.keys() & roles.local
        self._constants = {name: one.clone() for name, one in module.named_buffers() if name in roles.base}
        self.layout = Layout.of(
            ((name, NAME_OF[state[name].dtype], tuple(state[name].shape)) for name in sorted(names)),
            roles.base_model,
            (name for name in names if _is_statistic(state[name])),
        )
        self._places = [(leaf, leaf.name.split(".")[:-1], leaf.name.split(".")[-1]) for leaf in self.layout.leaves]

    def check_trainable(self) -> None:
        """Raise `InvalidJob` if nothing can be trained, or nothing is exchanged."""
        if not self.trainable():
            raise InvalidJob("the model has no parameter that can be trained", code="learner.model")
        if not self.layout.leaves:
            raise InvalidJob("no tensor of the model travels, so there is nothing to average", code="learner.travels")

    def check_complete(self) -> None:
        """Raise `LearnerFailed` if the module has tensors that it did not have when it was made."""
        if added := sorted(self._module.state_dict(keep_vars=True).keys() - self._all):
            raise LearnerFailed(
                f"training has added {', '.join(added[:NAMED_MAX])} to the model, which no other node would get",
                code="learner.model",
                hint="create all layers in the model function, or run one batch through the module there",
            )

    def tensors(self) -> dict[str, Tensor]:
        """Return the shared tensors; a module may replace its buffers."""
        found: dict[str, Tensor] = {}
        for leaf, parts, name in self._places:
            tensor = _tensor(self._module, parts, name)
            if tensor is None or tensor.shape != leaf.shape or NAME_OF.get(tensor.dtype) != leaf.dtype:
                raise LearnerFailed(
                    f"{leaf.name} was {leaf.dtype}{list(leaf.shape)} when the model was built and has changed since",
                    code="learner.model",
                    hint="tensors that travel keep their shape and type; register others with persistent=False",
                )
            found[leaf.name] = tensor.detach()
        return found

    def buffers(self) -> dict[str, Tensor]:
        """Return the shared tensors that are not parameters."""
        parameters = {name for name, _ in self._module.named_parameters()}
        return {name: tensor for name, tensor in self.tensors().items() if name not in parameters}

    def local(self) -> dict[str, Tensor]:
        """Return copies of the tensors that stay on this node."""
        if not self._local:
            return {}
        return {name: tensor.detach().clone() for name, tensor in _state(self._module).items() if name in self._local}

    def restore_local(self, kept: Mapping[str, Tensor]) -> None:
        """Restore such copies."""
        for name, tensor in _state(self._module).items():
            if name in kept:
                tensor.detach().copy_(kept[name])

    def enter_training_mode(self) -> None:
        """Set the module to training mode, except the frozen layers of BatchNorm."""
        self._module.train()
        self.freeze_norms()

    def freeze_norms(self) -> None:
        """Set the frozen layers of BatchNorm to evaluation mode."""
        for name in self.roles.frozen_norms:
            self._module.get_submodule(name).eval()

    def check_constants(self) -> None:
        """Raise `LearnerFailed` if a buffer of the base model has changed."""
        for name, tensor in self._module.named_buffers() if self._constants else ():
            if name in self._constants and not torch.equal(tensor.cpu(), self._constants[name].cpu()):
                raise LearnerFailed(
                    f"training has changed the buffer {name}, which is not exchanged",
                    code="learner.travels",
                    hint='exchange it: travels="all", or a function that is true for it',
                )

    def base(self) -> Tree:
        """Return a copy of the base model: the tensors that all nodes hold alike and do not exchange."""
        return pack(*base_tensors(self._module, self.roles.base))

    def rebased(self, base: Tree) -> Weights:
        """Copy another base model into the module; return the module's weights with it.

        Raises `InvalidPayload` when its tensors are not those of the present base model, which then stays.
        """
        layout, tensors = base_tensors(self._module, self.roles.base)
        same_layout(layout, base.layout)
        unpack(base, tensors)
        roles = replace(self.roles, base_model=base_digest(self._module, self.roles.base))
        return Weights(self._module, roles)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters, including those that stay on this node."""
        return {name: p for name, p in self._module.named_parameters() if p.requires_grad}

    def load(self, tree: Tree) -> None:
        """Copy a tree into the module. Raises `InvalidPayload` when the layout differs."""
        same_layout(self.layout, tree.layout)
        unpack(tree, self.tensors())

    def save(self) -> Tree:
        """Return a copy of the module's weights."""
        return pack(self.layout, self.tensors())


@dataclass(frozen=True)
class ModuleTraits:
    """Facts about the modules of a model function, which are the same for all of them."""

    roles: TensorRoles
    layout: Layout
    has_hooks: bool
    """True if something is called with a parameter's gradient."""
    buffers: Hashable
    """The bytes of the buffers that each node has for itself, which do not travel with the model."""

    @classmethod
    def of(cls, module: nn.Module, weights: Weights) -> ModuleTraits:
        """Return the traits of a module with these weights."""
        known = weights.layout.index.keys() | weights.roles.base
        buffers = [(name, one) for name, one in unwrapped(module).named_buffers() if name not in known]
        own = tuple((name, one.cpu().reshape(-1).view(torch.uint8).numpy().tobytes()) for name, one in buffers)
        hooked = any(map(has_hooks, weights.trainable().values()))
        return cls(weights.roles, weights.layout, hooked, own)


def has_hooks(parameter: Tensor) -> bool:
    """Return whether something is called with a parameter's gradient; torch has no public name for it."""
    return any(getattr(parameter, name, None) for name in ("_backward_hooks", "_post_accumulate_grad_hooks"))


def load_into(module: Module, model: Tree, *, strict: bool = True) -> Module:
    """Copy a model's tensors into the module's, bit for bit, and return the module.

    Tensors that several of its parts share are loaded once. Those that the model lacks must be its base model's; with
    `strict=False` they may be any. Raises `InvalidPayload` that names what differs, `InvalidJob` for an object that is
    not a module.
    """
    given: object = module
    if not isinstance(given, nn.Module):
        kind = getattr(given, "__name__", type(given).__name__)
        hint = f"call it: {kind}()" if callable(given) else "give the torch module that the weights are for"
        raise InvalidJob(
            f"{kind} is not a torch module, so no weights can be loaded into it", code="learner.model", hint=hint
        )
    weights, base_model = Weights(module), model.layout.base_model
    lacking = [leaf for leaf in weights.layout.leaves if leaf.name not in model.layout.index]
    base = frozenset(leaf.name for leaf in lacking)
    if not strict or (base_model and base_digest(module, base) == base_model):
        weights = Weights(module, TensorRoles(base, base_model=base_model))
    elif base_model:
        text = f"the module's other tensors are not those of {base_name(base_model)}"
        hint = (
            "make the module with the function that the learner was given; strict=False loads the tensors all the same"
        )
        raise InvalidPayload(text, code="payload.base-model", hint=hint)
    elif lacking and len(lacking) < len(weights.layout.leaves):
        names = ", ".join(leaf.name for leaf in lacking[:NAMED_MAX])
        more = f" and {len(lacking) - NAMED_MAX} more" if len(lacking) > NAMED_MAX else ""
        hint = 'BatchNorm with batch_norm="local" stays with the nodes; strict=False loads the rest'
        raise InvalidPayload(f"the model lacks {names}{more}", code="payload.layout", hint=hint)
    try:
        same_layout(weights.layout.without_kinds, model.layout.without_kinds)
    except InvalidPayload as error:
        text = f"the model is not that of {type(module).__name__}: {error.message}"
        hint = "make the module with the function that the learner was given, in the same types"
        raise InvalidPayload(text, code=error.code, hint=hint) from None
    unpack(model, weights.tensors())
    return module


def pack(layout: Layout, tensors: Mapping[str, Tensor]) -> Tree:
    """Return a tree of a layout, copied from tensors of any device; missing tensors become zero."""
    away = next((tensor.device for tensor in tensors.values() if not tensor.is_cpu), None)
    if away is not None:
        return Tree(layout, packed_on(away, layout, tensors).cpu().numpy())
    missing = [leaf for leaf in layout.leaves if leaf.name not in tensors]
    buffer = np.zeros(layout.nbytes, np.uint8) if missing else np.empty(layout.nbytes, np.uint8)
    for leaf in layout.leaves:
        if leaf.name in tensors:
            tensor, dtype = tensors[leaf.name], TORCH_DTYPES[leaf.dtype]
            tensor = tensor if tensor.dtype is dtype else tensor.to(dtype)
            buffer[leaf.start : leaf.stop] = _bytes_of(tensor.contiguous())
    return Tree(layout, buffer)


def _bytes_of(tensor: Tensor) -> Bytes:
    """Return the bytes of a contiguous tensor of the CPU, as a view."""
    if tensor.dtype is torch.bfloat16:  # numpy lacks it
        tensor = tensor.view(torch.int16)
    return (tensor.detach() if tensor.requires_grad else tensor).numpy().reshape(-1).view(np.uint8)


def packed_on(device: torch.device, layout: Layout, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return a tree's bytes in one tensor on the device, `uint8[layout.nbytes]`, for a single transfer."""
    flat = torch.zeros(layout.nbytes, dtype=torch.uint8, device=device)
    views = _views(layout, flat)
    for name, tensor in tensors.items():
        views[name].copy_(tensor)
    return flat


def unpack(tree: Tree, tensors: Mapping[str, Tensor]) -> None:
    """Copy a tree into tensors of its shapes and types; tensors without a counterpart are skipped."""
    if all(tensor.is_cpu and tensor.is_contiguous() for tensor in tensors.values()):
        # Through numpy and bytes: it takes read-only trees and trees that are read piece by piece from a file.
        for leaf in tree.layout.leaves:
            if leaf.stop > leaf.start and leaf.name in tensors:
                _bytes_of(tensors[leaf.name])[:] = tree.block(leaf.start, leaf.stop)
        return
    device = next(iter(tensors.values())).device
    flat = torch.empty(tree.layout.nbytes, dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
    flat.numpy()[:] = tree.buffer
    views = _views(tree.layout, flat.to(device, non_blocking=True))
    for name, tensor in tensors.items():
        tensor.copy_(views[name])


def empty_tensors(layout: Layout) -> dict[str, Tensor]:
    """Return tensors for a tree to be unpacked into, on the CPU."""
    return {leaf.name: torch.empty(leaf.shape, dtype=TORCH_DTYPES[leaf.dtype]) for leaf in layout.leaves}


def _views(layout: Layout, flat: Tensor) -> dict[str, Tensor]:
    """Return each tensor of a layout as a view of its bytes; the widest types come first, so that all are aligned."""
    return {
        leaf.name: flat[leaf.start : leaf.stop].view(TORCH_DTYPES[leaf.dtype]).view(leaf.shape)
        for leaf in layout.leaves
    }
