"""The coordinator as a state machine.

    phase       what happens                                              next
    waiting     one member is asked for an initial model                  running, when it came
    running     the schedule asks and closes; each close is a version     evaluating, when the last version has closed
    evaluating  all members measure the final model                       done, when all have answered or time is up
    done        nothing; every poll is answered with Stop
    stopped     the same, by an operator

Paused is beside the phases: nothing new is asked, but reports still count.

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

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal

from shoal.core.algorithm import Algorithm, Update, tree_slot
from shoal.core.errors import InvalidPayload, Refused
from shoal.core.machine import Boot, Effect, Event, Lost, Measured, Note, Save, Send, Timer, Version, Wake
from shoal.core.message import (
    Ack,
    Bodies,
    Fail,
    Idle,
    Join,
    Kind,
    Leave,
    Message,
    Order,
    OrderId,
    Pause,
    Poll,
    Ref,
    Report,
    Resume,
    Stop,
)
from shoal.core.metric import Means
from shoal.core.plan import Plan
from shoal.core.roster import Member, Roster
from shoal.core.schedule import Ask, Close, Schedule, View, Wait
from shoal.core.sums import Totals
from shoal.core.tree import Layout, Slots, Tree, same_layout

__all__ = ["Hub", "Plan"]

Phase = Literal["waiting", "running", "evaluating", "done", "stopped"]

DECISIONS_MAX = 16
"""A schedule that has not come to rest after so many decisions in a row is broken."""

SECONDS_KEPT = 16
"""Durations of past versions that a schedule may look at."""

PLAIN_STATE = ("phase", "paused_at", "ends_after_round", "version", "boot", "issued", "opened", "population")
"""What a snapshot takes as it is; the rest needs a form of its own."""


class Hub:
    """One job's coordinator. `on` is its only entry; `bodies` is where models and updates are kept."""

    def __init__(self, plan: Plan, algorithm: Algorithm, schedule: Schedule, bodies: Bodies) -> None:
        self.plan, self.algorithm, self.schedule, self.bodies = plan, algorithm, schedule, bodies
        self.phase: Phase = "waiting"
        self.paused_at: float | None = None
        self.ends_after_round = ""
        self.version = 0
        self.model: Ref | None = None
        self.slots: Slots = {}
        self.boot, self.issued = 0, 0
        self.roster = Roster()
        self.seconds: tuple[float, ...] = ()
        self._clear_round()

    def _clear_round(self) -> None:
        """Forget what was gathered for a version."""
        self.opened: float | None = None
        self.population = 0
        self.asked: set[str] = set()
        self.failed: set[str] = set()
        self.reports: list[Report] = []
        self.totals = Totals(self.plan.sums)
        self.means: dict[int, Means] = {}
        self._sent: dict[frozenset[str], Ref] = {}

    # Events

    def on(self, event: Event, now: float) -> list[Effect]:
        """Take one event and say what follows from it."""
        handle: dict[type, Callable[[Any, float], list[Effect]]] = {
            Join: self._join,
            Poll: self._poll,
            Report: self._report,
            Fail: self._fail,
            Leave: self._leave,
            Lost: self._lost,
            Pause: self._pause,
            Resume: self._resume,
            Stop: self._stop,
            Boot: self._boot,
            Timer: lambda _event, _now: [],
        }
        effects = handle[type(event)](event, now)
        return effects + self._settle(now)

    def standing(self, node: str) -> Message:
        """What a poll of that node is answered with. Changes nothing."""
        if self.phase in ("done", "stopped"):
            return Stop(self.ends_after_round or f"the job is {self.phase}")
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
        return self.algorithm.reply(self.slots) if kind == "train" else {}

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
        new = self.roster.get(event.node) is None
        member = self.roster.welcome(event.node)
        member.failures = 0
        note = Note("node", f"{event.node} joined" if new else f"{event.node} is back", self.version, event.node)
        return [note, Send(event.node, self.standing(event.node))]

    def _poll(self, event: Poll, now: float) -> list[Effect]:
        if self.knows(event.node):
            return [Send(event.node, self.standing(event.node))]
        known = self.roster.get(event.node) is not None
        self.roster.welcome(event.node)
        text = f"{event.node} is heard again" if known else f"{event.node} joined"
        return [Note("node", text, self.version, event.node), Send(event.node, self.standing(event.node))]

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
        take = {"init": self._take_init, "train": self._take_update, "evaluate": self._take_evaluation}[order.kind]
        try:
            effects = take(event, order, now)
            ack = Ack(event.order, True)
        except (InvalidPayload, Refused) as refusal:
            effects = [Note("refusal", f"{event.node}: {refusal.message}", self.version, event.node)]
            effects += self._count_failure(member)
            ack = Ack(event.order, False, refusal.message)
        else:
            member.failures = 0
        member.answer(ack)
        return [*effects, Send(event.node, ack)]

    def _take_init(self, report: Report, order: Order, now: float) -> list[Effect]:
        if report.body is None:
            raise InvalidPayload("an initial model was asked for, but none came", code="payload.missing")
        return self._begin(report.body, f"initial model of {report.node}", now)

    def _begin(self, start: Ref, why: str, now: float) -> list[Effect]:
        """Version 0: from waiting to running."""
        self.slots = self.algorithm.init(tree_slot(self.bodies.get(start), "model"))
        self._withdraw()
        self.phase = "running"
        self._clear_round()
        self.model = self._keep()
        return [Save(Version(0, self.model, why, now, now))]

    def _take_update(self, report: Report, order: Order, now: float) -> list[Effect]:
        staleness = self.version - order.version
        if not self.schedule.admits(staleness):
            raise Refused(f"{staleness} versions too late", code="report.stale")
        if report.body is None:
            raise InvalidPayload("an update was asked for, but none came", code="payload.missing")
        if not 0 < report.weight < float("inf"):
            raise Refused(f"a weight of {report.weight} cannot be averaged", code="report.weight")
        slots = self.bodies.get(report.body)
        self._check_slots(slots)
        update = Update(report.node, order.version, report.weight, slots, report.norm)
        self.totals = self.algorithm.fold(self.totals, update, self.algorithm.discount(staleness))
        self.reports.append(report)
        return self._measure(report, order.version)

    def _check_slots(self, slots: Slots) -> None:
        """An update must have exactly the slots and layouts that the algorithm's reply has."""
        expected = self.expects("train")
        if slots.keys() != expected.keys():
            raise InvalidPayload(f"slots {sorted(slots)} instead of {sorted(expected)}", code="payload.slots")
        for name, layout in expected.items():
            value = slots[name]
            if isinstance(value, Tree) != (layout is not None):
                raise InvalidPayload(f"slot {name!r} is of the wrong kind", code="payload.slots")
            if isinstance(value, Tree) and layout is not None:
                same_layout(layout, value.layout)

    def _take_evaluation(self, report: Report, order: Order, now: float) -> list[Effect]:
        self.reports.append(report)
        return self._measure(report, order.version)

    def _measure(self, report: Report, version: int) -> list[Effect]:
        if not report.metrics:
            return []
        means = self.means.setdefault(version, Means())
        means.add(report.metrics, report.weight)
        return [Measured(version, means.values())]

    def _fail(self, event: Fail, now: float) -> list[Effect]:
        member = self.roster.get(event.node)
        if member is None or member.order is None or member.order.id != event.order:
            return [Send(event.node, Ack(event.order, False, "nothing of that kind stands"))]
        self.roster.welcome(event.node)
        ack = Ack(event.order, False, f"failure noted: {event.error}")
        note = Note("warning", f"{event.node} failed: {event.error}", self.version, event.node)
        notes = self._count_failure(member)
        member.answer(ack)
        return [note, *notes, Send(event.node, ack)]

    def _count_failure(self, member: Member) -> list[Effect]:
        """Remember a failed order; say so when the node has failed too often to be asked again."""
        member.failures += 1
        self.failed.add(member.node)
        if not member.suspended:
            return []
        text = f"{member.node} failed {member.failures} times in a row and is not asked again until it restarts"
        return [Note("warning", text, self.version, member.node)]

    def _leave(self, event: Leave, now: float) -> list[Effect]:
        member = self.roster.get(event.node)
        if member is None:
            return []
        text = f"{event.node} left"
        if member.order is not None:
            self.asked.discard(event.node)  # as if it had never been asked: should it come back, it can be
            text += " and handed its order back"
        member.here, member.order = False, None
        return [Note("node", text, self.version, event.node)]

    def _lost(self, event: Lost, now: float) -> list[Effect]:
        member = self.roster.get(event.node)
        if member is None or not member.here:
            return []
        member.here = False
        return [Note("node", f"{event.node} is lost: {event.why}", self.version, event.node)]

    def _pause(self, event: Pause, now: float) -> list[Effect]:
        if self.paused_at is not None or self.phase in ("done", "stopped"):
            return []
        self.paused_at = now
        return [Note("state", event.why, self.version)]

    def _resume(self, event: Resume, now: float) -> list[Effect]:
        if self.paused_at is None:
            return []
        if self.opened is not None:
            self.opened += now - self.paused_at  # the pause does not count against the deadline
        self.paused_at = None
        return [Note("state", event.why, self.version)]

    def _stop(self, event: Stop, now: float) -> list[Effect]:
        if self.phase in ("done", "stopped"):
            return []
        why = event.why or "stopped by an operator"  # an empty reason would not be seen as one
        if event.when == "round" and self.phase == "running" and self.opened is not None:
            self.ends_after_round = why
            return [Note("state", f"{why}: after this round", self.version)]
        return self._end("stopped", why)

    def _boot(self, event: Boot, now: float) -> list[Effect]:
        self.boot, self.issued = self.boot + 1, 0
        return [Note("state", f"coordinator started (boot {self.boot})", self.version)]

    # Decisions

    def _settle(self, now: float) -> list[Effect]:
        """Let the schedule decide until it waits."""
        effects: list[Effect] = []
        for _ in range(DECISIONS_MAX):
            if self.paused_at is not None or self.phase in ("done", "stopped"):
                return effects
            if self.phase == "waiting" and self.plan.start is None:
                return effects + self._ask_for_model(now)
            if self.phase == "waiting" and self.plan.start is not None:
                effects += self._begin(self.plan.start, "initial model given with the job", now)
            if self.phase == "evaluating":
                return effects + self._await_evaluations(now)
            acted = False
            for decision in self.schedule.decide(self._view(now)):
                if isinstance(decision, Wait):
                    effects += [Wake(decision.until)] if decision.until is not None else []
                elif isinstance(decision, Ask):
                    effects += self._ask(decision, now)
                    acted = True
                else:
                    effects += self._close(decision, now)
                    acted = True
            if not acted:
                return effects
        raise AssertionError(f"the schedule {self.schedule.name} does not settle at version {self.version}")

    def _view(self, now: float) -> View:
        able = tuple(member.node for member in self.roster.able())
        waited = {m.node: m.order.kind for m in self.roster.here() if m.order is not None}
        return View(
            now=now,
            version=self.version,
            opened=self.opened,
            population=self.population or len(able),
            members=able,
            busy=waited,
            asked=frozenset(self.asked),
            reports=tuple(report.node for report in self.reports),
            failed=frozenset(self.failed),
            seconds=self.seconds,
            seed=self.plan.seed,
        )

    def _ask(self, ask: Ask, now: float) -> list[Effect]:
        if self.opened is None:
            self.opened, self.population = now, len(self.roster.able())
        effects: list[Effect] = [Note("decision", ask.why, self.version)]
        for node in ask.nodes:
            body = self._body(self.algorithm.order(self.slots, node, ask.kind)) if self.slots else None
            effects.append(Send(node, self._give(node, ask.kind, body)))
        return effects

    def _give(self, node: str, kind: Kind, body: Ref | None) -> Order:
        """Make an order stand."""
        self.issued += 1
        order = Order((self.boot, self.issued), node, kind, self.version, self._seed(node, kind), body)
        self.roster[node].give(order)
        self.asked.add(node)
        self.failed.discard(node)
        return order

    def _close(self, close: Close, now: float) -> list[Effect]:
        """Make the next version. Orders of this one are withdrawn unless the schedule admits late reports."""
        assert self.opened is not None
        weight = float(self.totals.weight)
        self.slots = self.algorithm.step(self.slots, self.totals)
        self.version += 1
        reports = tuple((r.node, r.order, r.weight, r.body.digest) for r in self.reports if r.body is not None)
        opened, asked = self.opened, len(self.asked)
        self.seconds = (*self.seconds, now - opened)[-SECONDS_KEPT:]
        if not self.schedule.admits(1):
            self._withdraw()
        self._clear_round()
        self.model = self._keep()
        effects: list[Effect] = [
            Note("decision", f"version {self.version}: {close.why}", self.version),
            Save(Version(self.version, self.model, close.why, opened, now, weight, reports, asked)),
        ]
        if self.version >= self.plan.versions or self.ends_after_round:
            self.phase = "evaluating"
            self._withdraw()
        return effects

    def _ask_for_model(self, now: float) -> list[Effect]:
        """In phase waiting: have exactly one member make an initial model, another one if it takes too long."""
        due = None if self.opened is None else self.opened + self.plan.patience_s
        able = self.roster.able()
        waiting = [member for member in able if member.order is not None]
        if due is not None and waiting and now < due:
            return [Wake(due)]
        idle = sorted((member.node for member in able if member.order is None), key=lambda node: node in self.asked)
        if not idle:
            return [Wake(now + self.plan.patience_s)] if waiting else []
        self.opened = None
        ask = Ask((idle[0],), "init", f"{idle[0]} is asked for an initial model")
        return [*self._ask(ask, now), Wake(now + self.plan.patience_s)]

    def _await_evaluations(self, now: float) -> list[Effect]:
        """In phase evaluating: ask all once, end when all have answered or time is up."""
        effects: list[Effect] = []
        if self.opened is None:
            nodes = tuple(member.node for member in self.roster.able())
            effects += self._ask(Ask(nodes, "evaluate", f"{len(nodes)} nodes measure the final model"), now)
            self.opened = now
        due = self.opened + self.plan.patience_s
        if now < due and any(member.order is not None for member in self.roster.here()):
            return [*effects, Wake(due)]
        if self.ends_after_round:
            return effects + self._end("stopped", self.ends_after_round)
        return effects + self._end("done", f"done: {self.version} versions, measured by {len(self.reports)} nodes")

    def _end(self, phase: Phase, why: str) -> list[Effect]:
        self.phase, self.paused_at, self.ends_after_round = phase, None, why
        self._withdraw()
        sends = [Send(member.node, Stop(why)) for member in self.roster.here()]
        return [Note("state", why, self.version), *sends]

    # Small parts

    def _newest(self) -> OrderId:
        return (self.boot, self.issued)

    def _withdraw(self) -> None:
        for member in self.roster.all():
            member.order = None

    def _seed(self, node: str, kind: Kind) -> int:
        """The order's randomness. An initial model has the job's own seed, so that it is the same from any node."""
        if kind == "init":
            return self.plan.seed
        text = f"{self.plan.seed}/{self.version}/{node}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")

    def _keep(self) -> Ref:
        """Put the slots away and go on with the stored ones, so that nothing is held twice."""
        ref = self.bodies.put(self.slots)
        self.slots = self.bodies.get(ref)
        self._sent = {frozenset(self.slots): ref}
        return ref

    def _body(self, slots: Slots) -> Ref:
        """Store what an order carries. A choice of the hub's own slots is stored once for all nodes."""
        if any(value is not self.slots.get(name) for name, value in slots.items()):
            return self.bodies.put(slots)
        names = frozenset(slots)
        if names not in self._sent:
            self._sent[names] = self.bodies.put(slots)
        return self._sent[names]

    # Snapshots

    def state(self) -> dict[str, Any]:
        """All that must outlive the process, as JSON values: complete while no report has been gathered, so at the end
        of an `on` that gave a `Save`. (That same `on` may have opened the next round: hence the last four.)"""
        return {name: getattr(self, name) for name in PLAIN_STATE} | {
            "model": asdict(self.model) if self.model else None,
            "seconds": list(self.seconds),
            "roster": self.roster.state(),
            "asked": sorted(self.asked),
            "failed": sorted(self.failed),
        }

    @classmethod
    def restore(
        cls, plan: Plan, algorithm: Algorithm, schedule: Schedule, bodies: Bodies, state: dict[str, Any]
    ) -> Hub:
        """The hub of that state. Feed it the journal's later events, then `Boot`."""
        hub = cls(plan, algorithm, schedule, bodies)
        for name in PLAIN_STATE:
            setattr(hub, name, state[name])
        hub.seconds, hub.roster = tuple(state["seconds"]), Roster.restore(state["roster"])
        hub.asked, hub.failed = set(state["asked"]), set(state["failed"])
        if state["model"] is not None:
            hub.model = Ref(**state["model"])
            hub.slots = bodies.get(hub.model)
            hub._sent = {frozenset(hub.slots): hub.model}
        return hub


def _shown(order: OrderId) -> str:
    return f"{order[0]}.{order[1]}"
