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
    """A shard of each parameter, its gradient and its optimizer's state at each process (ZeRO, Rajbhandari et al. 2020;
    torch's `fully_shard`)."""

    title: ClassVar[str] = "fully sharded"

    modules: tuple[str, ...] = ()
    """The units: modules of which a process has all parameters while it computes them; the rest are one more.
    (): the modules in each `nn.Sequential` and `nn.ModuleList`, except very small ones."""
    reports: list[ShardReport] = field(default_factory=list, init=False, compare=False)
    """Measurements of the last training, by rank."""

    def site(self, module: nn.Module, roles: TensorRoles, device: torch.device, autocast: Autocast) -> ModelSite:
        from shoal.learn.shards.sharded_site import ShardedSite  # DTensor takes seconds to import

        return ShardedSite(self.modules, module, roles, device, autocast, self.reports)
