"""A torch module as the model of a loop, with the same tensors and random numbers as a `TorchLearner`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.algorithm.learner import Progress, TrainConfig
from shoal.core.errors import InvalidJob, InvalidPayload
from shoal.core.model.model_form import base_name
from shoal.core.model.tree import Layout, Tree
from shoal.learn.data.batches import BatchOptions, source_of
from shoal.learn.data.passes import training_batches
from shoal.learn.seeds import generator_of, seeded
from shoal.learn.training.tensor_roles import Travels, tensor_roles
from shoal.learn.training.weights import (
    NAME_OF,
    Weights,
    base_digest,
    check_tensors,
    norm_tensors,
    pack,
    saved_tensors,
    unpack,
)
from shoal.learn.user_errors import user_code
from shoal.loop.loop_model import different, lacking


class ModuleModel:
    """The exchanged tensors of a module: see `shoal.learn.training.tensor_roles`."""

    def __init__(self, module: Any, travels: Travels | None = None) -> None:
        if not isinstance(module, nn.Module):
            text = f"the model of a loop is {type(module).__name__}, and not a torch module"
            raise InvalidJob(text, code="learner.model", hint="give the module, not its function or its class")
        check_tensors(module)
        with user_code("choosing the tensors that travel"):
            roles = tensor_roles(module, travels)
        self._module, self._weights = module, Weights(module, roles)
        self._weights.check_trainable()

    @property
    def layout(self) -> Layout:
        return self._weights.layout

    @property
    def device(self) -> str:
        return str(self._device)

    @property
    def _device(self) -> torch.device:
        return next(iter(self._weights.tensors().values())).device

    def initial(self) -> Tree:
        return self._weights.save()

    @contextmanager
    def training(self, model: Tree, kept: Any, seed: int) -> Iterator[None]:
        self._weights.load(model)
        self._weights.restore_local(kept or {})
        self._module.zero_grad(set_to_none=True)
        self._weights.enter_training_mode()
        with seeded(seed, self._device):
            yield

    @contextmanager
    def evaluating(self, model: Tree) -> Iterator[Any]:
        self._weights.load(model)
        self._module.eval()
        with seeded(0, self._device), torch.no_grad():
            yield self._module

    def pack(self, model: Any) -> Tree:
        """Return the weights of a module or a state dict, or of the loop's own module. Raises `InvalidPayload` if they
        are not the job's, `LearnerFailed` if training has changed unexchanged tensors."""
        if model is None or model is self._module:
            self._weights.check_constants()
            return self._weights.save()
        if not isinstance(model, nn.Module | Mapping):
            hint = "report the module that was trained, or its state_dict()"
            raise InvalidPayload(f"the reported model is {type(model).__name__}", code="payload.layout", hint=hint)
        tensors = self._checked(saved_tensors(model) if isinstance(model, nn.Module) else model)
        if isinstance(model, nn.Module):
            self._check_base(model)
        return pack(self.layout, tensors)

    def _check_base(self, module: nn.Module) -> None:
        roles = self._weights.roles
        if roles.base and base_digest(module, roles.base & saved_tensors(module).keys()) != roles.base_model:
            hint = "report the model that node.tasks(model) was given, or one with the same frozen tensors"
            text = f"the reported model's frozen tensors are not those of {base_name(roles.base_model)}"
            raise InvalidPayload(text, code="payload.base-model", hint=hint)

    def _checked(self, found: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the exchanged tensors among these."""
        if missing := [leaf.name for leaf in self.layout.leaves if leaf.name not in found]:
            raise lacking(missing)
        tensors = {leaf.name: torch.as_tensor(found[leaf.name]).detach() for leaf in self.layout.leaves}
        for leaf in self.layout.leaves:
            tensor = tensors[leaf.name]
            shown = f"{NAME_OF.get(tensor.dtype, tensor.dtype)}{list(tensor.shape)}"
            if shown != leaf.shown:
                raise different(self.layout, leaf.name, shown)
        return tensors

    def local(self) -> dict[str, Tensor]:
        return self._weights.local()

    def state_dict(self, model: Tree) -> dict[str, Any]:
        """Return the module's whole `state_dict` with the tensors of a model; shared ones under all of their names."""
        received = {name: torch.empty_like(one, device="cpu") for name, one in self._weights.tensors().items()}
        unpack(model, received)
        first = {id(tensor): name for name, tensor in saved_tensors(self._module).items()}
        state = self._module.state_dict(keep_vars=True)
        return {
            key: received[name] if (name := first[id(tensor)]) in received else tensor.detach().clone()
            for key, tensor in state.items()
        }

    def batches(self, data: Any, config: TrainConfig, progress: Progress) -> Iterator[tuple[Any, float]]:
        """Yield the batches that a `TorchLearner` trains on."""
        merge = bool(norm_tensors(self._module))
        options = BatchOptions(self._device, merge_small=merge)
        for batch, fraction in training_batches(source_of(data, options), config, generator_of(config.seed), progress):
            yield batch.data, fraction
