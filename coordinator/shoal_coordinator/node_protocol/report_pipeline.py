"""The pipeline that accepts a report: parse, check the task, store or journal the blob, check limits, submit.

A report is acknowledged when it is durable, and counts exactly once. A refusal changes nothing but what people read.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from fastapi import Response

from shoal.core.errors import InvalidPayload, StorageFailed
from shoal.core.protocol.message import Ack, BlobRef, Kind, Report, Task
from shoal.runtime.observability import tracing
from shoal.wire import codec
from shoal_coordinator.jobs.job_runner import JobRunner
from shoal_coordinator.node_protocol.byte_labels import mark_alive
from shoal_coordinator.node_protocol.node_request import NodeRequest, decode_frame
from shoal_coordinator.storage.blobs.remote_blobs import call_blobs
from shoal_coordinator.storage.crashpoints import crashpoint
from shoal_coordinator.telemetry import failures
from shoal_coordinator.telemetry.failures import Failure
from shoal_coordinator.updates.update_limits import check_limits
from shoal_coordinator.updates.uploads import ExpectedLayout

LEARNED: tuple[Kind, ...] = ("train", "gossip")
"""Kinds of tasks whose reports carry an update and its weight."""


@dataclass(frozen=True)
class ReportPipeline(NodeRequest):
    """The acceptance of one report."""

    async def handle_report(self, body: Callable[[], Awaitable[bytes]]) -> Response:
        """Take a report, once and for all: when the acknowledgement goes out, it is durable and counts exactly once."""
        mark_alive(self.request, self.services.presence, self.node)
        sent = tracing.parent_of(self.request.headers.get(tracing.HEADER, ""))
        with tracing.current.span("receive", sent, **{"shoal.job": self.job, "shoal.node": self.node}) as received:
            data = await body()
            with self.services.metrics.counting_refusals():
                return await self._parse_report(data, received)

    async def _parse_report(self, data: bytes, received: str) -> Response:
        runner = self.services.jobs.job(self.job).runner
        self._label(-1, "report")
        try:
            frame = decode_frame(data, self.job, Report)
        except InvalidPayload as error:
            task = runner.task_of(self.node) if runner is not None else None
            if runner is not None and task is not None:
                await self._publish_refusal(runner, task, error)
            raise
        assert isinstance(frame.message, Report)
        tracing.current.remember_parent((self.job, self.node, frame.message.task), received)
        return await self.accept_report(frame.message, frame.payload)

    async def accept_report(self, message_in: Report, payload: bytes) -> Response:
        """Accept a report whose head is valid."""
        # the credential says who it is, not the body
        message = message_in if message_in.node == self.node else replace(message_in, node=self.node)
        crashpoint("report.received")
        runner = self._runner()
        if runner is None:
            self.services.metrics.refused("job.ended")
            return self.frame(Ack(message.task, False, "the job has ended"))
        self._label(min(message.version, runner.hub.progress.version), "report")
        # a hub that is being restored knows of no task, and one that breaks now of too many
        await runner.gate.wait_consistent()
        task, answer = runner.task_of(self.node), runner.hub.reports.check(message)
        if answer is None:
            assert task is not None
            answer = await self._admit_report(runner, task, message, payload)
            if answer.counted:
                self.services.metrics.counted(self.job)
            else:
                self.services.metrics.refused("report.refused")
        elif not answer.counted:
            self.services.metrics.refused("task.superseded")
        crashpoint("report.answer")
        return self.frame(answer)

    async def _admit_report(self, runner: JobRunner, task: Task, message: Report, payload: bytes) -> Ack:
        """Check the body, journal the report and feed the hub. A refusal changes nothing but events."""
        body, expected = message.blob, runner.layouts.expected(task.kind)
        activity = self.services.presence.activity[runner.name, message.node]
        received = tracing.current.recall_parent((runner.name, message.node, message.task), keep=True)
        sent_at = activity.task_sent_at(task.id)  # before it counts: the next task may come before the answer
        was_stored = False
        runner.task_timers.begun(message.node, task.id, self.since)
        runner.task_timers.came(message.node, task.id)
        try:
            _check_kind(message, task)
            with runner.blob_use.pinned(body.digest if body else ""):
                inline = payload if body is not None and runner.uploads.is_journaled(task.kind, payload) else None
                if body is not None and inline is None:
                    with tracing.current.span("fsync", received):
                        was_stored = await self._store_blob(runner, body, expected, payload)
                with tracing.current.span("verify", received):
                    if body is not None and inline is not None:
                        norm = await runner.uploads.measure_inline(body, expected, inline)
                    else:
                        norm = await runner.uploads.measure_stored(message, expected)
                    if task.kind in LEARNED:
                        check_limits(runner.spec.limits, message, norm)
                crashpoint("report.checked")
                answer = await runner.submit_for_ack(message.with_norm(norm), message.node, inline)
        except InvalidPayload as error:
            if was_stored and body is not None:
                runner.blob_use.discard(body.digest)
            await self._publish_refusal(runner, task, error)
            raise
        if answer.counted:
            runner.uploads.mark_reported(message.node)
            weight = message.weight if task.kind in LEARNED else None
            activity.finish_task(task.id, sent_at, weight, codec.plain(message.metrics))
        return answer

    async def _store_blob(
        self, runner: JobRunner, blob: BlobRef | None, expected: ExpectedLayout | None, payload: bytes
    ) -> bool:
        """Keep a report's body as a file, unless there is one; return whether it was new."""
        if blob is not None and payload and not await call_blobs(runner.blobs, runner.blobs.has, blob.digest):
            await runner.uploads.store_inline(blob, expected, payload)
            return True
        return blob is not None and runner.blobs.far and await runner.uploads.collect(self.node, blob, expected)

    async def _publish_refusal(self, runner: JobRunner, task: Task, error: InvalidPayload) -> None:
        """Show a refusal to people, unless the same was shown a moment ago."""
        activity = self.services.presence.activity[runner.name, self.node]
        if activity.record_failure(error.message):
            with suppress(StorageFailed):  # a note more or less: the refusal itself is what the node must hear
                text = f"{self.node}: {error.message}{activity.suppressed_text()}"
                await runner.feed.record_event("refusal", text, self.node)
                await self._store_failure(failures.from_refusal(task, error.message))

    async def _store_failure(self, failure: Failure) -> None:
        """Keep a failure that follows from no event of the journal."""
        now, services = time.time(), self.services
        for item in await services.database.write(lambda c: failures.store(c, self.job, now, failure)):
            services.event_bus.publish(item)


def _check_kind(message: Report, task: Task) -> None:
    """Raise `InvalidPayload` unless a report has the form that its task asks for."""
    if message.version != task.version:
        raise InvalidPayload(
            f"a report on version {message.version}, but the task is of version {task.version}", code="head.version"
        )
    if message.blob is None and task.kind != "evaluate":
        raise InvalidPayload("the task asks for a model, but the report has none", code="payload.missing")
    if message.blob is not None and task.kind == "evaluate":
        raise InvalidPayload("the task asks for metrics only", code="payload.unwanted", hint="send no body")
