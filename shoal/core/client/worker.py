"""The edge client as a state machine.

state       it holds                       it sends at each alarm     it leaves when
idle        nothing                        Poll                       a task comes
working     a task, in the background      its last TaskStatus,       TaskDone comes, or the task is superseded
                                               or Poll (a sign of life)
answering   a report or a failure          the answer again           it is acknowledged, or a newer task comes
                (a report that the hub refuses becomes a failure)

A newer task supersedes an older one; an older one is ignored, also when it is over already. The node's private memory
after a task is *pending* until the report was acknowledged as counted; a report that came too late leaves the memory
as it was. While memory is pending no task is begun, because its memory is not known yet: the acknowledgement comes
first, and the poll that follows it brings the task again.
"""

from __future__ import annotations

from dataclasses import replace

from shoal.core.job.settings_change import node_settings
from shoal.core.protocol.machine import (
    HUB,
    Amend,
    Cancel,
    Effect,
    Event,
    Memory,
    ReportRejected,
    Save,
    Send,
    TaskDone,
    TaskProgress,
    TaskResult,
    Timer,
    Wake,
    Work,
)
from shoal.core.protocol.message import (
    Ack,
    Amendment,
    BlobRef,
    Join,
    Leave,
    Metrics,
    NoTask,
    Poll,
    Report,
    Stop,
    Task,
    TaskFailed,
    TaskId,
    TaskStatus,
)


class Worker:
    """One node's part in one job. `memory` is its committed private memory, `said` an answer not yet acknowledged."""

    def __init__(self, node: str, *, heartbeat_s: float = 5.0, memory: BlobRef | None = None) -> None:
        self.node, self.heartbeat_s, self.memory = node, heartbeat_s, memory
        self.task: Task | None = None
        self.status: TaskStatus | None = None
        self.unacknowledged: Report | TaskFailed | None = None
        self.pending: BlobRef | None = None
        self.last_task: TaskId = (-1, -1)  # the newest task that has been dealt with
        self.settings: Metrics = {}
        """Settings that the last task gave other values, by their keys."""
        self.is_known = False
        self.stopped = ""

    def start(self, now: float) -> list[Effect]:
        """Say hello. After a restart with a spooled answer, call `resume` first."""
        return [
            Send(HUB, Join(self.node)),
            *([Send(HUB, self.unacknowledged)] if self.unacknowledged else []),
            Wake(now + self.heartbeat_s),
        ]

    def restore_answer(self, answer: Report | TaskFailed, pending: BlobRef | None) -> None:
        """Take up an answer that an earlier process could not deliver."""
        self.unacknowledged, self.pending = answer, pending

    def on(self, event: Event, now: float) -> list[Effect]:  # noqa: PLR0911 - one line for each event
        """Take one event and say what follows from it."""
        if self.stopped:
            return []
        match event:
            case Task():
                self.is_known = True
                return self._take(event)
            case Amendment():
                return self._amend(event)
            case NoTask():
                self.is_known = True
                return self._idle(event)
            case Ack():
                return self._acknowledged(event)
            case TaskProgress():
                return self._progress(event)
            case TaskDone():
                return self._done(event)
            case ReportRejected():
                return self._rejected(event)
            case Timer():
                return [
                    Send(HUB, self.unacknowledged or self.status or self._hello()),
                    Wake(now + self.heartbeat_s),
                ]
            case Stop():
                return self._stop(event)
            case Leave():
                return self._leave()
        return []

    @property
    def is_working(self) -> bool:
        return self.task is not None and self.unacknowledged is None

    def _hello(self) -> Join | Poll:
        """Return a sign of life; until the hub has answered one, a Join, which says that this process is new."""
        return Poll(self.node) if self.is_known else Join(self.node)

    def _take(self, task: Task) -> list[Effect]:
        if self.task is not None and task.id == self.task.id:
            return self._amend(Amendment.of(task))
        if task.id <= self._current() or self.pending is not None:
            return []
        cancel = [Cancel(self.task.id)] if self.task is not None and self.is_working else []
        self.task, self.status, self.unacknowledged, self.pending = task, None, None, None
        if task.kind in ("train", "gossip"):
            self.settings = node_settings(task.numbers)
        return [*cancel, Work(task, self.memory)]

    def _amend(self, amended: Amendment) -> list[Effect]:
        """Go on with the task as it reads now. One that is not held will come whole at the next poll."""
        task = self.task
        if task is None or amended.task != task.id or amended.revision <= task.revision or not self.is_working:
            return []
        self.task = replace(
            task, revision=amended.revision, recall=amended.recall, checks_allowed=amended.checks_allowed
        )
        return [Amend(self.task)]

    def _current(self) -> TaskId:
        if self.task is not None:
            return self.task.id
        return self.unacknowledged.task if self.unacknowledged is not None else self.last_task

    def _idle(self, idle: NoTask) -> list[Effect]:
        """Cancel work on a task that the hub has withdrawn."""
        if self.task is None or not self.is_working or self.task.id > idle.newest_task:
            return []
        self.last_task, self.task, self.status = self.task.id, None, None
        return [Cancel(self.last_task)]

    def _progress(self, progress: TaskProgress) -> list[Effect]:
        """Tell how far the work is; it is told again at each alarm, until the work is done."""
        if self.task is None or progress.status.task != self.task.id or not self.is_working:
            return []
        self.status = progress.status
        return [Send(HUB, self.status)]

    def _done(self, done: TaskDone) -> list[Effect]:
        if self.task is None or done.task != self.task.id or self.unacknowledged is not None:
            return []
        if done.result is None:
            self.unacknowledged = TaskFailed(self.node, done.task, done.error, done.phase, done.traceback)
        else:
            self.unacknowledged = self._report(self.task, done.result)
            self.pending = done.result.memory
        self.status = None
        return [Send(HUB, self.unacknowledged)]

    def _rejected(self, event: ReportRejected) -> list[Effect]:
        """Report the task as failed, because its report can never count, so that the hub does not wait for it."""
        if not isinstance(self.unacknowledged, Report) or self.unacknowledged.task != event.task:
            return []
        self.unacknowledged, self.pending = (
            TaskFailed(self.node, event.task, f"report refused: {event.why}", "upload"),
            None,
        )
        return [Send(HUB, self.unacknowledged)]

    def _report(self, task: Task, result: TaskResult) -> Report:
        return Report(self.node, task.id, task.version, result.weight, result.blob, result.metrics)

    def _acknowledged(self, ack: Ack) -> list[Effect]:
        if self.unacknowledged is None or ack.task != self.unacknowledged.task:
            return []
        commit = self.pending if ack.counted and isinstance(self.unacknowledged, Report) else None
        self.last_task, self.task, self.unacknowledged, self.pending = ack.task, None, None, None
        effects: list[Effect] = [Send(HUB, self._hello())]
        if commit is not None:
            self.memory = commit
            effects.insert(0, Save(Memory(commit)))
        return effects

    def _stop(self, stop: Stop) -> list[Effect]:
        cancel: list[Effect] = [Cancel(self.task.id)] if self.task is not None and self.is_working else []
        self.stopped, self.task, self.unacknowledged, self.pending = stop.why or "stopped", None, None, None
        return cancel

    def drop_work(self, before: TaskId) -> None:
        """Drop the current task and unsent messages, and ignore tasks up to `before`."""
        self.task, self.status, self.unacknowledged, self.pending = None, None, None, None
        self.last_task = max(self.last_task, before)

    def _leave(self) -> list[Effect]:
        """Hand the task back, because the process ends. A ready answer is sent first, and stays in the outbox."""
        cancel: list[Effect] = [Cancel(self.task.id)] if self.task is not None and self.is_working else []
        last: list[Effect] = [Send(HUB, self.unacknowledged)] if self.unacknowledged is not None else []
        self.stopped = "left"
        return [*cancel, *last, Send(HUB, Leave(self.node))]
