"""The coordinator as a state machine.

    phase       what happens                                              next
    waiting     one member is asked for an initial model                  running, when it came
    running     the schedule asks and closes; each close is a version     evaluating, when the last version has closed
    evaluating  all members measure the final model                       done, when all have answered or time is up
    done        nothing; every poll is answered with Stop
    stopped     the same, by an operator

Paused is beside the phases: nothing new is asked, but reports still count. So is the mode: while the peers carry the
job on by themselves, and when they hand it back, `away` decides instead of the schedule.

**Standing orders.** A node has at most one. It stands until its report is durable, or its failure, or it was
superseded by a closed version, or the node left. A node that is merely *lost* keeps its order: nobody waits for it any
more, but if its report comes before the version closes, it counts. Polls repeat the standing order, so that a lost
answer, a restarted node and a restarted coordinator are all one case.

**Counting.** A report counts when its order stands. Then the order is gone, so it never counts twice; `answered` keeps
the last answer of each node, so that a repeated report gets the same answer as the first.

The state is small and serialisable (`state`, `Hub.restore`): bodies are references. What is gathered within a version
is not part of it: after a crash the journal's events since the last snapshot are fed again, in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shoal.core.algorithm import Algorithm, Update, tree_slot
from shoal.core.errors import InvalidJob, InvalidPayload, Refused
from shoal.core.filter import packed, unpack
from shoal.core.hub_acts import HubActs
from shoal.core.machine import Boot, Effect, Event, Lost, Measured, Note, Send, Timer
from shoal.core.message import (
    Ack,
    Bodies,
    Change,
    Drain,
    Fail,
    Idle,
    Join,
    Kind,
    Knock,
    Lease,
    Leave,
    Message,
    Order,
    OrderId,
    Pause,
    Poll,
    Report,
    Resume,
    Status,
    Stop,
    Switch,
)
from shoal.core.metric import EVAL_ASKED, FINISHED, Means
from shoal.core.plan import Plan
from shoal.core.schedule import Close, Schedule
from shoal.core.settings_change import configured, current
from shoal.core.tree import Layout, Slots

__all__ = ["Hub", "Plan"]


class Hub(HubActs):
    """One job's coordinator. `on` is its only entry; `bodies` is where models and updates are kept."""

    # Events

    def on(self, event: Event, now: float) -> list[Effect]:
        """Take one event and say what follows from it."""
        handle: dict[type, Callable[[Any, float], list[Effect]]] = {
            Join: self._join,
            Poll: self._poll,
            Knock: self._knock,
            Status: self._status,
            Report: self._report,
            Fail: self._fail,
            Leave: self._leave,
            Lost: self._lost,
            Pause: self._pause,
            Resume: self._resume,
            Stop: self._stop,
            Switch: self._switch,
            Drain: self._drain,
            Change: self._change,
            Boot: self._boot,
            Timer: lambda _event, _now: [],
        }
        effects = [*self._ask_again(now), *handle[type(event)](event, now)]
        return effects + self._settle(now)

    def _ask_again(self, now: float) -> list[Effect]:
        """Let members be asked again whose pauses are over."""
        text = "{} is asked again, after {} failures in a row"
        found = self.roster.resume(now) if self.roster.paused else ()
        return [Note("node", text.format(one.node, one.failures), self.version, one.node) for one in found]

    def standing(self, node: str) -> Message:
        """What a poll of that node is answered with. Changes nothing."""
        if self.phase in ("done", "stopped"):
            return Stop(self.ends_after_round or f"the job is {self.phase}")
        if node in self.foreign:
            return Stop(self.foreign[node], foreign=True)
        member = self.roster.get(node)
        if member is not None and member.order is not None:
            return member.order
        return Idle(self._newest())

    def knows(self, node: str) -> bool:
        """Whether a poll of that node would change nothing, so that it need not be journaled."""
        member = self.roster.get(node)
        return self.phase in ("done", "stopped") or (member is not None and member.here)

    def expects(self, kind: Kind) -> dict[str, Layout | None]:
        """The slots, with their layouts (None: a number), that a report on an order of that kind must carry."""
        if kind == "gossip":
            return {"model": tree_slot(self.slots, "model").layout}
        return packed(self.plan.filters, self.algorithm.reply(self.slots)) if kind == "train" else {}

    def opened(self, slots: Slots, kind: Kind) -> Slots:
        """The slots of a report on an order of that kind, without filters. Raises `InvalidPayload`."""
        filtered = kind == "train" and self.plan.filters
        return unpack(self.plan.filters, slots, self.algorithm.reply(self.slots)) if filtered else slots

    def verdict(self, report: Report) -> Ack | None:
        """What a report is answered with when it cannot count any more; None: it would count now. Changes nothing.

        Raises `Refused` for an order that was never given to this node.
        """
        member = self.roster.get(report.node)
        if member is not None and member.order is not None and member.order.id == report.order:
            return None
        if member is not None and member.answered is not None and member.answered.order == report.order:
            return member.answered
        if report.order > self._newest() or member is None or report.order not in member.given:
            raise Refused(
                f"order {_shown(report.order)} was not given to {report.node}",
                code="order.foreign",
                hint="poll for the order that stands and report that one",
            )
        return Ack(report.order, False, f"order {_shown(report.order)} was superseded; version is {self.version}")

    def _join(self, event: Join, now: float) -> list[Effect]:
        if self.phase in ("done", "stopped"):
            return [Send(event.node, self.standing(event.node))]
        known = self.roster.get(event.node)
        refused = event.away is not None and known is not None and known.away
        if refused and known is not None and known.suspended:
            return [Send(event.node, self.standing(event.node))]  # the others are not stopped for it any more
        back = self._return(f"{event.node} has carried on without the server", now) if event.away else []
        member = self.roster.welcome(event.node, event.about)
        if event.away and self.gathered.adds(member):
            self._end_trial()
        elif event.away and self.gathered.trial is not None and self.gathered.trial.excuse(event.node):
            member.order = None  # it does not know yet that its report counts, and is among peers
        member.away = False
        if not refused:
            member.recover()
        note = Note(
            "node", f"{event.node} joined" if known is None else f"{event.node} is back", self.version, event.node
        )
        return [*back, note, Send(event.node, self.standing(event.node))]

    def _poll(self, event: Poll, now: float) -> list[Effect]:
        if self.knows(event.node):
            return [Send(event.node, self.standing(event.node))]
        known = self.roster.get(event.node) is not None
        self.roster.welcome(event.node, event.about)
        text = f"{event.node} is heard again" if known else f"{event.node} joined"
        return [Note("node", text, self.version, event.node), Send(event.node, self.standing(event.node))]

    def _knock(self, event: Knock, now: float) -> list[Effect]:
        """A peer carries on without us. It obeys a term above its own, so ours must be one."""
        if self.phase in ("done", "stopped"):
            return [Send(event.node, self.standing(event.node))]
        again = self._begin_term(event.term + 1) if event.term >= self.boot else []
        return [Send(event.node, Lease(self.boot)), *again]

    def _begin_term(self, boot: int) -> list[Effect]:
        """From now on our orders are of that term. Peers obey no older one, so theirs are given anew."""
        self.boot, self.issued = boot, 0
        effects: list[Effect] = []
        for member in self.roster.all():
            if member.order is not None and member.order.kind == "gossip":
                self.issued += 1
                member.give(replace(member.order, id=(self.boot, self.issued)))
                effects.append(Send(member.node, self.standing(member.node)))
        return effects

    def _status(self, event: Status, now: float) -> list[Effect]:
        """Keep a node's latest word on its order. One that is late or doubled changes nothing, but shows that the
        answer to the one before may be lost."""
        member = self.roster.get(event.node)
        if member is None or member.order is None or member.order.id != event.order:
            return [Send(event.node, self.standing(event.node))]
        self.roster.welcome(event.node)
        if member.status is None or member.status.check < event.check:
            member.status = event
        news = member.news(event)
        return [Send(event.node, news)] if news is not None else []

    def _report(self, event: Report, now: float) -> list[Effect]:
        try:
            answer = self.verdict(event)
        except Refused as refusal:
            return [Send(event.node, Ack(event.order, False, refusal.message))]
        if answer is not None:
            return [Send(event.node, answer)]
        member = self.roster.welcome(event.node)
        assert member.order is not None
        order = member.order
        take = {
            "init": self._take_init,
            "train": self._take_update,
            "evaluate": self._take_evaluation,
            "gossip": self._take_back,
        }[order.kind]
        try:
            effects = take(event, order, now)
            ack = Ack(event.order, True)
        except (InvalidPayload, Refused) as refusal:
            effects = [Note("refusal", f"{event.node}: {refusal.message}", self.version, event.node)]
            if refusal.code != "report.stale":  # slow is not broken
                effects += self._count_failure(member, now)
                member.away = order.kind == "gossip"
            ack = Ack(event.order, False, refusal.message)
        else:
            member.recover()
        member.answer(ack)
        return [*effects, Send(event.node, ack)]

    def _take_init(self, report: Report, order: Order, now: float) -> list[Effect]:
        if report.body is None:
            raise InvalidPayload("an initial model was asked for, but none came", code="payload.missing")
        return self._begin(report.body, f"initial model of {report.node}", now)

    def _take_update(self, report: Report, order: Order, now: float) -> list[Effect]:
        staleness = self.version - order.version
        if not self.schedule.admits(staleness):
            raise Refused(f"{staleness} versions too late", code="report.stale")
        if report.body is None:
            raise InvalidPayload("an update was asked for, but none came", code="payload.missing")
        if not 0 < report.weight < float("inf"):
            raise Refused(f"a weight of {report.weight} cannot be averaged", code="report.weight")
        slots = unpack(self.plan.filters, self.bodies.get(report.body), self.algorithm.reply(self.slots))
        update = Update(report.node, order.version, report.weight, slots, report.norm, self.sent_with(order))
        self.open_round(now)
        excluded = self._fold(report, order, update, now)
        self.roster[report.node].trained(report)
        self.roster[report.node].counted += 1
        self.roster[report.node].finished = bool(report.metrics.get(FINISHED))
        return [*excluded, *self._measure(report, order.version)]

    def _take_back(self, report: Report, order: Order, now: float) -> list[Effect]:
        """A peer's model, relative to the version that the job went away with."""
        if report.body is None or not 0 < report.weight < float("inf"):
            raise InvalidPayload("a peer's model and its weight were asked for", code="payload.missing")
        self._end_trial()
        self.gathered.totals.add(self.bodies.get(report.body), report.weight, report.norm)
        self.gathered.take(report, order)
        return self._measure(report, order.version)

    def _take_evaluation(self, report: Report, order: Order, now: float) -> list[Effect]:
        if self.gathered.trial is not None:
            self.gathered.trial.take(report)
            return []
        if self.is_probe("evaluate"):
            self.gathered.measured.add(report.node)
            self.roster[report.node].trained(report)
            return []
        self.gathered.take(report, order)
        return self._measure(report, order.version)

    def _measure(self, report: Report, version: int) -> list[Effect]:
        if not report.metrics:
            return []
        if self.phase == "running" and self.mode == "server" and self.schedule.admits(1):
            return self._measure_latest(report)
        means = self.gathered.means.setdefault(version, Means())
        means.add(report.metrics, report.weight, report.node)
        return [Measured(version, means.values())]

    def _measure_latest(self, report: Report) -> list[Effect]:
        """The newest version's metrics where versions are made of a few reports: "eval/…" over all nodes' last ones."""
        self.latest.take(report.node, report.metrics)
        means = self.gathered.means.setdefault(self.version, Means())
        other = {name: value for name, value in report.metrics.items() if not name.startswith("eval/")}
        means.add(other, report.weight, report.node)
        asked = {EVAL_ASKED: float(len(self.roster.busy()))} if (found := self.latest.values()) else {}
        return [Measured(self.version, means.values() | found | asked)]

    def _fail(self, event: Fail, now: float) -> list[Effect]:
        member = self.roster.get(event.node)
        if member is None or member.order is None or member.order.id != event.order:
            return [Send(event.node, Ack(event.order, False, "nothing of that kind stands"))]
        self.roster.welcome(event.node)
        ack = Ack(event.order, False, f"failure noted: {event.error}")
        note = Note("warning", f"{event.node} failed: {event.error}", self.version, event.node)
        notes = self._count_failure(member, now)
        member.away = member.order.kind == "gossip" and event.phase == "upload"  # its model, not that it was asked
        member.answer(ack)
        return [note, *notes, Send(event.node, ack)]

    def _leave(self, event: Leave, now: float) -> list[Effect]:
        member = self.roster.get(event.node)
        if member is not None:
            member.left = True
            self.latest.drop(event.node)
        if member is None or not (member.here or member.order is not None):  # said again, or long since lost
            return []
        text = f"{event.node} left"
        if member.order is not None:
            self.relieve(member)
            text += " and handed its order back"
        member.here = False
        return [Note("node", text, self.version, event.node)]

    def _lost(self, event: Lost, now: float) -> list[Effect]:
        member = self.roster.get(event.node)
        if member is None or not member.here:
            return []
        member.here = False
        return [Note("node", f"{event.node} is lost: {event.why}", self.version, event.node)]

    def _drain(self, event: Drain, now: float) -> list[Effect]:
        """Ask a node nothing more, or ask it again. What peers carry on among themselves is not taken from them."""
        member = self.roster.get(event.node)
        if member is None or member.about.held == event.why or self.phase in ("done", "stopped"):
            return []
        self.roster.describe(member, replace(member.about, held=event.why))
        said = event.why or "may be asked again"
        effects: list[Effect] = [Note("node", f"{event.node}: {said}", self.version, event.node)]
        stretches = event.withdraw or self.schedule.anchored  # such an order has no end of its own
        if event.why and stretches and member.order is not None and self.mode == "server":
            self.relieve(member)
            effects.append(Send(event.node, self.standing(event.node)))
        return effects

    def _pause(self, event: Pause, now: float) -> list[Effect]:
        if self.paused_at is not None or self.phase in ("done", "stopped"):
            return []
        self.paused_at, self.paused_why = now, event.why
        return [Note("state", f"paused: {event.why}", self.version)]

    def _resume(self, event: Resume, now: float) -> list[Effect]:
        if self.paused_at is None:
            return []
        if self.gathered.opened is not None:
            self.gathered.opened += now - self.paused_at  # the pause does not count against the deadline
        self.paused_at = None
        return [Note("state", f"resumed: {event.why}", self.version)]

    def _stop(self, event: Stop, now: float) -> list[Effect]:
        if self.phase in ("done", "stopped"):
            return []
        why = event.why or "by an operator"  # an empty reason would not be seen as one
        if event.when == "round" and self.phase == "running" and self.gathered.opened is not None:
            self.ends_after_round = why
            back = self._return(why, now) if self.mode == "away" else []  # its round is over when all have come back
            return [Note("state", f"stops after this round: {why}", self.version), *back]
        return self._end("stopped", why)

    def _change(self, event: Change, now: float) -> list[Effect]:
        """Settings are other ones from the next version on; at once, where no order of this one has been given."""
        try:
            told = self._changed(event)
        except InvalidJob as error:
            return [Note("warning", f"settings are not changed: {error.message}", self.version)]
        self.awaited = self.awaited | event.values
        at_once = self.phase == "waiting" or self.gathered.opened is None
        if at_once:
            self.adopt_changes()
        begins = self.version + (1 if at_once else 2)
        return [Note("state", f"from version {begins} on: {told} ({event.why})", self.version)]

    def _changed(self, event: Change) -> str:
        """Return what a change does, for people. Raises `InvalidJob` where it may not be made, or not now."""
        if self.phase not in ("waiting", "running") or self.mode != "server":
            raise InvalidJob(f"the job is {'with its nodes' if self.phase == 'running' else self.phase}")
        held = self.changed | self.awaited
        before, after = configured(self._given, held), configured(self._given, held | event.values)
        if after[0].versions <= self.version:
            raise InvalidJob(f"there are {self.version} versions already")
        return ", ".join(f"{key} {current(before, key):g} → {current(after, key):g}" for key in sorted(event.values))

    # Away and back

    def _switch(self, event: Switch, now: float) -> list[Effect]:
        if self.phase != "running":
            return [Note("warning", f"a job that is {self.phase} cannot be switched", self.version)]
        if event.to == "server":
            return self._return(event.why, now) if self.mode == "away" else []
        if self.mode != "server":
            return []
        why = f"the peers carry on: {event.why}"
        closed = self._set_down(why, now)
        if closed and self._is_last:
            return closed  # that was the last version: nothing is left to be carried on
        self.mode = "away"
        for member in self.roster.all():
            member.away = False  # an order to carry on is what it obeys
        return [*closed, Note("mode", why, self.version)]

    def _return(self, why: str, now: float) -> list[Effect]:
        """Have the peers hand back what they have."""
        if self.phase not in ("running", "evaluating") or self.mode == "returning":
            return []
        if self.phase == "evaluating":  # they went away before they heard that training was over, and have learned more
            self._withdraw()
            self.clear_round()
            self.phase = "running"
        closed: list[Effect] = []
        if self.mode == "server":  # they went away by themselves; what has come in meanwhile counts first
            closed = self._set_down(why, now)
            self.phase = "running"  # even if that was the last version: what they have learned makes one more
        self.mode = "returning"
        return [*closed, Note("mode", f"back to the server: {why}", self.version)]

    def _end_trial(self) -> None:
        """What was measured, or is being measured, is not all that comes back: sum up anew."""
        gathered = self.gathered
        if gathered.trial is None:
            return
        for node in gathered.trial.judges:
            self.roster[node].order = None
        gathered.trial = None
        gathered.counted.clear()
        self._sum_back()

    def _set_down(self, why: str, now: float) -> list[Effect]:
        """Let what has come in count, and nothing stand any more."""
        closed = self._close(Close(why, rebase=self.schedule.anchored), now) if self.gathered.reports else []
        self._withdraw()
        self.clear_round()
        self.adopt_changes()
        return closed

    def _boot(self, event: Boot, now: float) -> list[Effect]:
        if event.at is not None:
            self.epoch = event.at - now
        self.life = event.life
        again = self._begin_term(max(self.boot, self.plan.term) + 1)
        return [Note("state", f"coordinator started (boot {self.boot})", self.version), *again]

    # Snapshots

    @classmethod
    def restore(
        cls, plan: Plan, algorithm: Algorithm, schedule: Schedule, bodies: Bodies, state: dict[str, Any]
    ) -> Hub:
        """The hub of that state. Feed it the journal's later events, then `Boot`."""
        hub = cls(plan, algorithm, schedule, bodies)
        hub.take_up(state)
        return hub


def _shown(order: OrderId) -> str:
    return f"{order[0]}.{order[1]}"
