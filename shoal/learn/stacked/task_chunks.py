"""Chunks of the tasks that simulated nodes have begun: what may be trained at once, or in another process.

Chunks are planned when a task is due that is in none: from all tasks begun by then whose turn is not past. That does
not depend on when and where a chunk is trained, so neither does the result.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence

from shoal.core.algorithm.learner import Learner
from shoal.core.protocol.machine import Work

CHUNK_MAX = 256
"""Tasks in a chunk."""

CHUNK_BYTES = 10_000_000
"""Bytes of all its models: they stay in the processor's cache, and results that wait for their turn are few."""

CARD_CHUNK_BYTES = 1_000_000_000
"""The same on a GPU, which has no such cache and needs many models at once to be busy."""

STACKED_MIN, STACKED_CHUNKS = 128, 8
"""Tasks that are stacked gain nothing in larger chunks than the first; there are no more chunks than the second, unless
they would be too large."""

ALONE_CHUNKS = 32
"""Chunks of tasks that are trained one by one: they gain nothing together, and there may be processes to share them."""

AT_ONCE, ALONE = "tasks at once", "one by one: "
"""Notes of how a task was trained; the reason follows the second."""

EVALUATED_AT_ONCE, EVALUATED_ALONE = "evaluations at once", "evaluations one by one: "
"""The same of its evaluation, where that is of a learner with others."""


class TaskChunk:
    """Tasks of one kind on one model. `memories`: the private memory of each node whose task can still come due.
    `made`: the nodes' learners that have done their tasks with others, and wait for their turn."""

    def __init__(self, works: Sequence[Work]) -> None:
        self.made: dict[str, Learner] = {}
        self.tasks = [work.task for work in works]
        self.memories = {work.task.node: work.memory for work in works}

    @property
    def is_awaited(self) -> bool:
        """Return whether a task of it can still come due."""
        return bool(self.memories)


class TaskChunks:
    """Divides the tasks that have begun. `nodes`: in the order in which equally long tasks end; `stacks`: whether tasks
    can be trained at once; `bytes_max`: of the models of a chunk."""

    def __init__(self, nodes: Sequence[str], *, stacks: bool, bytes_max: int = CHUNK_BYTES) -> None:
        self._turns, self._stacks = {node: turn for turn, node in enumerate(nodes)}, stacks
        self._bytes_max = bytes_max
        self._begun: dict[int, Work] = {}
        self._order: list[int] = []
        self._chunk_of: dict[str, TaskChunk] = {}
        self.planned: dict[TaskChunk, None] = {}
        """Chunks that are awaited, in the order in which they come due."""

    def begin(self, node: str, work: Work) -> None:
        """Note that a node has begun a task, in place of any other."""
        self.withdraw(node)
        turn = self._turns[node]
        if turn not in self._begun:
            insort(self._order, turn)
        self._begun[turn] = work

    def due(self, node: str) -> TaskChunk:
        """Return the chunk of the node's task, which is due."""
        if node not in self._chunk_of:
            self._plan(self._turns[node])
        return self._chunk_of[node]

    def withdraw(self, node: str) -> None:
        """Note that the node's task is done, or no longer wanted."""
        chunk = self._chunk_of.pop(node, None)
        if chunk is not None:
            del chunk.memories[node]
            if not chunk.is_awaited:
                self.planned.pop(chunk, None)

    def _plan(self, turn: int) -> None:
        """Divide all tasks from this turn on."""
        start = bisect_left(self._order, turn)
        alike: dict[Hashable, list[Work]] = {}
        for other in self._order[start:]:
            work = self._begun.pop(other)
            alike.setdefault((work.task.kind, work.task.blob), []).append(work)
        del self._order[start:]
        chunks = [chunk for tasks in alike.values() for chunk in self._divided(tasks)]
        chunks.sort(key=lambda chunk: self._turns[chunk.tasks[0].node])
        self._chunk_of |= {task.node: chunk for chunk in chunks for task in chunk.tasks}
        self.planned |= dict.fromkeys(chunks)

    def _divided(self, works: Sequence[Work]) -> Iterator[TaskChunk]:
        """Yield chunks of nearly equal length."""
        total, kind, blob = len(works), works[0].task.kind, works[0].task.blob
        least, chunks = (STACKED_MIN, STACKED_CHUNKS) if self._stacks and kind != "init" else (1, ALONE_CHUNKS)
        most = min(CHUNK_MAX, max(1, self._bytes_max // max(1, blob.nbytes))) if blob is not None else CHUNK_MAX
        count = max(-(-total // most), min(total // least, chunks))
        for index in range(count):
            yield TaskChunk(works[total * index // count : total * (index + 1) // count])
