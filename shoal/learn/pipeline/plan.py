"""The settings of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import nn

from shoal.core.errors import InvalidJob
from shoal.learn.training.passes import Autocast, ModelSite, Parallel
from shoal.learn.training.weights import TensorRoles

if TYPE_CHECKING:
    from shoal.learn.pipeline.engine import StageReport


@dataclass(frozen=True)
class Pipeline(Parallel):
    """Pipeline stages of a chain, one for each process (GPipe, Huang et al. 2019)."""

    title: ClassVar[str] = "pipeline"

    cuts: tuple[int | str, ...] | Literal["auto"] = "auto"
    """The place of each stage but the first: the number of modules before it, or the name of its first module.
    "auto": the slowest stage takes the least time, as one process measures each module on the CPU."""
    microbatches: int = 4
    """Micro-batches of a batch, at least as many as there are stages. All have the same number of rows: the last ones
    may repeat a row, which does not count."""
    reports: list[StageReport] = field(default_factory=list, init=False, compare=False)
    """Measurements of the last training, by rank."""

    def __post_init__(self) -> None:
        if self.microbatches < 1:
            raise InvalidJob(f"microbatches is {self.microbatches}", hint="use 1 or more")
        if isinstance(self.cuts, str) and self.cuts != "auto":
            raise InvalidJob(f"cuts is {self.cuts!r}", hint='use "auto", or a tuple of names such as ("4",)')

    def site(self, module: nn.Module, roles: TensorRoles, device: torch.device, autocast: Autocast) -> ModelSite:
        from shoal.learn.pipeline.engine import PipelinedSite  # the engine of torch takes seconds to import

        return PipelinedSite(self.cuts, self.microbatches, module, roles, device, autocast, self.reports)
