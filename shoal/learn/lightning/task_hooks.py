"""A callback that lets Lightning's Trainer do one task of a job."""

from __future__ import annotations

from typing import Any

from lightning import pytorch
from torch import Tensor

from shoal.core.algorithm.learner import Progress
from shoal.core.errors import LearnerFailed
from shoal.learn.lightning.task_loader import TaskLoader
from shoal.learn.training.corrections import Corrector, correct_in_place
from shoal.learn.training.measures import Mean
from shoal.learn.training.weights import Weights


class LightningHooks(pytorch.Callback):
    """Frozen layers, corrected gradients, the mean loss, progress, and the end of the task."""

    def __init__(
        self, weights: Weights, loader: TaskLoader, mean: Mean, corrector: Corrector | None, progress: Progress
    ) -> None:
        self._weights, self._loader, self.mean = weights, loader, mean
        self._corrector, self._progress, self._done, self.examples = corrector, progress, 0, 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse what a task would do in another way than the user means."""
        if self._loader.in_sequence and trainer.lr_scheduler_configs:
            raise LearnerFailed(
                "a scheduler of the learning rate would begin again with each piece of the training",
                code="learner.schedule",
                hint="return the optimizer alone from configure_optimizers",
            )
        if self._corrector is not None and len(trainer.optimizers) != 1:
            raise LearnerFailed(
                f"the algorithm corrects the gradients of one optimizer, and there are {len(trainer.optimizers)}",
                code="learner.capability",
                hint="return one optimizer from configure_optimizers, or choose another algorithm, for example fedavg",
            )

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Keep frozen layers of BatchNorm in evaluation mode: validation ends in training mode for all."""
        self._weights.freeze_norms()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Correct the gradients, which mixed precision has unscaled."""
        if self._corrector is not None:
            correct_in_place(self._weights, self._corrector)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Add the batch's loss to the mean; end the training if the task has all its batches."""
        size, loss = self._loader.sizes.popleft(), outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._done += 1
        self.examples += size
        if isinstance(loss, Tensor):
            self.mean.add(loss.detach().to("cpu"), size)
        wanted = self._loader.batches_wanted
        if wanted is None:
            self._progress(trainer.current_epoch / max(1, self._loader.passes))
            return
        self._progress(min(1.0, self._done / wanted))
        if self._done >= wanted:
            trainer.should_stop = True
