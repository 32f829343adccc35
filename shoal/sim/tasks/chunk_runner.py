"""A chunk of tasks as another process does it: the blobs that the tasks name go in, and what the tasks made comes out.

A `ChunkRunner` can be pickled. The results have the same bits in every process, here or in a cluster's worker.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from shoal.core.algorithm.algorithm import Algorithm, LocalResult
from shoal.core.algorithm.filter import Filter
from shoal.core.algorithm.learner import Learner
from shoal.core.client.task_runner import TaskRunner
from shoal.core.errors import LearnerFailed, ShoalError
from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import Work
from shoal.core.protocol.message import BlobRef
from shoal.learn.default_generators import kept_generator
from shoal.learn.stacked.task_chunks import TaskChunk
from shoal.sim.hosts.work import run_piece
from shoal.sim.tasks.learners import LearnersOnDemand

if TYPE_CHECKING:
    from shoal.learn.stacked.stacked_tasks import StackedTasks


@dataclass(frozen=True)
class ChunkWork:
    """Tasks, and the opened blobs that they name by their digests."""

    tasks: Sequence[Work]
    blobs: Mapping[str, Slots]


@dataclass(frozen=True)
class TaskOutcome:
    """The result of a task, or the error that it raised. `notes`: how it was trained."""

    made: LocalResult | None
    notes: Sequence[str] = ()
    error: ShoalError | None = None


def in_worker(error: BaseException) -> str:
    """Return an error's traceback, as a note: tracebacks themselves stay in the process where they arose."""
    return "in a worker process:\n" + "".join(traceback.format_exception(error))


class ChunkEngine(Protocol):
    """Workers that run chunks at the same time."""

    @property
    def workers(self) -> int: ...

    def submit(self, work: ChunkWork) -> Future[list[TaskOutcome]]:
        """Run a chunk. The outcomes are in the order of its tasks; the future raises `ShoalError` where its worker
        fails."""
        ...

    def close(self) -> None:
        """End all workers at once, whatever they do."""
        ...


@dataclass
class ChunkRunner:
    """The function that runs a chunk. `torch`: whether there are `TorchLearner`s, which may be trained at once."""

    algorithm: Algorithm
    filters: Sequence[Filter]
    learners: LearnersOnDemand
    torch: bool
    _blobs: Mapping[str, Slots] = field(default_factory=dict)
    _notes: list[str] = field(default_factory=list)

    def __call__(self, work: ChunkWork) -> list[TaskOutcome]:
        """Return the outcomes in the order of the tasks."""
        self._blobs, chunk = work.blobs, TaskChunk(work.tasks)
        with kept_generator():
            return [self._outcome(task, chunk) for task in work.tasks]

    @cached_property
    def _stacked(self) -> StackedTasks:
        from shoal.learn.stacked.stacked_tasks import StackedTasks

        return StackedTasks(self.algorithm, self.learners.__getitem__, self._opened, self._notes.append)

    def _opened(self, ref: BlobRef | None) -> Slots:
        return dict(self._blobs[ref.digest]) if ref is not None else {}

    def _outcome(self, work: Work, chunk: TaskChunk) -> TaskOutcome:
        self._notes.clear()
        try:
            made = self._run(work, chunk)
        except ShoalError as error:
            error.add_note(in_worker(error))
            return TaskOutcome(None, tuple(self._notes), error)
        return TaskOutcome(made, tuple(self._notes))

    def _run(self, work: Work, chunk: TaskChunk) -> LocalResult:
        learner: Learner = self._stacked.learner(work.task, chunk) if self.torch else self.learners[work.task.node]
        runner = TaskRunner(
            self.algorithm,
            learner,
            slots=self._opened(work.task.blob),
            memory=self._opened(work.memory),
            filters=self.filters,
        )
        made = run_piece(runner, work.task)
        if not isinstance(made, LocalResult):
            raise LearnerFailed(f"{self.algorithm.name} trains in pieces, but does not say that it is continual")
        return made
