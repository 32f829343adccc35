"""A `transformers` Trainer in a training loop: the job's epochs and seed, its progress, and its end where the task was
cancelled.

for task in node.tasks(model):
    trainer = Trainer(model, args, train_dataset=data, callbacks=[shoal.transformers.TaskCallback(task)])
    trainer.train()
    task.report(model, examples=len(data))
"""

from __future__ import annotations

from typing import Any

from shoal.extras import not_installed
from shoal.loop.task import LoopTask

try:
    from transformers import set_seed
    from transformers.trainer_callback import TrainerCallback
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise not_installed(error, "hf", "shoal.transformers") from error


class TaskCallback(TrainerCallback):
    """A callback of a Trainer that works on one task."""

    def __init__(self, task: LoopTask) -> None:
        self._task = task

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take over the task's amount of training, and its seed: a Trainer seeds all generators by its own."""
        if self._task.steps:
            args.max_steps = self._task.steps
        else:
            args.num_train_epochs = self._task.epochs
        args.seed = self._task.seed % 2**32
        set_seed(args.seed)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report progress; end the training if the task was cancelled."""
        if not self._task.progress(state.global_step / max(1, state.max_steps)):
            control.should_training_stop = True
