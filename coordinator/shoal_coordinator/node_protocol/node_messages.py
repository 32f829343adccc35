"""The answers to a node's messages, except reports (`report_pipeline`).

They are the same whether the node or a relay sends them. Answers are frames of `shoal.wire.codec`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fastapi import Response

from shoal.core.errors import InvalidPayload, Refused
from shoal.core.protocol.message import (
    Ack,
    Amendment,
    CoordinatorAlive,
    CoordinatorPing,
    Join,
    Leave,
    Stop,
    Task,
    TaskFailed,
    TaskId,
    TaskStatus,
)
from shoal.runtime.observability import tracing
from shoal.wire import codec
from shoal_coordinator.jobs.job_runner import JobRunner
from shoal_coordinator.node_protocol.byte_labels import mark_alive
from shoal_coordinator.node_protocol.held_polls import hold_poll
from shoal_coordinator.node_protocol.node_request import NodeRequest
from shoal_coordinator.node_protocol.poll_decision import HeldTask, JobPoll, PollReply, decide_poll
from shoal_coordinator.storage.crashpoints import crashpoint
from shoal_coordinator.updates import layout_mismatch

TERM_LEAP = 1000
"""Largest credible lead of a node's term: terms rise by one when nodes fail over or a coordinator starts."""


@dataclass(frozen=True)
class NodeProtocolHandler(NodeRequest):
    """The answers to one request of a node."""

    # In the middle of a task

    async def handle_status(self, message_in: TaskStatus) -> None:
        """Take note of where the node is."""
        runner = self._runner()
        if runner is None:
            return
        self.services.presence.activity[self.job, self.node].add_metrics(codec.plain(message_in.values))
        await runner.submit(replace(message_in, node=self.node))

    def handle_heartbeat(self, task: str, progress: float) -> None:
        """Note a node's progress. Raises `Refused` for an unknown job."""
        mark_alive(self.request, self.services.presence, self.node)
        record = self.services.jobs.records.get(self.job)
        if record is None:
            raise Refused(f"no job is called {self.job!r}", code="job.unknown", hint="poll for the task that stands")
        activity, runner = self.services.presence.activity[self.job, self.node], record.runner
        self._label(runner.hub.progress.version if runner else -1, "heartbeat")
        if activity.task is not None and f"{activity.task[0]}.{activity.task[1]}" == task:
            activity.progress = progress

    async def handle_failure(self, message_in: TaskFailed) -> Response:
        """Take note that a task cannot be done; the schedule decides who does it instead."""
        message = replace(message_in, node=self.node, error=message_in.error[:1000])
        runner = self._runner()
        if runner is None:
            return self.frame(Ack(message.task, False, "the job has ended"))
        await runner.gate.wait_consistent()
        task = runner.task_of(self.node)
        if task is not None and task.id == message.task:  # else the task was withdrawn
            self.services.presence.activity[self.job, self.node].record_failure(message.error)
        return self.frame(await runner.submit_for_ack(message, self.node))

    # Terms and status

    async def handle_ping(self, term: int) -> CoordinatorAlive:
        """Return the coordinator's term, above the given one. Raises `Refused` for an ended job or a term too high."""
        runner = self._runner()
        self._label(-1, "ping")
        if runner is None:
            raise self._job_over()
        runner.check_gossip()
        await runner.gate.wait_consistent()
        if term > runner.hub.tasks.term + TERM_LEAP:
            raise Refused(
                f"term {term} is too far above the job's, which is {runner.hub.tasks.term}",
                code="term.leap",
                hint="terms rise by one at a time; remove what the node keeps of this job",
            )
        if term >= runner.hub.tasks.term:
            await runner.submit(CoordinatorPing(self.node, term))
        return CoordinatorAlive(runner.hub.tasks.term)

    async def handle_join(self, gossip_rounds: TaskId | None) -> Response:
        """Let a node rejoin, and return its task."""
        runner = self._runner()
        self._label(-1, "join")
        if runner is None:
            return self.frame(Stop(self._job_over().message))
        if gossip_rounds is not None:
            runner.check_gossip()
        mark_alive(self.request, self.services.presence, self.node)
        self.services.trust_documents.set_participation(self.job, self.node)
        await runner.submit(Join(self.node, gossip_rounds, self.services.presence.node_info(self.node)))
        return await self._current_answer(runner)

    async def handle_poll(self) -> Response:
        """Return the present task at once."""
        runner = self._runner()
        if runner is None:
            return self.frame(Stop(self._job_over().message))
        mark_alive(self.request, self.services.presence, self.node)
        await self.decide(runner, None, waits=True)
        return await self._current_answer(runner)

    async def decide(
        self, runner: JobRunner, held: HeldTask | None, *, is_wanted: bool = True, waits: bool = False
    ) -> PollReply | None:
        """Return the reply to a poll, after the hub has taken what it must know before.

        Args:
            is_wanted: False if the node polls for other jobs only.
            waits: whether to wait for a hub that is busy. If not, the node is woken when it can be read.
        """
        presence, introduced = self.services.presence, False
        poll = JobPoll(presence.node_info(self.node), presence.drain_event(self.node), held, is_wanted)
        while True:
            if waits:
                await runner.gate.wait_consistent()
            if not runner.gate.is_consistent(self.node):
                return None
            decision = decide_poll(runner.hub, poll, is_introduced=introduced)
            if decision is None or isinstance(decision, PollReply):
                return decision
            await runner.submit(decision)
            introduced = True

    async def wait_for_task(self, held: HeldTask | None, wait_s: float) -> Response:
        """Return the node's task as soon as it differs from `held`; after `wait_s` seconds say that the coordinator is
        alive."""

        async def find_answer() -> Response | None:
            runner = self._runner()
            if runner is None:
                return self.frame(Stop(self._job_over().message))
            reply = await self.decide(runner, held, waits=True)
            return self.respond(runner, reply) if reply is not None else None

        answer = await hold_poll(self.request, self.services, self.node, wait_s, find_answer)
        if answer is None:
            runner = self._runner()
            answer = self.frame(CoordinatorAlive(runner.gate.term if runner is not None else 0))
        return answer

    def respond(self, runner: JobRunner, reply: PollReply) -> Response | None:
        """Return the response to a poll; None: the node knows already that its model differs from the job's."""
        message = reply.message
        if isinstance(message, Task):
            return self.task_response(runner, message, known=reply.is_amendment)
        if isinstance(message, Stop):
            if not self.services.presence.should_tell_mismatch(self.node, self.job):
                return None
            why = layout_mismatch.mismatch_reason(runner.hub, self.node, self.services.presence)
            message = Stop(why, model_differs=True)
        self._label(runner.hub.progress.version, "poll")
        return self.frame(message)

    async def _current_answer(self, runner: JobRunner) -> Response:
        await runner.gate.wait_consistent()
        reply = runner.hub.poll_reply(self.node)
        return self.task_response(runner, reply) if isinstance(reply, Task) else self.frame(reply)

    def task_response(self, runner: JobRunner, task: Task, *, known: bool = False) -> Response:
        """Return a task, with its blob if that is small; only the amendment if the node has the task."""
        self._label(task.version, "task")
        self.services.presence.activity[runner.name, task.node].start_task(task.id)
        runner.task_timers.sent(task.node, task.id)
        payload = b""
        if not known and task.blob is not None and task.blob.nbytes <= codec.INLINE_BYTES_MAX:
            payload = runner.blob_use.read_inline(task.blob)  # small, and just written: no thread is worth it
        crashpoint("task.answer")
        answer = self.frame(Amendment.of(task) if known else task, payload)
        if tracing.current.on and (parent := tracing.current.round(self.job, task.version)):
            answer.headers[tracing.HEADER] = parent
        return answer

    async def handle_leave(self) -> None:
        """Let the node leave the job and take its task back."""
        runner = self._runner()
        if runner is not None:
            await runner.submit(Leave(self.node))

    def _job_over(self) -> Refused:
        """Return that the job has ended, and why."""
        runner = self.services.jobs.job(self.job).runner
        why = runner.hub.progress.ends_after_round if runner is not None else ""
        return Refused(
            f"job {self.job} has ended{f': {why}' if why else ''}",
            code="job.over",
            hint="stop; keep the local model if you need it",
        )


def held_task(text: str) -> HeldTask:
    """Return a node's task and its revision, from `TERM.N` or `TERM.N.REVISION`. Raises `InvalidPayload`."""
    parts = text.split(".")
    if not (len(parts) in (2, 3) and all(part.isdecimal() for part in parts) and len(text) < 40):
        raise InvalidPayload(f"held={text[:40]!r} is not TERM.N.REVISION", code="request.invalid", hint="see /docs")
    term, n, revision = (*map(int, parts), 0)[:3]
    return (term, n), revision
