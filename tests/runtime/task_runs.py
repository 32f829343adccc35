"""Tasks in hand, for pumps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import TaskResult
from shoal.core.protocol.message import BlobRef, Task
from shoal.runtime.worker_ports import CancelToken, StartTask

BODY, MEMORY = BlobRef("a" * 64, 10), BlobRef("b" * 64, 20)


def task(n: int, version: int = 0) -> Task:
    return Task((1, n), "a", "train", version, n, BODY)


@dataclass
class InOnePiece:
    """Work that comes to its result at once."""

    do: Callable[[], TaskResult]

    def run_piece(self, task: Task) -> TaskResult:
        return self.do()

    def can_continue(self, task: Task) -> bool:
        return True


def begins(do: Callable[[Task, Slots, BlobRef | None, CancelToken], TaskResult]) -> StartTask:
    """A task executor for a pump, from a function that does a task at once."""

    def begin(task: Task, slots: Slots, base: Slots, memory: BlobRef | None, watch: CancelToken) -> InOnePiece:
        return InOnePiece(partial(do, task, slots, memory, watch))

    return begin
