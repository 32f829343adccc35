"""A node's work on a task, over the blobs of the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shoal.core.algorithm.algorithm import Algorithm, LocalResult
from shoal.core.algorithm.filter import Filter
from shoal.core.algorithm.learner import Learner
from shoal.core.client.task_runner import TaskRunner
from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import TaskResult
from shoal.core.protocol.message import BlobRef, Task, TaskStatus
from shoal.learn.user_errors import user_code
from shoal.sim.network.blobs import MemoryBlobs


class SimulatedTask(Protocol):
    """A task in progress."""

    @property
    def held(self) -> BlobRef | None:
        """The reference model that the node holds from now on."""
        ...

    def run_piece(self, task: Task) -> TaskResult | TaskStatus | None:
        """Do the next piece of the task. Raises `LearnerFailed` for whatever the user's code raises."""
        ...

    def can_continue(self, task: Task) -> bool: ...


class LearnerTask:
    """A task that a learner does. `held`: the reference model, which the node need not fetch again."""

    def __init__(
        self,
        algorithm: Algorithm,
        learner: Learner,
        blobs: MemoryBlobs,
        task: Task,
        memory: BlobRef | None,
        filters: Sequence[Filter] = (),
    ) -> None:
        self._blobs = blobs
        self._work = TaskRunner(
            algorithm,
            learner,
            slots=_opened(blobs, task.blob),
            reference=_opened(blobs, task.reference),
            memory=_opened(blobs, memory),
            filters=filters,
        )
        self.held: BlobRef | None = None

    def run_piece(self, task: Task) -> TaskResult | TaskStatus | None:
        made = run_piece(self._work, task)
        if self._work.reference and self.held is None:
            self.held = self._blobs.put(self._work.reference)
        return stored(made, self._blobs) if isinstance(made, LocalResult) else made

    def can_continue(self, task: Task) -> bool:
        return self._work.can_continue(task)


def run_piece(work: TaskRunner, task: Task) -> LocalResult | TaskStatus | None:
    """Do the next piece of a task. Raises `LearnerFailed` for whatever the user's code raises."""
    with user_code(f"the learner's {task.kind}"):
        made = work.run_piece(task)
        if isinstance(made, LocalResult):  # users' numbers may be numpy's
            metrics = {name: float(value) for name, value in made.metrics.items()}
            made = LocalResult(float(made.weight), made.slots, metrics, made.memory)
    return made


def stored(made: LocalResult, blobs: MemoryBlobs) -> TaskResult:
    """Store what a task made."""
    kept = blobs.add(made.memory) if made.memory is not None else None
    return TaskResult(made.weight, blobs.add(made.slots) if made.slots else None, made.metrics, kept)


def _opened(blobs: MemoryBlobs, ref: BlobRef | None) -> Slots:
    return blobs.get(ref) if ref is not None else {}
