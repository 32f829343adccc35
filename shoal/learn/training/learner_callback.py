"""Callbacks of a node's tasks: `TorchConfig(callbacks=[…])`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from shoal.core.algorithm.learner import TrainConfig, Trained


class LearnerCallback:
    """Base class of callbacks: it ignores everything. Override the events of interest.

    An error fails the task, and names the callback's line. A task that is cancelled or fails has no end.
    """

    def task_started(self, module: nn.Module, config: TrainConfig) -> None:
        """Note that a task begins; the module has the weights that were sent."""

    def batch_trained(self, number: int, loss: float) -> None:
        """Note the mean loss of the task's batch of this number, from 0 on. On a GPU each call waits for the loss."""

    def task_ended(self, module: nn.Module, config: TrainConfig, trained: Trained) -> None:
        """Note that a task has ended; the module has the weights that are reported."""
