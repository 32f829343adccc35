"""Ports of a worker's pump: the transport, durable state, and running work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from shoal.core.errors import Cancelled
from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import TaskResult
from shoal.core.protocol.message import (
    Ack,
    BlobRef,
    Message,
    Report,
    Task,
    TaskFailed,
    TaskId,
    TaskStatus,
)
from shoal.runtime.durable_files import CrashPoint, no_crash
from shoal.runtime.http.retry import Backoff
from shoal.runtime.observability import tracing
from shoal.runtime.threads import SerialExecutor
from shoal.wire.payload import ByteSource

BEAT_S = 2.0

HeldTask = tuple[int, ...]
"""A task in hand, as a poll says it: (term, n), or (term, n, revision) once it was amended."""

IsCancelled = Callable[[], bool]
"""Returns whether a call's result is not wanted any more; the call then ends soon with `Cancelled`."""

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Runs a coroutine beside the machine, until its pump ends."""


class Transport(Protocol):
    """The connection to the coordinator, for all jobs of a node. Every call but `inline_blob` blocks. Any thread may
    call. Raises `ShoalError`; `Unreachable`, and any error with `retry_after_s`, mean that the call may be repeated."""

    def poll(self, held: Mapping[str, HeldTask]) -> tuple[str, Message] | None:
        """Return (job, message) when the current task differs from the one held; None when the wait ends."""
        ...

    def inline_blob(self, job: str, ref: BlobRef) -> Slots | None:
        """Return the blob that came with its task; None if it must be fetched."""
        ...

    def fetch_blob(self, job: str, ref: BlobRef, cancelled: IsCancelled) -> Slots:
        """Fetch the blob of a task."""
        ...

    def report(self, job: str, report: Report, blob: ByteSource | None, cancelled: IsCancelled) -> Ack:
        """Deliver a report with its update."""
        ...

    def fail(self, job: str, failure: TaskFailed) -> Ack: ...

    def status(self, job: str, status: TaskStatus) -> None: ...

    def heartbeat(self, job: str, task: TaskId, fraction: float) -> None: ...

    def leave(self) -> None: ...


class DurableState(Protocol):
    """The durable state of a node. Every call blocks, is durable on return, and raises `StorageFailed`."""

    def save_report(self, report: Report | None, pending: BlobRef | None) -> None:
        """Store the report to deliver and the private memory that it would commit; None: delete it."""
        ...

    def commit_memory(self, ref: BlobRef) -> None:
        """Commit this private memory."""
        ...

    def report_blob(self, ref: BlobRef) -> ByteSource:
        """Return the update of the stored report."""
        ...


class CancelToken:
    """The progress and cancellation of running work. Shared between threads."""

    def __init__(self) -> None:
        self.fraction = 0.0
        self.amended = asyncio.Event()
        self._cancelled = threading.Event()

    def progress(self, fraction: float) -> None:
        """Record progress (a `Progress`). Raises `Cancelled` once the task was withdrawn."""
        self.fraction = min(max(float(fraction), 0.0), 1.0)
        if self._cancelled.is_set():
            raise Cancelled("the task was withdrawn")

    def cancel(self) -> None:
        self._cancelled.set()

    def cancelled(self) -> bool:
        return self._cancelled.is_set()


class TaskRun(Protocol):
    """A task that has begun. An error other than `Cancelled` fails the task."""

    def run_piece(self, task: Task) -> TaskResult | TaskStatus | None:
        """Do the next piece of the task in its current revision; return the result, a status to send, or None.

        Runs in the executor.
        """
        ...

    def can_continue(self, task: Task) -> bool:
        """Return whether the next piece need not wait for an amendment."""
        ...


StartTask = Callable[[Task, Slots, Slots, BlobRef | None, CancelToken], TaskRun]
"""Starts a task: `(task, its opened blob, its opened reference model, private memory, token)`. Runs in the executor."""


@dataclass(frozen=True)
class WorkerPorts:
    """The surroundings of a worker's pump. `at` is called at named crash points; `clock` returns monotonic seconds."""

    transport: Transport
    state: DurableState
    start_task: StartTask
    executor: SerialExecutor
    clock: Callable[[], float]
    backoff: Backoff = field(default_factory=Backoff)
    heartbeat_s: float = BEAT_S
    at: CrashPoint = no_crash
    tracebacks: bool = True
    """True if a failure's traceback is sent to the coordinator."""


class JobPump(Protocol):
    """The pump of one job, as the process of a node drives it."""

    @property
    def held(self) -> TaskId | None:
        """Return the task that the node works on or answers. Any thread may call."""
        ...

    @property
    def revision(self) -> int:
        """Return that task's revision; `ANSWERED` once its answer exists. Any thread may call."""
        ...

    @property
    def fetching(self) -> HeldTask | None:
        """Return the task whose model is fetched before the node decides whether to take it. Any thread may call."""
        ...

    @property
    def stopped(self) -> str:
        """Return why no more tasks are accepted; empty while they are."""
        ...

    async def submit(self, event: Any) -> bool:
        """Feed an event and wait until it is applied; return False if it changed nothing."""
        ...

    async def leave(self, *, train_s: float, upload_s: float) -> None:
        """Shut down: wait `train_s` for running work and `upload_s` for an answer; accept no more tasks."""
        ...

    async def run(self) -> str:
        """Run until the job ends here; return why it did. Raises errors that end the node."""
        ...


def task_label(task: TaskId | None) -> str:
    """Return a task's id as in paths and logs."""
    return f"{task[0]}.{task[1]}" if task is not None else "none"


def trace_parent(job: str, task: TaskId) -> str:
    """Return the trace in which that task was given."""
    return tracing.current.recall_parent((job, task), keep=True)
