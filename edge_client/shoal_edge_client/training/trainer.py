"""Execution of tasks by the learner, in a thread or a process (`TrainerBackend`). Its errors become task failures.

A failure becomes one line for the coordinator; the whole traceback goes to the log and into the state folder.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from shoal.core.algorithm.algorithm import LocalResult
from shoal.core.errors import Cancelled, InvalidJob, InvalidPayload, LearnerFailed, ShoalError, StorageFailed
from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import TaskResult
from shoal.core.protocol.message import BlobRef, Metrics, Report, Task, TaskStatus
from shoal.learn.user_errors import user_code
from shoal.runtime.durable_files import CrashPoint, no_crash
from shoal.runtime.training.remote import TaskInputs
from shoal.runtime.worker_ports import CancelToken, TaskRun, task_label
from shoal.validation.message_checks import check
from shoal.wire.payload import measure
from shoal_edge_client.spool import Spool
from shoal_edge_client.training.trainer_backend import StartTrainerTask, TrainerTask


@dataclass(frozen=True)
class EdgeTrainer:
    """The trainer of one job. `save_traceback(name, text)` stores a traceback."""

    job: str
    start: StartTrainerTask
    spool: Spool
    save_traceback: Callable[[str, str], Path]
    at: CrashPoint = no_crash

    def __call__(
        self, task: Task, slots: Slots, base: Slots, memory: BlobRef | None, watch: CancelToken
    ) -> TaskInProgress:
        """Start a task (`shoal.runtime.worker_ports.StartTask`)."""
        self.at("work.begun")
        blobs = self.spool.blobs
        private = blobs.get(memory) if memory is not None else {}
        work = self.start(TaskInputs(task, slots, base, private, memory, blobs, watch.progress))
        return TaskInProgress(self, work, watch)


@dataclass
class TaskInProgress:
    """A task that is being trained."""

    trainer: EdgeTrainer
    work: TrainerTask
    watch: CancelToken
    seconds: float = 0.0

    def can_continue(self, task: Task) -> bool:
        return self.work.can_continue(task)

    def run_piece(self, task: Task) -> TaskResult | TaskStatus | None:
        """Run the next piece. Errors of the user's code become `LearnerFailed`; their traceback is saved."""
        log: Any = structlog.get_logger("edge_client.trainer").bind(job=self.trainer.job, task=task_label(task.id))
        started = time.monotonic()
        try:
            with self._user_errors(task):
                made = self._run_piece(task)
        except Cancelled:
            log.info("task cancelled", seconds=round(self.seconds + time.monotonic() - started, 3))
            raise
        except ShoalError as error:
            if isinstance(error, LearnerFailed) or error.__cause__ is not None:
                self._keep_traceback(log, task, error)
            raise
        self.seconds += time.monotonic() - started
        if isinstance(made, TaskResult):
            self.trainer.at("work.done")
            log.info("task done", kind=task.kind, seconds=round(self.seconds, 3), **_log_values(made.metrics))
        return made

    @contextmanager
    def _user_errors(self, task: Task) -> Any:
        """Translate the user's errors; `sys.exit` in a learner must not end this process."""
        try:
            with user_code(f"the learner's {task.kind}"):
                yield
        except SystemExit as error:
            raise LearnerFailed(f"the learner called sys.exit({error.code!r})") from error

    def _keep_traceback(self, log: Any, task: Task, error: ShoalError) -> None:
        name = f"{self.trainer.job}-{task_label(task.id)}"
        try:
            file = str(self.trainer.save_traceback(name, "".join(traceback.format_exception(error))))
        except StorageFailed as failure:
            file = failure.message
        log.error("the learner failed", why=error.message, hint=error.hint, file=file, exc_info=error)

    def _run_piece(self, task: Task) -> TaskResult | TaskStatus | None:
        first = not self.work.started
        made = self.work.run_piece(task)
        spool = self.trainer.spool
        if first and self.work.reference:
            spool.put_base(self.work.reference)
        if made is None or isinstance(made, TaskStatus):
            return made
        self.watch.progress(1.0)
        if isinstance(made, LocalResult):
            measure(made.slots)
        update = made.slots if isinstance(made, LocalResult) else made.blob
        body = spool.put_update(update) if update else None
        after = spool.put_memory(made.memory) if made.memory is not None else None
        return self._checked(task, TaskResult(float(made.weight), body, numbers(made.metrics), after))

    def _checked(self, task: Task, result: TaskResult) -> TaskResult:
        """Raise here what the coordinator would refuse: an unknown kind of metric, an invalid weight."""
        report = Report("self", task.id, task.version, result.weight, result.blob, result.metrics)
        try:
            check(report)
        except InvalidPayload as error:
            raise LearnerFailed(f"its report cannot be sent: {error.message}", code=error.code) from error
        return result


@dataclass(frozen=True)
class UnusableLearner:
    """A trainer that refuses every task with its error."""

    error: InvalidJob

    def __call__(self, task: Task, slots: Slots, base: Slots, memory: BlobRef | None, watch: CancelToken) -> TaskRun:
        raise self.error


def numbers(metrics: Metrics) -> Metrics:
    """Return metrics as plain floats; learners return numpy's and torch's too."""
    return {str(name): float(value) for name, value in metrics.items()}


def _log_values(metrics: Metrics) -> dict[str, float]:
    """Return the metrics that are logged."""
    wanted = ("train/loss", "eval/loss", "eval/accuracy")
    return {name.replace("/", "_"): round(metrics[name], 4) for name in wanted if name in metrics}
