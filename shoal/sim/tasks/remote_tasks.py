"""Tasks that other processes do ahead of their turn; each result waits here until its task is due."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from shoal.core.protocol.machine import TaskResult, Work
from shoal.core.protocol.message import BlobRef, Task
from shoal.learn.stacked.task_chunks import TaskChunk, TaskChunks
from shoal.sim.hosts.work import stored
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.tasks.chunk_runner import ChunkEngine, ChunkWork, TaskOutcome

AHEAD = 2
"""Chunks per worker that are under way or wait for their turn: one is trained while another is sent and received."""


class RemoteTask:
    """A task that another process has done."""

    held: BlobRef | None = None

    def __init__(self, outcome: TaskOutcome, blobs: MemoryBlobs) -> None:
        self._outcome, self._blobs = outcome, blobs

    def run_piece(self, _: Task) -> TaskResult:
        """Return the result, or raise what the task has raised."""
        if self._outcome.error is not None:
            raise self._outcome.error
        assert self._outcome.made is not None
        return stored(self._outcome.made, self._blobs)

    def can_continue(self, _: Task) -> bool:
        return False


class RemoteTasks:
    """The tasks of all nodes, sent in chunks in the order in which they come due. `show` shows what is awaited."""

    def __init__(
        self, chunks: TaskChunks, engine: ChunkEngine, blobs: MemoryBlobs, show: Callable[[str], None]
    ) -> None:
        self._chunks, self._engine, self._blobs, self._show = chunks, engine, blobs, show
        self._sent: dict[TaskChunk, Future[list[TaskOutcome]]] = {}
        self._made: dict[TaskChunk, dict[str, TaskOutcome]] = {}

    def outcome(self, task: Task) -> TaskOutcome:
        """Wait for the outcome of a due task, and return it."""
        chunk = self._chunks.due(task.node)
        if chunk not in self._made:
            self._await(chunk)
        self._chunks.withdraw(task.node)
        outcome = self._made[chunk].pop(task.node)
        if not chunk.is_awaited:
            del self._made[chunk]
        return outcome

    def _await(self, chunk: TaskChunk) -> None:
        """Wait for the results of a chunk, while others are under way."""
        self._made = {one: made for one, made in self._made.items() if one.is_awaited}
        self._sent = {one: future for one, future in self._sent.items() if one.is_awaited}
        future = self._sent.pop(chunk, None) or self._submit(chunk)
        while self._chunks.planned and len(self._sent) < AHEAD * self._engine.workers:
            ahead = next(iter(self._chunks.planned))
            self._sent[ahead] = self._submit(ahead)
        self._show(f"tasks of {chunk.tasks[0].node} and others in {self._engine.workers} processes")
        outcomes = zip(chunk.tasks, future.result(), strict=True)
        self._made[chunk] = {task.node: outcome for task, outcome in outcomes}

    def _submit(self, chunk: TaskChunk) -> Future[list[TaskOutcome]]:
        self._chunks.planned.pop(chunk, None)
        works = [Work(task, chunk.memories.get(task.node)) for task in chunk.tasks]
        refs = {ref for work in works for ref in (work.task.blob, work.memory) if ref is not None}
        return self._engine.submit(ChunkWork(works, {ref.digest: self._blobs.get(ref) for ref in refs}))
