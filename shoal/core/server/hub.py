"""The coordinator's state machine of one job.

    phase       what happens                                                 next
    waiting     one member makes an initial model, or that of a new stage    running
    running     the schedule asks and closes; each close makes a version     evaluating, after the last version
    evaluating  all members measure the final model                          done, when all have answered or time is up
    done        every poll is answered with Stop
    stopped     the same, by an operator

A job can be paused in any phase: the hub makes no new tasks, but reports still count. In the modes gossip and
returning, `Handover` decides in place of the schedule.

A node has at most one current task, until its report is durable, the task fails, a closed version supersedes it, or the
node leaves. A *lost* node keeps its task: the hub does not wait for it, but its report counts if it comes before the
version closes. Polls repeat the current task, so that a lost answer, a restarted node and a restarted coordinator are
one case.

The state is small and can be serialized (`snapshot`), because models are blob references. It does not
contain the reports since the last version: after a crash, the journal's events since the last snapshot are replayed in
their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.errors import InvalidJob
from shoal.core.job.job_plan import JobPlan
from shoal.core.protocol.machine import Effect, Event, NodeLost, Restarted, Send, Timer
from shoal.core.protocol.message import (
    Ack,
    Blobs,
    ChangeSettings,
    CoordinatorAlive,
    CoordinatorPing,
    DrainNode,
    Join,
    Leave,
    Message,
    NoTask,
    Pause,
    Poll,
    Report,
    Resume,
    Stop,
    SwitchMode,
    TaskFailed,
    TaskStatus,
)
from shoal.core.scheduling.schedule import Schedule
from shoal.core.server.decision_loop import DecisionLoop
from shoal.core.server.handover import Handover
from shoal.core.server.hub_state import HubState
from shoal.core.server.report_handler import ReportHandler
from shoal.core.server.round_control import RoundControl
from shoal.core.server.update_folder import UpdateFolder


class Hub:
    """One job's coordinator. `on` takes events; `blobs` stores models and updates.

    Feed a hub that is made from a snapshot the journal's later events, then `Restarted`.
    """

    def __init__(
        self,
        plan: JobPlan,
        algorithm: Algorithm,
        schedule: Schedule,
        blobs: Blobs,
        snapshot: Mapping[str, Any] | None = None,
    ) -> None:
        self.state = state = HubState(plan, algorithm, schedule, blobs, snapshot)
        self.settings, self.progress, self.store = state.settings, state.progress, state.store
        self.roster, self.tasks, self.eligibility = state.roster, state.tasks, state.eligibility
        self.folder = UpdateFolder(state)
        self.rounds = RoundControl(state, self.folder)
        self.handover = Handover(state, self.rounds, self.folder)
        self.reports = ReportHandler(state, self.rounds, self.handover, self.folder)
        self.decisions = DecisionLoop(state, self.rounds, self.handover, self.folder)
        self._handlers: dict[type, Callable[[Any, float], list[Effect]]] = {
            Join: self._join,
            Poll: self._poll,
            CoordinatorPing: self._ping,
            TaskStatus: self._status,
            Report: self.reports.handle,
            TaskFailed: self._fail,
            Leave: self._leave,
            NodeLost: self._lose,
            Pause: self._pause,
            Resume: self._resume,
            Stop: self._stop,
            SwitchMode: self.handover.switch,
            DrainNode: self._drain,
            ChangeSettings: self._change_settings,
            Restarted: self._restart,
            Timer: lambda _event, _now: [],
        }

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON values: complete after an `on` that returned a `Save`."""
        return self.state.snapshot()

    def on(self, event: Event, now: float) -> list[Effect]:
        """Take one event and return what follows."""
        effects = [*self._end_suspensions(now), *self._handlers[type(event)](event, now)]
        effects += self.decisions.settle(now)
        if isinstance(event, Report):
            effects = self._correct_ack(event, effects)
        self.state.is_idle = self.state.has_no_work
        return effects

    def _correct_ack(self, report: Report, effects: list[Effect]) -> list[Effect]:
        """Return the effects with the answer that stands, if a report was excluded by the close that it caused."""
        member = self.roster.get(report.node)
        last = member.last_ack if member is not None else None
        if last is None or last.counted or last.task != report.task:
            return effects
        answers = [isinstance(effect, Send) and isinstance(effect.message, Ack) for effect in effects]
        return [Send(report.node, last) if answer else one for one, answer in zip(effects, answers, strict=True)]

    def _end_suspensions(self, now: float) -> list[Effect]:
        if not self.roster.has_members_set_aside:
            return []
        text, found = "{} is asked again, after {} failures in a row", self.roster.end_suspensions(now)
        return [self.state.event("node", text.format(one.node, one.failures), one.node) for one in found]

    # Polls

    def poll_reply(self, node: str) -> Message:
        """Return the answer to a poll of that node. Changes nothing."""
        if self.progress.is_over:
            return Stop(self.progress.ends_after_round or f"the job is {self.progress.phase}")
        if node in self.eligibility.foreign_models:
            return Stop(self.eligibility.foreign_models[node], model_differs=True)
        member = self.roster.get(node)
        if member is not None and member.task is not None:
            return member.task
        return NoTask(self.tasks.newest)

    def is_poll_repeated(self, node: str) -> bool:
        """Return True if a poll of that node would change nothing, so that it need not be journaled."""
        member = self.roster.get(node)
        return self.progress.is_over or (member is not None and member.is_present)

    def _reply(self, node: str) -> Send:
        return Send(node, self.poll_reply(node))

    def _poll(self, event: Poll, now: float) -> list[Effect]:
        if self.is_poll_repeated(event.node):
            return [self._reply(event.node)]
        known = self.roster.get(event.node) is not None
        self.roster.admit(event.node, event.node_info)
        text = f"{event.node} is heard again" if known else f"{event.node} joined"
        return [self.state.event("node", text, event.node), self._reply(event.node)]

    # Nodes

    def _join(self, event: Join, now: float) -> list[Effect]:
        node = event.node
        if self.progress.is_over:
            return [self._reply(node)]
        known = self.roster.get(node)
        refused = event.gossip_rounds is not None and known is not None and known.is_gossiping
        if refused and known is not None and known.is_set_aside:
            return [self._reply(node)]  # it interrupts the other nodes no more
        if event.gossip_rounds and not self.eligibility.may_hand_back(node, event.node_info):
            self.roster.admit(node, event.node_info)
            return [self._reply(node)]
        back = self.handover.ask_back(f"{node} has carried on without the server", now) if event.gossip_rounds else []
        member, state = self.roster.admit(node, event.node_info), self.state
        known_ = node in state.round.failed or node in state.round.norms
        if event.gossip_rounds and member.task is None and not known_:
            self.handover.cancel_merge_check()
        elif event.gossip_rounds and state.merge_check is not None and state.merge_check.excuse(node):
            member.task = None  # it is among peers, and does not know yet that its report counts
        member.is_gossiping = False
        if not refused:
            member.clear_failures()
        event_ = self.state.event("node", f"{node} joined" if known is None else f"{node} is back", node)
        asked = self.handover.ask_excluded(member, now) if event.gossip_rounds else []
        return [*back, event_, *(asked or [self._reply(node)])]

    def _ping(self, event: CoordinatorPing, now: float) -> list[Effect]:
        """Answer a peer that is without us. It obeys only a term above its own, so raise ours above that."""
        if self.progress.is_over:
            return [self._reply(event.node)]
        again = self._begin_term(event.term + 1) if event.term >= self.tasks.term else []
        return [Send(event.node, CoordinatorAlive(self.tasks.term)), *again]

    def _begin_term(self, term: int) -> list[Effect]:
        """Start a term. Peers obey no older one, so give their tasks again."""
        tasks = self.tasks
        tasks.term, tasks.issued = term, 0
        effects: list[Effect] = []
        for member in self.roster.all_members():
            if member.task is not None and member.task.kind == "gossip":
                member.assign(replace(member.task, id=tasks.next_id()))
                effects.append(self._reply(member.node))
        return effects

    def _status(self, event: TaskStatus, now: float) -> list[Effect]:
        """Store a node's status. A late or repeated one changes nothing, but its sender may lack the last amendment."""
        member = self.roster.get(event.node)
        if member is None or member.task is None or member.task.id != event.task:
            return [self._reply(event.node)]
        self.roster.admit(event.node)
        if member.status is None or member.status.check < event.check:
            member.status = event
        amendment = member.amendment_for(event)
        return [Send(event.node, amendment)] if amendment is not None else []

    def _fail(self, event: TaskFailed, now: float) -> list[Effect]:
        member = self.roster.get(event.node)
        if member is None or member.task is None or member.task.id != event.task:
            return [Send(event.node, Ack(event.task, False, "nothing of that kind stands"))]
        self.roster.admit(event.node)
        ack = Ack(event.task, False, f"failure noted: {event.error}")
        failed = self.state.event("warning", f"{event.node} failed: {event.error}", event.node)
        set_aside = self.folder.count_failure(member, event.error, now)
        member.is_gossiping = member.task.kind == "gossip" and event.phase == "upload"  # the hub refused its model
        member.close_task(ack)
        return [failed, *set_aside, Send(event.node, ack)]

    def _leave(self, event: Leave, now: float) -> list[Effect]:
        member = self.roster.get(event.node)
        if member is not None:
            member.has_left = True
            self.state.latest_means.drop(event.node)
        if member is None or not (member.is_present or member.task is not None):  # repeated, or long lost
            return []
        text = f"{event.node} left"
        if member.task is not None:
            self.tasks.withdraw(member, self.state.round)
            text += " and handed its task back"
        member.is_present = False
        return [self.state.event("node", text, event.node)]

    def _lose(self, event: NodeLost, now: float) -> list[Effect]:
        member = self.roster.get(event.node)
        if member is None or not member.is_present:
            return []
        member.is_present = False
        return [self.state.event("node", f"{event.node} is lost: {event.why}", event.node)]

    # Operators

    def _drain(self, event: DrainNode, now: float) -> list[Effect]:
        """Ask a node nothing more, or ask it again. Tasks of jobs that peers lead stay."""
        member = self.roster.get(event.node)
        if member is None or member.node_info.drain_reason == event.why or self.progress.is_over:
            return []
        self.roster.set_node_info(member, replace(member.node_info, drain_reason=event.why))
        text = event.why or "may be asked again"
        effects: list[Effect] = [self.state.event("node", f"{event.node}: {text}", event.node)]
        endless = self.settings.schedule.relative_to_reference  # such tasks have no end of their own
        withdraws = event.withdraw or endless
        if event.why and withdraws and member.task is not None and self.progress.mode == "server":
            self.tasks.withdraw(member, self.state.round)
            effects.append(self._reply(event.node))
        return effects

    def _pause(self, event: Pause, now: float) -> list[Effect]:
        if self.progress.paused_at is not None or self.progress.is_over:
            return []
        self.progress.paused_at, self.progress.paused_why = now, event.why
        return [self.state.event("state", f"paused: {event.why}")]

    def _resume(self, event: Resume, now: float) -> list[Effect]:
        if self.progress.paused_at is None:
            return []
        if self.state.round.opened_at is not None:
            self.state.round.opened_at += now - self.progress.paused_at  # the deadline excludes the pause
        self.progress.paused_at = None
        return [self.state.event("state", f"resumed: {event.why}")]

    def _stop(self, event: Stop, now: float) -> list[Effect]:
        progress = self.progress
        if progress.is_over:
            return []
        why = event.why or "by an operator"  # an empty reason means that the job goes on
        if event.when == "round" and progress.phase == "running" and self.state.round.opened_at is not None:
            progress.ends_after_round = why
            back = self.handover.ask_back(why, now) if progress.mode == "gossip" else []
            return [self.state.event("state", f"stops after this round: {why}"), *back]
        return self.rounds.end("stopped", why)

    def _change_settings(self, event: ChangeSettings, now: float) -> list[Effect]:
        """Change settings from the next version on; at once if no task of this version has been given."""
        progress, settings = self.progress, self.settings
        try:
            text = settings.describe_change(event.values, progress)
        except InvalidJob as error:
            return [self.state.event("warning", f"settings are not changed: {error.message}")]
        settings.pending = settings.pending | event.values
        at_once = progress.phase == "waiting" or self.state.round.opened_at is None
        if at_once:
            self.state.adopt_settings()
        begins = progress.version + (1 if at_once else 2)
        return [self.state.event("state", f"from version {begins} on: {text} ({event.why})")]

    def _restart(self, event: Restarted, now: float) -> list[Effect]:
        if event.at is not None:
            self.eligibility.clock_offset_s = event.at - now
        self.tasks.incarnation = event.incarnation
        again = self._begin_term(max(self.tasks.term, self.settings.plan.term) + 1)
        return [self.state.event("state", f"coordinator started (term {self.tasks.term})"), *again]
