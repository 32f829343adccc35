"""The module of a learner under DistributedDataParallel (Li et al., VLDB 2020).

Gradients are averaged in buckets, the first while those of other layers are still computed. Each rank's loss is
weighted by its rows, so that the average is the gradient of the mean over the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from shoal.learn.seeds import seed_torch
from shoal.learn.site.ranks import Ranks


class DividedModule:
    """A module whose gradients all ranks average."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def forward(self, *, is_last: bool) -> AbstractContextManager[None]:
        """Return the context of a forward pass. `is_last`: its backward pass completes a step."""
        return nullcontext()


class ReplicatedModule(DividedModule):
    """A module that each rank has whole. All must have the same weights when it is made."""

    module: DistributedDataParallel

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        replica = DistributedDataParallel(
            module,
            device_ids=[device] if device.type == "cuda" else None,
            find_unused_parameters=True,  # a parameter without a gradient is not moved, as in a single process
        )
        replica.broadcast_buffers = False  # training only writes them; at its end those of rank 0 go to all ranks
        super().__init__(replica)

    def forward(self, *, is_last: bool) -> AbstractContextManager[None]:
        """Return the context of a forward pass. Only the last backward pass of a step averages, all its gradients."""
        return nullcontext() if is_last else self.module.no_sync()


class Site(Ranks):
    """The ranks of a site, with the module that they train."""

    def __init__(self) -> None:
        super().__init__()
        self._divided: tuple[nn.Module, torch.device, ReplicatedModule] | None = None

    def prepare(self) -> None:
        """Make a replica of a small module: torch imports hundreds of modules for the first one, for seconds."""
        ReplicatedModule(nn.Linear(1, 1), torch.device("cpu"))

    def divided(self, module: nn.Module, device: torch.device, seed: int) -> DividedModule:
        """Return the module for a training. `seed`: of what may differ among the ranks, such as masks of dropout."""
        if self._divided is None or self._divided[0] is not module or self._divided[1] != device:
            self._divided = module, device, ReplicatedModule(module, device)
        if self.rank:
            seed_torch(seed % 2**63, device)
        return self._divided[2]

    def combine(self, parameters: Sequence[nn.Parameter]) -> None:
        """Average gradients after a backward pass that did not, because it was not known to be a step's last."""
        used = torch.tensor([float(one.grad is not None) for one in parameters])
        found = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        self.add_up([used])
        self.add_up(found)
        for one, gradient, count in zip(parameters, found, used.tolist(), strict=True):
            one.grad = gradient.div_(self.size) if count else None


def part_of_mean(ranks: Ranks, loss: Tensor, output: object, counted: Tensor | None, weight: float) -> Tensor:
    """Return this rank's part of a batch's mean loss, which all ranks add up.

    `counted`: the number of own targets that the loss is the mean of, some of which may be ignored, so that not the
    `weight` of the rows tells their fraction; None for other losses.
    """
    if counted is None:
        return loss * weight
    known = counted > 0
    if isinstance(output, Tensor) and output.requires_grad:  # the gradient of a mean over nothing is not a number
        output.register_hook(partial(_kept_if, known))  # type: ignore[no-untyped-call]
    numbers = counted.detach().to(torch.float64).repeat(2)
    ranks.add_up([numbers[1:]])
    return torch.where(known, loss * (numbers[0] / numbers[1]).to(loss.dtype), torch.zeros_like(loss))


def _kept_if(known: Tensor, gradient: Tensor) -> Tensor:
    return torch.where(known, gradient, torch.zeros_like(gradient))
