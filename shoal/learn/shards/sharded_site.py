"""A model in shards at the ranks of a site: torch's `fully_shard`, and its tensor parallelism for dense layers.

Each rank has its rows of a batch and a shard of each parameter, gradient and optimizer's state on the device. Between
tasks each rank holds the whole model on the CPU; a task copies the shards from there, and back at its end.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shoal.core.algorithm.capability import Restriction
from shoal.core.protocol.message import Metrics
from shoal.learn.data.batches import Batch, split
from shoal.learn.data.passes import seed_of
from shoal.learn.seeds import seed_torch
from shoal.learn.shards.dense_layers import (
    EqualRows,
    Layers,
    average_gradients,
    check_layers,
    divide_layers,
    names_of,
)
from shoal.learn.shards.units import units_of
from shoal.learn.site.divided_module import DividedModule
from shoal.learn.site.shards import copy_shard, local, memory_here, whole
from shoal.learn.training.descent import Descent
from shoal.learn.training.measures import Evaluation, Loss
from shoal.learn.training.passes import Autocast, ModelSite, Passes, WholePasses, output_and_loss
from shoal.learn.training.weights import TensorRoles, Weights

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShardReport:
    """Measurements of one rank in a task."""

    weight_bytes: int
    """Bytes of its shards of weights, and of buffers, which it has whole."""
    gradient_bytes: int
    optimizer_bytes: int
    """Bytes of the optimizer's state."""
    peak_bytes: int
    """On a card, the most memory in use; 0 elsewhere."""
    bytes_sent: int
    """Bytes of parameters, gradients and activations that it sent to other ranks for the first batch."""


class SentBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of the bytes that this rank sends in torch's collectives, if each number takes the shortest way."""

    def __init__(self, ranks: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total, self._part = 0.0, (ranks - 1) / ranks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # it comes again as operations on its shards
        found = func(*args, **(kwargs or {}))
        name = func.name() if func.namespace in ("c10d", "_c10d_functional") else ""
        if any(kind in name for kind in ("gather", "reduce", "all_to_all", "alltoall")):
            whole = max(one.nbytes for one in tree_leaves((args, found)) if isinstance(one, Tensor))
            times = 2 if "reduce" in name and "scatter" not in name else 1
            self.total += times * self._part * whole  # a sum at all ranks is made in shards, which are then gathered
        return found


class ShardedModule(DividedModule):
    """A copy of a module whose parameters are in shards on the device; see `copy_shard`."""

    def __init__(
        self, source: nn.Module, units: Sequence[str], layers: Layers, device: torch.device, mesh: DeviceMesh
    ) -> None:
        tensors = [*source.parameters(), *source.buffers()]
        self._source = source
        super().__init__(copy.deepcopy(source, {id(one): _without_numbers(one) for one in tensors}))
        divided = divide_layers(self.module, layers, mesh)
        for name in (*units, ""):
            fully_shard(self.module.get_submodule(name), mesh=mesh, ignored_params=divided)
        self.module.to_empty(device=device)
        average_gradients(self.module, layers, mesh.size())
        self.rows = EqualRows(self.module) if layers else None
        self._freed: list[tuple[torch.UntypedStorage, int]] = []

    def load(self) -> None:
        """Copy this rank's shards of the source and its modes."""
        for storage, nbytes in self._freed:
            storage.resize_(nbytes)
        self._freed = []
        with torch.no_grad():
            for source, own in self._pairs():
                copy_shard(source.detach(), own)
        for one, copied in zip(self._source.modules(), self.module.modules(), strict=True):
            copied.training = one.training

    def save(self) -> None:
        """Copy trained parameters and buffers to the source, one at a time. All ranks call this."""
        self.module.zero_grad(set_to_none=True)
        with torch.no_grad():
            for source, own in self._pairs():
                if source.requires_grad or not isinstance(source, nn.Parameter):
                    source.copy_(whole(own))

    def free(self) -> None:
        """Free gradients, parameters that a pass has gathered, and the numbers of the shards, until `load`. The tensors
        remain, because a kept optimizer has them."""
        self.module.zero_grad(set_to_none=True)
        for one in self.module.modules():
            if isinstance(one, FSDPModule):
                one.reshard()
        if not self._freed:
            storages = [local(own).untyped_storage() for _, own in self._pairs()]
            self._freed = [(storage, storage.nbytes()) for storage in storages]
            for storage in storages:
                storage.resize_(0)

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return each tensor of the source with its copy."""
        own = dict([*self.module.named_parameters(), *self.module.named_buffers()])
        return [(one, own[name]) for name, one in (*self._source.named_parameters(), *self._source.named_buffers())]


def _without_numbers(tensor: Tensor) -> Tensor:
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


class ShardedSite(ModelSite):
    """The ranks of a site, each with its rows of a batch and its shards of a module. Raises `InvalidJob` for a module
    that cannot be divided so."""

    restriction = Restriction(
        frozenset({"corrections", "teaching", "gradients"}),
        "each process has shards of the model only",
        "use a learner without parallel=",
    )

    def __init__(
        self,
        units: Sequence[str],
        layers: Layers,
        module: nn.Module,
        roles: TensorRoles,
        device: torch.device,
        autocast: Autocast,
        reports: list[ShardReport],
    ) -> None:
        super().__init__()
        self._module, self._roles, self.device, self.autocast = module, roles, device, autocast
        self.data_device = device
        check_layers(module, layers, self.size)
        self._units, self._layers, self._reports = units_of(module, units, names_of(layers)), layers, reports
        self._sharded: ShardedModule | None = None

    @property
    def sharded(self) -> ShardedModule:
        """The module in shards, made when it is first needed."""
        if self._sharded is None:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)  # torch takes the current card for shards
            mesh = init_device_mesh(self.device.type, (self.size,))
            self._sharded = ShardedModule(self._module, self._units, self._layers, self.device, mesh)
        return self._sharded

    def divided(self, module: nn.Module, device: torch.device, seed: int) -> ShardedModule:
        """Return the module for a training; see `Site.divided`."""
        seed_torch(seed % 2**63, device)
        return self.sharded

    def passes(self, descent: Callable[[Weights], Descent], loss: Loss, seed: int) -> Passes:
        self.sharded.load()
        return ShardedPasses(self, loss, descent(Weights(self.sharded.module, self._roles)), seed)

    def evaluated(self, batches: Iterable[Batch], found: Evaluation, loss: Loss) -> Metrics:
        """Return the metrics over whole batches, which all ranks compute, at rank 0; {} at the others."""
        self.sharded.load()
        if self.sharded.rows is not None:
            self.sharded.rows.expect_whole()
        for batch in batches:
            with self.autocast(self.device):
                output, mean = output_and_loss(self.sharded.module, loss, batch.data)
            found.add(output, split(batch.data)[1], mean, batch.examples)
        return {} if self.rank else found.named()

    def free(self) -> None:
        if self._sharded is not None:
            self._sharded.free()

    def finish(self, optimizer: Optimizer | None, bytes_sent: int) -> None:
        """Give all ranks the whole model on the CPU, and log the measurements."""
        module = self.sharded.module
        peak = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0
        report = ShardReport(*memory_here(module, optimizer), peak, bytes_sent)
        self.sharded.save()
        self._reports[:] = [ShardReport(**json.loads(one)) for one in self.gather(json.dumps(asdict(report)).encode())]
        if self.rank == 0:
            log.info(shards_text(self._reports))


class ShardedPasses(WholePasses):
    """The passes of this rank's rows through a sharded module."""

    def __init__(self, site: ShardedSite, loss: Loss, descent: Descent, seed: int) -> None:
        own = seed_of(seed, site.rank) if site.rank else seed
        super().__init__(
            site.sharded.module, loss, descent, site.device, site.autocast, extra_loss=None, site=site, seed=own
        )
        self._shards, self._sent = site, SentBytes(site.size)
        self._is_counted = False

    def train(self, batch: Batch, *, is_shared: bool) -> tuple[Tensor, Tensor]:
        if (rows := self._shards.sharded.rows) is not None:
            rows.expect(batch, self._shards.size)
        counting = nullcontext() if self._is_counted else self._sent  # it makes each operation slower
        self._is_counted = True
        with counting:
            return super().train(batch, is_shared=is_shared)

    def finish(self) -> None:
        super().finish()
        self._shards.finish(self._descent.optimizer, round(self._sent.total))


def shards_text(reports: Sequence[ShardReport]) -> str:
    """Return the measurements of a sharded model in words."""
    kinds = {
        "weights": [one.weight_bytes for one in reports],
        "gradients": [one.gradient_bytes for one in reports],
        "optimizer": [one.optimizer_bytes for one in reports],
    }
    held = "; ".join(f"{kind} {', '.join(f'{one / 1e6:.1f}' for one in found)}" for kind, found in kinds.items())
    sent = max(one.bytes_sent for one in reports)
    return f"each process sends {sent / 1e6:.1f} MB in a batch and holds shards of the model, in MB by rank: {held}"
