"""The execution of a worker's task: fetch its blobs, train in the executor, piece by piece, and return the result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from shoal.core.errors import Cancelled, NotAllowed, ShoalError
from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import TaskDone, TaskProgress, TaskResult, Work
from shoal.core.protocol.message import BlobRef, Phase, Task, TaskStatus
from shoal.runtime.http.retry import call_with_retries
from shoal.runtime.observability import tracing
from shoal.runtime.observability.tracebacks import traceback_text_of
from shoal.runtime.threads import in_thread
from shoal.runtime.worker_ports import CancelToken, Spawn, TaskRun, WorkerPorts, task_label, trace_parent

ERROR_CHARACTERS_MAX = 400
DOWNLOAD: Phase = "download"

OnFetched = Callable[[Task, Slots, Slots], Awaitable[None]]
"""Receives a task with its opened blob and reference model, before it is begun."""


class BlobFetcher:
    """The blobs of one job's tasks, fetched until they are there."""

    def __init__(self, job: str, ports: WorkerPorts) -> None:
        self._job, self._ports = job, ports

    async def fetch(self, ref: BlobRef | None, cancel: CancelToken) -> Slots:
        """Return an opened blob; empty for None. Raises `ShoalError`."""
        if ref is None:
            return {}
        transport = self._ports.transport
        slots = transport.inline_blob(self._job, ref)
        if slots is None:
            slots = await call_with_retries(
                self._ports.backoff, partial(transport.fetch_blob, self._job, ref, cancel.cancelled)
            )
        return slots


async def ignore_fetched(_task: Task, _slots: Slots, _reference: Slots) -> None:
    """Ignore the blobs of a task."""


@dataclass
class _RunningTask:
    """A task that is being done."""

    work: Task
    cancel: CancelToken
    task: asyncio.Task[None] | None = None


class TaskExecution:
    """The task of one job that is being done. `submit` receives its progress and its result as events."""

    def __init__(
        self,
        job: str,
        ports: WorkerPorts,
        submit: Callable[[TaskDone | TaskProgress], None],
        spawn: Spawn,
        blobs: BlobFetcher,
        on_fetched: OnFetched = ignore_fetched,
    ) -> None:
        self._job, self._ports, self._submit, self._spawn = job, ports, submit, spawn
        self._blobs, self._on_fetched = blobs, on_fetched
        self._running: _RunningTask | None = None
        self.log: Any = structlog.get_logger("shoal.pump").bind(job=job)

    def start(self, work: Work) -> None:
        running = self._running = _RunningTask(work.task, CancelToken())
        running.task = self._spawn(self._run(work, running))

    def amend(self, task: Task) -> None:
        """Let the running task continue as amended."""
        if self._running is not None:
            self._running.work = task
            self._running.cancel.amended.set()

    def stop(self) -> None:
        """Withdraw the running task; its result is dropped."""
        running, self._running = self._running, None
        if running is not None and running.task is not None:
            self.log.info("task withdrawn", task=task_label(running.work.id))
            running.cancel.cancel()
            running.task.cancel()

    async def _run(self, work: Work, running: _RunningTask) -> None:
        """Fetch blobs, run the task and feed its result; send heartbeats meanwhile."""
        task, cancel, phase = work.task, running.cancel, DOWNLOAD
        structlog.contextvars.bind_contextvars(round=task.version)
        self.log.info("task started", kind=task.kind, task=task_label(task.id))
        beats = self._spawn(self._send_heartbeats(task, cancel))
        about: dict[str, tracing.Value] = {"shoal.job": self._job, "shoal.node": task.node}
        parent, about = trace_parent(self._job, task.id), about | {"shoal.version": task.version}
        try:
            with tracing.current.span("receive", parent, **about):
                slots = await self._blobs.fetch(task.blob, cancel)
                reference = await self._blobs.fetch(task.reference, cancel)
                await self._on_fetched(task, slots, reference)
            phase = task.kind
            begin = partial(self._ports.start_task, task, slots, reference, work.memory, cancel)
            with tracing.current.span("evaluate" if phase == "evaluate" else "train", parent, **about):
                done = TaskDone(task.id, await self._run_pieces(begin, running))
        except (Cancelled, asyncio.CancelledError):
            return
        except NotAllowed:
            raise
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the hub must hear of it
            traceback = traceback_text_of(error) if self._ports.tracebacks else ""
            done = TaskDone(task.id, error=one_line(error), phase=phase, traceback=traceback)
            self.log.warning("task failed", task=task_label(task.id), why=done.error)
        finally:
            beats.cancel()
            cancel.cancel()  # a call in a thread goes on when this coroutine is cancelled
        self._submit(done)

    async def _run_pieces(self, begin: Callable[[], TaskRun], running: _RunningTask) -> TaskResult:
        """Run pieces in the executor until there is a result."""
        execute, cancel = self._ports.executor.run, running.cancel
        run, made = await execute(partial(_begin, begin, running))
        while not isinstance(made, TaskResult):
            if made is not None:
                self._submit(TaskProgress(made))
            while not run.can_continue(running.work):
                cancel.amended.clear()
                await cancel.amended.wait()
            made = await execute(partial(_run_piece, run, running))
        return made

    async def _send_heartbeats(self, task: Task, cancel: CancelToken) -> None:
        """Send progress every `heartbeat_s` seconds; a lost heartbeat does not matter."""
        while task.kind != "gossip":  # the coordinator does not wait for that
            await asyncio.sleep(self._ports.heartbeat_s)
            try:
                await in_thread(partial(self._ports.transport.heartbeat, self._job, task.id, cancel.fraction))
            except NotAllowed:
                raise
            except ShoalError as error:
                self.log.debug("heartbeat lost", why=error.message)


def _begin(begin: Callable[[], TaskRun], running: _RunningTask) -> tuple[TaskRun, TaskResult | TaskStatus | None]:
    """Start the task and run its first piece; runs in the executor."""
    run = begin()
    return run, _run_piece(run, running)


def _run_piece(run: TaskRun, running: _RunningTask) -> TaskResult | TaskStatus | None:
    """Run one piece of the task in its current revision; runs in the executor."""
    running.cancel.progress(running.cancel.fraction)
    return run.run_piece(running.work)


def one_line(error: BaseException) -> str:
    """Return an error as one line without control characters, shortened before its hint."""
    if isinstance(error, ShoalError):
        text, hint = _plain(error.message), f" ({_plain(error.hint)})" if error.hint else ""
    else:
        text, hint = _plain(f"{type(error).__name__}: {error}"), ""
    return (text[: max(0, ERROR_CHARACTERS_MAX - len(hint))] + hint)[:ERROR_CHARACTERS_MAX] or "unknown error"


def _plain(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
