"""A `transformers.Trainer` that does one task of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import find_batch_size

from shoal.core.algorithm.learner import Progress, no_progress
from shoal.learn.hf.task_batches import TaskBatches
from shoal.learn.training.corrections import Corrector, correct_in_place
from shoal.learn.training.descent import KeptOptimizer
from shoal.learn.training.measures import Mean
from shoal.learn.training.weights import Weights


@dataclass
class TrainerInput:
    """The task of a trainer, and the mean loss over its examples. `batches` None: those of the trainer's own loader."""

    weights: Weights
    mean: Mean
    lr: float = 0.0
    batches: TaskBatches | None = None
    kept: KeptOptimizer = field(default_factory=KeptOptimizer)
    corrector: Corrector | None = None
    progress: Progress = no_progress
    parts: list[tuple[Tensor, int]] = field(default_factory=list)
    """(share of the step's loss, examples) of the micro-batches since the last step."""

    def close_step(self) -> None:
        """Add the loss of a step to the mean."""
        losses, sizes = zip(*self.parts, strict=True)
        self.mean.add(sum(losses[1:], losses[0]), sum(sizes))
        self.parts.clear()


class TaskTrainer(Trainer):
    """A trainer with the batches, learning rate and corrections of a task, and an optimizer that may outlive it."""

    def __init__(self, task: TrainerInput, **arguments: Any) -> None:
        self.task = task
        super().__init__(**arguments)
        self.remove_callback(PrinterCallback)
        self.add_callback(TaskHooks(self))

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        # A new accelerator holds nothing. Freeing it collects the garbage of the whole process: 0.2 s for each task.
        self.accelerator.free_memory = _nothing_to_free

    def get_train_dataloader(self) -> DataLoader[Any]:
        loader: DataLoader[Any] = super().get_train_dataloader()
        if self.task.batches is None:
            return loader
        ours: DataLoader[Any] = DataLoader(
            loader.dataset,
            batch_sampler=self.task.batches,
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            prefetch_factor=loader.prefetch_factor,
        )
        prepared: DataLoader[Any] = self.accelerator.prepare(ours)
        return prepared

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        def make(_: Any, __: float) -> torch.optim.Optimizer:
            made: torch.optim.Optimizer = super(TaskTrainer, self).create_optimizer(model)
            return made

        self.optimizer = self.task.kept.take(make, {}, self.task.lr)
        for group in self.optimizer.param_groups:
            group.pop("initial_lr", None)  # of the schedule of the task before
        return self.optimizer

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        if model.training:
            self.task.weights.freeze_norms()
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        size = find_batch_size(inputs) or 0  # type: ignore[no-untyped-call]
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        self.task.parts.append((loss, size))
        return loss


class TaskHooks(TrainerCallback):
    """Corrected gradients, and progress, which may cancel the training."""

    def __init__(self, trainer: TaskTrainer) -> None:
        self._trainer, self._task = trainer, trainer.task

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._task.corrector is not None:
            if args.max_grad_norm <= 0:  # else they have been, to be clipped
                self._trainer.accelerator.unscale_gradients()
            correct_in_place(self._task.weights, self._task.corrector)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._task.close_step()
        self._task.progress(state.global_step / state.max_steps)

    def on_substep_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._task.progress(state.global_step / state.max_steps)


def _nothing_to_free(*objects: Any) -> Sequence[Any]:
    return objects
