"""A Lightning trainer in a training loop: its progress, and its end where the task was cancelled.

for task in node.tasks(model):
    trainer = L.Trainer(max_epochs=task.epochs, callbacks=[shoal.lightning.Callback(task)])
    trainer.fit(model, loader)
    task.report(model, examples=len(data), metrics=trainer.callback_metrics)
"""

from __future__ import annotations

from typing import Any

from shoal.extras import not_installed
from shoal.loop.task import LoopTask

try:
    from lightning import pytorch
except ModuleNotFoundError as error:
    if error.name != "lightning":
        raise
    raise not_installed(error, "lightning", "shoal.lightning") from error


class Callback(pytorch.Callback):
    """A callback of a Lightning trainer that works on one task."""

    def __init__(self, task: LoopTask) -> None:
        self._task, self._steps = task, 0.0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Note how many steps there are; unknown where the data have no length."""
        self._steps = float(trainer.estimated_stepping_batches)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """Report progress; end the training if the task was cancelled."""
        if not self._task.progress(trainer.global_step / max(1.0, self._steps)):
            trainer.should_stop = True
