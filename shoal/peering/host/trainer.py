"""Asynchronous access of a peer to its training process (`shoal.runtime.training`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from shoal.core.algorithm.learner import Progress
from shoal.core.errors import LearnerFailed
from shoal.core.protocol.machine import TaskResult, Work
from shoal.core.protocol.message import BlobRef, Metrics, Task
from shoal.runtime.blob_files import FileBlob, FileBlobs
from shoal.runtime.threads import SerialExecutor
from shoal.runtime.training.ipc import ref_from
from shoal.runtime.training.remote import RemoteResult, RemoteTaskRun, TaskInputs
from shoal.runtime.training.training_process import TrainingProcess, TrainingSetup
from shoal.runtime.worker_ports import CancelToken

T = TypeVar("T")


class PeerTrainer:
    """One training process. `blobs`: blobs of tasks; `made`: folder of results; `job`: as JSON values."""

    def __init__(self, setup: TrainingSetup, job: Mapping[str, Any], blobs: FileBlobs, made: FileBlobs) -> None:
        self._job, self._blobs, self._made = job, blobs, made
        self._training, self._executor = TrainingProcess(setup), SerialExecutor("shoal-training")

    @property
    def starts(self) -> int:
        """Return how often the process was started."""
        return self._training.starts

    @property
    def pid(self) -> int | None:
        """Return the process id, if the process runs."""
        return self._training.pid

    async def init(self, seed: int) -> tuple[BlobRef, float]:
        """Return (the initial model, in the folder of results; the number of examples)."""
        return await self._run(lambda progress: self._init(seed))

    async def check(self) -> None:
        """Raise `InvalidJob` where the learner lacks what the job's algorithm needs."""
        await self._run(lambda progress: self._training.ask({"do": "check_job", "job": dict(self._job)}, progress))

    async def perform(self, work: Work) -> TaskResult:
        """Run a task. Raises the learner's error, also when the process dies repeatedly."""
        return await self._run(partial(self._perform, work))

    async def evaluate(self, model: BlobRef) -> Metrics:
        """Return a model's metrics on the learner's held-out data."""
        found = await self.perform(Work(Task((0, 0), "self", "evaluate", 0, 0, model)))
        return found.metrics

    def close(self) -> None:
        """End the process for good."""
        self._training.close()
        self._executor.close()

    async def end(self) -> None:
        """End the process for good, and wait for the executor."""
        self._training.close()
        await self._executor.wait_idle(1.0)
        self._executor.close()

    async def _run(self, call: Callable[[Progress], T]) -> T:
        watch = CancelToken()
        try:
            return await self._executor.run(partial(call, watch.progress))
        except asyncio.CancelledError:
            watch.cancel()
            raise

    def _init(self, seed: int) -> tuple[BlobRef, float]:
        answer = self._training.ask({"do": "init", "seed": seed})
        model = ref_from(answer["model"])
        assert model is not None
        return self._adopt(FileBlob(self._training.blobs.path(model.digest), model)), float(answer["examples"])

    def _perform(self, work: Work, progress: Progress) -> TaskResult:
        task, blobs = work.task, self._blobs
        slots = blobs.get(task.blob) if task.blob is not None else {}
        memory = blobs.get(work.memory) if work.memory is not None else {}
        made = RemoteTaskRun(
            self._training, self._job, TaskInputs(task, slots, {}, memory, work.memory, blobs, progress)
        ).run_piece(task)
        if not isinstance(made, RemoteResult):
            raise LearnerFailed("the algorithm goes on without an end, which gossip cannot use")
        blob, after = (self._adopt(one) if one is not None else None for one in (made.blob, made.memory))
        return TaskResult(made.weight, blob, made.metrics, after)

    def _adopt(self, blob: FileBlob) -> BlobRef:
        return self._made.take(blob)
