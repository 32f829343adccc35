"""The delivery of a worker's answers: one report or failure at a time, until the coordinator has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from shoal.core.errors import Cancelled, InvalidPayload, NotAllowed, Refused, ShoalError, StorageFailed
from shoal.core.protocol.machine import ReportRejected
from shoal.core.protocol.message import Ack, Report, TaskFailed, TaskStatus
from shoal.runtime.http.retry import call_with_retries
from shoal.runtime.observability import tracing
from shoal.runtime.threads import in_thread
from shoal.runtime.worker_ports import CancelToken, Spawn, WorkerPorts, task_label, trace_parent


@dataclass
class _Delivery:
    """A delivery in progress."""

    message: Report | TaskFailed
    task: asyncio.Task[None]


class ReportDelivery:
    """The sender of one job's reports, failures and statuses. `submit` receives the answer as an event."""

    def __init__(
        self, job: str, ports: WorkerPorts, submit: Callable[[Ack | ReportRejected], None], spawn: Spawn
    ) -> None:
        self._job, self._ports, self._submit, self._spawn = job, ports, submit, spawn
        self._running: _Delivery | None = None
        self._status_task: asyncio.Task[None] | None = None
        self.log: Any = structlog.get_logger("shoal.pump").bind(job=job)

    def deliver(self, message: Report | TaskFailed) -> None:
        """Start to deliver this answer, unless that is under way or its answer is queued."""
        if self._running is not None and self._running.message is message:
            return
        self._running = _Delivery(message, self._spawn(self._deliver_until_answered(message)))

    def stop_unless(self, wanted: object) -> None:
        """Stop the delivery of an answer that is not `wanted` any more."""
        if self._running is not None and self._running.message is not wanted:
            self._running.task.cancel()
            self._running = None

    def restart(self) -> None:
        """Begin the present delivery again, because the route to the coordinator has changed."""
        if self._running is not None:
            message = self._running.message
            self.stop_unless(None)
            self.deliver(message)

    def send_status(self, message: TaskStatus) -> None:
        """Send a status once, in place of an earlier one that is still on its way."""
        if self._status_task is not None:
            self._status_task.cancel()
        self._status_task = self._spawn(self._send_status_once(message))

    async def _send_status_once(self, message: TaskStatus) -> None:
        try:
            await in_thread(partial(self._ports.transport.status, self._job, message))
        except NotAllowed:
            raise
        except ShoalError as error:
            self.log.debug("status lost", why=error.message)

    async def _deliver_until_answered(self, message: Report | TaskFailed) -> None:
        structlog.contextvars.bind_contextvars(round=message.version if isinstance(message, Report) else None)
        answer: Ack | ReportRejected
        cancel = CancelToken()
        try:
            self._ports.at("report.sending")
            answer = await call_with_retries(self._ports.backoff, partial(self._send, message, cancel))
            self._ports.at("report.answered")
            self.log.info("counted" if answer.counted else f"not counted: {answer.why}", task=task_label(message.task))
        except Cancelled:
            return
        except (Refused, InvalidPayload, StorageFailed) as error:
            answer = self._on_refused(message, error)
        finally:
            cancel.cancel()  # a call in a thread goes on when this coroutine is cancelled
        self._submit(answer)

    def _send(self, message: Report | TaskFailed, cancel: CancelToken) -> Ack:
        """Try once to deliver; runs in a thread."""
        transport = self._ports.transport
        if isinstance(message, TaskFailed):
            return transport.fail(self._job, message)
        blob = self._ports.state.report_blob(message.blob) if message.blob is not None else None
        about: dict[str, tracing.Value] = {"shoal.job": self._job, "shoal.node": message.node}
        with tracing.current.span("send", trace_parent(self._job, message.task), **about):
            return transport.report(self._job, message, blob, cancel.cancelled)

    def _on_refused(self, message: Report | TaskFailed, error: ShoalError) -> Ack | ReportRejected:
        """Return the event for an answer that the coordinator refuses for good, or whose blob is lost."""
        self.log.warning("refused", task=task_label(message.task), code=error.code, why=error.message, hint=error.hint)
        if isinstance(message, TaskFailed) or error.code == "task.foreign":
            return Ack(message.task, False, error.message)
        return ReportRejected(message.task, error.message)
