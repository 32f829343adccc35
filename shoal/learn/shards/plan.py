"""The settings of a model in shards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from shoal.learn.training.passes import Autocast, ModelSite, Parallel
from shoal.learn.training.weights import TensorRoles

if TYPE_CHECKING:
    from shoal.learn.shards.sharded_site import ShardReport


@dataclass(frozen=True)
class FullyShard(Parallel):
    """Shards that are gathered before they compute (ZeRO, Rajbhandari et al. 2020; torch's `fully_shard`)."""

    title: ClassVar[str] = "fully sharded"

    modules: tuple[str, ...] = ()
    """The units: modules of which a process has all parameters while it computes them; the rest are one more.
    (): the modules in each `nn.Sequential` and `nn.ModuleList`, except very small ones."""
    reports: list[ShardReport] = field(default_factory=list, init=False, compare=False)
    """Measurements of the last training, by rank."""

    def site(self, module: nn.Module, roles: TensorRoles, device: torch.device, autocast: Autocast) -> ModelSite:
        from shoal.learn.shards.sharded_site import ShardedSite  # DTensor takes seconds to import

        return ShardedSite(self.modules, (), module, roles, device, autocast, self.reports)


@dataclass(frozen=True)
class TensorParallel(Parallel):
    """Dense layers that compute in shards on the rows of all processes; all other layers, such as convolutions, compute
    the rows of one process (Krizhevsky 2014; torch's `parallelize_module`)."""

    title: ClassVar[str] = "tensor parallel"

    layers: tuple[str | tuple[str, str], ...]
    """Names of `nn.Linear`: pairs, of which the second follows the first and elementwise functions, such as ReLU and
    dropout; or single ones. Pairs send less."""
    reports: list[ShardReport] = field(default_factory=list, init=False, compare=False)
    """Measurements of the last training, by rank."""

    def site(self, module: nn.Module, roles: TensorRoles, device: torch.device, autocast: Autocast) -> ModelSite:
        from shoal.learn.shards.sharded_site import ShardedSite  # DTensor takes seconds to import

        return ShardedSite((), self.layers, module, roles, device, autocast, self.reports)
