"""A task in hand that is done by a training process: `shoal.core.client.task_runner.TaskRunner`, over there.

When the process dies in the middle, another one begins the task again, which loses the pieces and nothing else: seeds
are in the order, so that it comes to the same result. After a few deaths the task fails instead.
"""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from shoal.core.algorithm.learner import Progress, no_progress
from shoal.core.errors import LearnerFailed
from shoal.core.model.tree import Slots
from shoal.core.protocol.message import BlobRef, Metrics, Task, TaskStatus
from shoal.runtime.blob_files import FileBlob, FileBlobs
from shoal.runtime.durable_files import storing, write_all
from shoal.runtime.training.child_process import ProcessEnded
from shoal.runtime.training.ipc import ref_from
from shoal.runtime.training.training_process import TrainingProcess
from shoal.wire import codec
from shoal.wire.payload import payload_pieces

RESTARTS_MAX = 3
"""Restarts of a task whose process died."""
PAUSE_S, PAUSE_S_MAX = 0.5, 8.0
"""Before the first of these, doubling; and the longest."""
POLL_S = 0.1

_numbers = itertools.count(1)


@dataclass(frozen=True)
class RemoteResult:
    """`LocalResult` of a task, with its trees in files. All numbers are finite."""

    weight: float
    blob: FileBlob | None
    metrics: Metrics
    memory: FileBlob | None


@dataclass(frozen=True)
class TaskInputs:
    """A task, and the opened blobs that it and the node's state name. `blobs`: where they may lie as files."""

    task: Task
    slots: Slots
    reference: Slots
    memory: Slots
    memory_ref: BlobRef | None
    blobs: FileBlobs
    progress: Progress = no_progress


class RemoteTaskRun:
    """A task that runs in the training process. `job`: as JSON values. The input is kept until the task is done, to
    repeat it in another process."""

    def __init__(self, training: TrainingProcess, job: Mapping[str, Any], given: TaskInputs) -> None:
        self._training, self._job, self._given = training, job, given
        self.reference: Slots | FileBlob = given.reference
        """After the first piece: what the node holds from now on, if the job has a base at all."""
        self.check = 0
        self._task_number = next(_numbers)
        self._of = 0  # the process that has begun it, by its number; 0: none has
        self._deaths = 0
        self.log: Any = structlog.get_logger("shoal.training")
        weakref.finalize(self, training.dropped.append, self._task_number)

    @property
    def started(self) -> bool:
        """Return whether a piece was requested."""
        return self._of > 0

    def can_continue(self, task: Task) -> bool:
        """Return whether the next piece needs no word from the hub."""
        return task.recall or not task.checks_allowed or self.check < task.checks_allowed

    def run_piece(self, task: Task) -> RemoteResult | TaskStatus | None:
        """Do the next piece of the task, as it reads now. Blocks. Raises as `TrainingProcess.ask` does."""
        self._training.tasks.add(self)
        try:
            made = self._repeated(task)
        except BaseException:
            self._training.tasks.discard(self)  # its traceback may keep this object
            raise
        if isinstance(made, RemoteResult):
            self._training.tasks.discard(self)
        return made

    def _repeated(self, task: Task) -> RemoteResult | TaskStatus | None:
        """Do the next piece, with the pieces before it when the process has died."""
        while True:
            try:
                return self._piece(task)
            except ProcessEnded as error:
                self._deaths += 1
                if self._deaths > RESTARTS_MAX:
                    text = f"{error.message}, {self._deaths} times at this task"
                    raise LearnerFailed(text, code=error.code, hint=error.hint) from error
                self.log.warning("training is started again", why=error.message, hint=error.hint, task=list(task.id))
                self._pause(min(PAUSE_S * 2.0 ** (self._deaths - 1), PAUSE_S_MAX))

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._given.progress(0.0)
            time.sleep(POLL_S)

    def _piece(self, task: Task) -> RemoteResult | TaskStatus | None:
        training = self._training
        training.about["task"] = f"{task.id[0]}.{task.id[1]}"
        training.open(self._given.progress)
        if self._of != training.starts:
            self._begin()
        reply = training.ask(
            {"do": "run_step", "task_number": self._task_number, "task": codec.to_json(task)}, self._given.progress
        )
        self.check = int(reply["check"])
        self.reference = self._file(reply["base"]) or self.reference
        if "local" not in reply:
            status = reply["status"]
            return codec.from_json(status) if status is not None else None
        made = reply["local"]
        blob, memory = self._file(made["blob"]), self._file(made["memory"])
        return RemoteResult(float(made["weight"]), blob, dict(made["metrics"]), memory)

    def _begin(self) -> None:
        training, given = self._training, self._given
        training.blobs.keep_only(())  # drop blobs that were never collected
        task = given.task
        wanted = {
            "slots": (given.slots, task.blob),
            "base": (given.reference, task.reference),
            "memory": (given.memory, given.memory_ref),
        }
        paths = {name: self._write_inputs(slots, ref) for name, (slots, ref) in wanted.items() if slots}
        try:
            training.ask(
                {
                    "do": "start_task",
                    "task_number": self._task_number,
                    "job": self._job,
                    **{name: str(paths[name].absolute()) if name in paths else "" for name in wanted},
                },
                given.progress,
            )
        finally:
            for path in paths.values():
                path.unlink(missing_ok=True)
        self._of = training.starts

    def _write_inputs(self, slots: Slots, ref: BlobRef | None) -> Path:
        """Write a blob to a file of its own: a hard link if possible, else a copy."""
        path = self._training.blobs.temporary()
        if ref is not None and self._given.blobs.size(ref.digest) == ref.nbytes:
            try:
                os.link(self._given.blobs.path(ref.digest), path)
            except OSError as error:
                self.log.debug("no hard link to a blob: it is copied", why=str(error))
            else:
                return path
        with storing(path):
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            try:
                for piece in payload_pieces(slots):
                    write_all(descriptor, piece)
            finally:
                os.close(descriptor)
        return path

    def _file(self, reply: Any) -> FileBlob | None:
        ref = ref_from(reply)
        return FileBlob(self._training.blobs.path(ref.digest), ref) if ref is not None else None
