"""The passes of a task's batches through a learner's module: in one process, or divided among the ranks of a site."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from shoal.core.algorithm.capability import Capability, Restriction, lack_error, restricted
from shoal.core.algorithm.learner import ExtraLoss
from shoal.core.protocol.message import Metrics
from shoal.learn.data.batches import Batch, check_batch, split
from shoal.learn.site.divided_module import Site, part_of_mean
from shoal.learn.training.descent import Descent
from shoal.learn.training.measures import Evaluation, Loss, class_targets
from shoal.learn.training.weights import TensorRoles, Weights

Autocast = Callable[[torch.device], AbstractContextManager[Any]]
"""The context of forward passes on a device."""


class Passes(ABC):
    """The passes of one task. `device`: that of the losses."""

    device: torch.device

    @abstractmethod
    def train(self, batch: Batch, *, is_shared: bool) -> tuple[Tensor, Tensor]:
        """Add the gradients of a batch's mean loss, and make the step if it is complete.

        Return the loss, where the batch is computed, or everywhere if it `is_shared`; and this rank's part of it,
        which all ranks add up.
        """

    @abstractmethod
    def step(self) -> None:
        """Make one step along the mean gradient of the batches since the last one."""

    @abstractmethod
    def finish(self) -> None:
        """End the training: all ranks get all weights."""


class WholePasses(Passes):
    """Passes through the whole module: of whole batches, or of this rank's rows of them.

    `seed`: of what may differ among the ranks, such as masks of dropout.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        descent: Descent,
        device: torch.device,
        autocast: Autocast,
        *,
        extra_loss: ExtraLoss | None,
        site: Site | None,
        seed: int,
    ) -> None:
        self.device = device
        self._loss, self._extra_loss, self._descent, self._site = loss, extra_loss, descent, site
        self._divided = None if site is None else site.divided(module, device, seed)
        self._module = module if self._divided is None else self._divided.module
        self._autocast = autocast(device)

    def train(self, batch: Batch, *, is_shared: bool) -> tuple[Tensor, Tensor]:
        descent, divided, site = self._descent, self._divided, self._site
        with self._autocast, nullcontext() if divided is None else divided.forward(is_last=descent.completes_step):
            output, loss = output_and_loss(self._module, self._loss, batch.data)
            extra = None if self._extra_loss is None else self._extra_loss(batch.data, output)
        part = own_part(site, self._loss, loss, output, batch)
        objective = part if extra is None else part + extra * batch.weight
        descent.add(objective if site is None else objective * site.size, batch.examples)
        return loss, part

    def step(self) -> None:
        self._descent.step()

    def finish(self) -> None:
        if self._site is not None:
            self._site.copy_first(list(self._module.buffers()))  # such as the statistics of BatchNorm


def output_and_loss(module: nn.Module, loss: Loss, batch: Any) -> tuple[Any, Tensor]:
    """Return a batch's output and mean loss."""
    check_batch(batch)
    inputs, target = split(batch)
    output = module(*inputs)
    return output, loss(output, target)


def own_part(site: Site | None, loss_of: Loss, loss: Tensor, output: Any, batch: Batch) -> Tensor:
    """Return this rank's part of a batch's mean loss: all of it without other ranks."""
    if site is None or batch.own is None:
        return loss
    counted = class_targets(loss_of, split(batch.data)[1])
    return part_of_mean(site, loss, output, None if counted is None else counted * (batch.own > 0), batch.weight)


class ModelSite(Site, ABC):
    """The ranks of a site, each of which has a part of the model on the device."""

    device: torch.device
    restriction: ClassVar[Restriction]
    """The capabilities that the learner loses by this way of training. Jobs that need them are refused."""
    data_device = torch.device("cpu")
    """The device of batches."""

    def require(self, capability: Capability) -> None:
        """Raise `InvalidJob` for a capability that the learner has lost."""
        if (lack := restricted(self.restriction, capability)) is not None:
            raise lack_error("the job", lack)

    @abstractmethod
    def passes(self, descent: Callable[[Weights], Descent], loss: Loss, seed: int) -> Passes:
        """Return the passes of a training; `descent` makes that of the rank's weights."""

    @abstractmethod
    def evaluated(self, batches: Iterable[Batch], found: Evaluation, loss: Loss) -> Metrics:
        """Return the metrics over batches at rank 0; {} at the others."""

    @abstractmethod
    def free(self) -> None:
        """Free the memory of the device that this rank's part of the model takes, until the next task. Not collective:
        the task may have been withdrawn."""


class Parallel(ABC):
    """A way to divide a model among the ranks of a site."""

    title: ClassVar[str]
    """The way in one or two words, which a node tells about itself."""

    @abstractmethod
    def site(self, module: nn.Module, roles: TensorRoles, device: torch.device, autocast: Autocast) -> ModelSite:
        """Return the ranks with their parts of a module. Raises `InvalidJob` if it cannot be divided so."""
