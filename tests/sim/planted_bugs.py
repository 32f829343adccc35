"""Bugs that somebody could have written, planted while a test runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shoal.core import roster
from shoal.core.algorithm import Going, Local, Task
from shoal.core.anchor import SYNC, Anchor
from shoal.core.continual import Continual
from shoal.core.gathered import Gathered
from shoal.core.hub import Hub
from shoal.core.learner import Learner
from shoal.core.machine import Amend, Boot, Effect, Event, Memory, Save, Send, Timer, Wake
from shoal.core.message import Ack, Idle, Leave, Message, Order, Poll, Ref, Report, Status
from shoal.core.piecework import Piecework
from shoal.core.roster import Member
from shoal.core.schedule import Wait
from shoal.core.sums import TreeSum
from shoal.core.tree import Slots
from shoal.core.worker import Worker
from shoal.schedules.rounds import Rounds
from shoal.sim.coordinator import Coordinator
from shoal.sim.node import Node

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]
MUTANTS: dict[str, Mutant] = {}


def mutant(plant: Mutant) -> Mutant:
    """Register a bug under its function's name."""
    MUTANTS[plant.__name__] = plant
    return plant


# The coordinator's shell


@mutant
def acknowledged_before_commit(patch: Patch) -> None:
    submit = Coordinator.submit

    def hasty(self: Coordinator, event: Event) -> bool:
        if isinstance(event, Report) and self.up:
            self._send(event.node, Ack(event.order, True))
        return submit(self, event)

    patch.setattr(Coordinator, "submit", hasty)


@mutant
def fed_before_commit(patch: Patch) -> None:
    """The effects go out, then the event is written: a crash in between forgets what was promised."""

    def commit(self: Coordinator, process: int) -> None:
        if process != self.process or not self.up:
            return
        in_flight, self._batch = self._batch, []
        for event, now in in_flight:
            effects = self.hub.on(event, now)
            self._watch.fed(self.fed, event, now, effects, self.hub)
            self._carry_out(effects)
            if not self.up or self._dies():
                return
            self.journal.append((event, now))
            self.fed += 1

    patch.setattr(Coordinator, "_commit", commit)


@mutant
def alarm_not_set_again_after_boot(patch: Patch) -> None:
    on = Hub.on

    def deaf(self: Hub, event: Event, now: float) -> list[Effect]:
        effects = on(self, event, now)
        return [e for e in effects if not isinstance(e, Wake)] if isinstance(event, Boot) else effects

    patch.setattr(Hub, "on", deaf)


@mutant
def leases_not_granted_again_after_boot(patch: Patch) -> None:
    patch.setattr(Coordinator, "_grant_leases", lambda self: None)


@mutant
def order_given_once(patch: Patch) -> None:
    """What was sent counts as delivered."""
    standing = Hub.standing

    def once(self: Hub, node: str) -> Message:
        message = standing(self, node)
        if isinstance(message, Order):
            delivered = self.__dict__.setdefault("delivered", set())
            if message.id in delivered:
                return Idle(self._newest())
            delivered.add(message.id)
        return message

    patch.setattr(Hub, "standing", once)


@mutant
def bodies_of_gathered_reports_swept(patch: Patch) -> None:
    names = Coordinator.names
    gathered = lambda self: {report.body for report in self.hub.gathered.reports}  # noqa: E731

    def greedy(self: Coordinator) -> list[Ref | None]:
        self_journal, self.journal = self.journal, []
        try:
            return [ref for ref in names(self) if ref not in gathered(self)]
        finally:
            self.journal = self_journal

    patch.setattr(Coordinator, "names", greedy)


@mutant
def replayed_at_another_time(patch: Patch) -> None:
    feed = Coordinator._feed

    def timeless(self: Coordinator) -> Sequence[Effect]:
        event, _ = self.journal[self.fed]
        self.journal[self.fed] = event, self.time()
        return feed(self)

    patch.setattr(Coordinator, "_feed", timeless)


# The hub


@mutant
def no_dedupe(patch: Patch) -> None:
    """An answered order goes on standing."""
    patch.setattr(Member, "answer", lambda self, ack: setattr(self, "answered", ack))


@mutant
def repeated_report_answered_differently(patch: Patch) -> None:
    """The remembered answer is not used: a report whose acknowledgement was lost is told that it came too late."""
    patch.setattr(Member, "answer", lambda self, ack: setattr(self, "order", None))


@mutant
def late_updates_not_fenced(patch: Patch) -> None:
    patch.setattr(Rounds, "admits", lambda self, staleness: True)
    close = Hub._close
    patch.setattr(Hub, "_close", lambda self, decision, now: close(self, replace(decision, keep=True), now))


@mutant
def snapshot_without_the_open_round(patch: Patch) -> None:
    state = Hub.state
    patch.setattr(Hub, "state", lambda self: state(self) | {"gathered": Gathered("fixed").state()})


@mutant
def order_ids_issued_again(patch: Patch) -> None:
    """The boot is not counted, but the orders are counted anew."""

    def boot(self: Hub, event: Boot, now: float) -> list[Effect]:
        self.boot, self.issued = 1, 0
        return []

    patch.setattr(Hub, "_boot", boot)


@mutant
def handed_back_order_stays_asked(patch: Patch) -> None:
    leave = Hub._leave

    def kept(self: Hub, event: Leave, now: float) -> list[Effect]:
        asked = set(self.gathered.asked)
        effects = leave(self, event, now)
        self.gathered.asked = asked
        return effects

    patch.setattr(Hub, "_leave", kept)


@mutant
def bodies_remembered_by_id(patch: Patch) -> None:
    """Another tree may get the id of one that is gone."""

    def body(self: Hub, slots: Slots) -> Ref:
        key: Any = frozenset((name, id(value)) for name, value in slots.items())
        if key not in self._stored:
            self._stored[key] = self.bodies.put(slots)
        return self._stored[key]

    patch.setattr(Hub, "body", body)


@mutant
def deadline_compared_strictly(patch: Patch) -> None:
    """The alarm is set for the very moment at which the deadline has not passed yet."""
    decide = Rounds.decide

    def strict(self: Rounds, view: Any) -> Any:
        decisions = decide(self, view)
        due = None if view.opened is None else view.opened + self.deadline(view)
        if due is not None and view.now == due and view.busy:
            return [Wait("not yet", due)]
        return decisions

    patch.setattr(Rounds, "decide", strict)


@mutant
def deadline_never_rings(patch: Patch) -> None:
    """Nobody looks at a round because its deadline has passed."""
    go_on = Rounds._go_on

    def silent(self: Rounds, view: Any) -> list[Any]:
        return [replace(one, until=None) if isinstance(one, Wait) else one for one in go_on(self, view)]

    patch.setattr(Rounds, "_go_on", silent)


@mutant
def unweighted_mean(patch: Patch) -> None:
    add = TreeSum.add
    patch.setattr(TreeSum, "add", lambda self, tree, weight, norm: add(self, tree, 1.0, norm))


@mutant
def sum_in_single_precision_and_order(patch: Patch) -> None:
    """The mean drifts with every report."""
    block = TreeSum._add_block

    def coarse(self: TreeSum, part: Any, data: Any, weight: float) -> None:
        block(self, part, data, weight)
        if part.is_float and self.kind == "float64":
            cells = self._view(part, "<f8")
            cells[:] = cells.astype(np.float16)

    patch.setattr(TreeSum, "_add_block", coarse)


@mutant
def weight_forgotten_by_the_record(patch: Patch) -> None:
    add = TreeSum.add

    def light(self: TreeSum, tree: Any, weight: float, norm: float) -> None:
        add(self, tree, weight, norm)
        self.weight = max(self.weight - 1, Fraction(1))

    patch.setattr(TreeSum, "add", light)


# The worker and its shell


@mutant
def memory_committed_before_the_acknowledgement(patch: Patch) -> None:
    done = Worker._done

    def hasty(self: Worker, event: Any) -> list[Effect]:
        effects = done(self, event)
        if self.pending is not None:
            self.memory = self.pending
            effects.insert(0, Save(Memory(self.pending)))
        return effects

    patch.setattr(Worker, "_done", hasty)


@mutant
def memory_committed_though_not_counted(patch: Patch) -> None:
    acknowledged = Worker._acknowledged
    patch.setattr(Worker, "_acknowledged", lambda self, ack: acknowledged(self, replace(ack, counted=True)))


@mutant
def memory_dropped_by_the_next_order(patch: Patch) -> None:
    take = Worker._take

    def forgetful(self: Worker, order: Order) -> list[Effect]:
        if order.id > self._current():
            self.pending = None
        return take(self, order)

    patch.setattr(Worker, "_take", forgetful)


@mutant
def finished_order_begun_again(patch: Patch) -> None:
    acknowledged = Worker._acknowledged

    def forgetful(self: Worker, ack: Ack) -> list[Effect]:
        effects = acknowledged(self, ack)
        self.over = (-1, -1)
        return effects

    patch.setattr(Worker, "_acknowledged", forgetful)


@mutant
def late_idle_cancels_a_newer_order(patch: Patch) -> None:
    idle = Worker._idle
    patch.setattr(Worker, "_idle", lambda self, event: idle(self, Idle((1 << 30, 0))))


@mutant
def said_once(patch: Patch) -> None:
    """A report is sent, and the worker waits for an acknowledgement that may never come."""
    hello = Worker._hello

    def silent(self: Worker, event: Event, now: float) -> list[Effect]:
        effects = on(self, event, now)
        if type(event).__name__ == "Timer" and self.said is not None:
            return [Send("hub", hello(self)), *effects[1:]]
        return effects

    on = Worker.on
    patch.setattr(Worker, "on", silent)


@mutant
def report_not_spooled(patch: Patch) -> None:
    patch.setattr(Node, "_spool", lambda self: True)


# Dynamic averaging


@mutant
def reference_kept_at_a_full_synchronisation(patch: Patch) -> None:
    """Nodes go on from the new model, the hub from the old one."""
    rebase = Anchor.rebase

    def kept(self: Anchor, bodies: Any, slots: Slots) -> None:
        if not self.held:
            rebase(self, bodies, slots)

    patch.setattr(Anchor, "rebase", kept)


@mutant
def reference_changed_by_a_balancing(patch: Patch) -> None:
    begin = Piecework._begin

    def begun(self: Piecework, order: Order) -> None:
        begin(self, replace(order, numbers=order.numbers | {SYNC: 1.0}) if SYNC in order.numbers else order)

    patch.setattr(Piecework, "_begin", begun)


@mutant
def mean_added_to_the_last_version(patch: Patch) -> None:
    """What came in is relative to the base, and not to what the last balancing made."""
    patch.setattr(Hub, "_close", with_slots_of_the_version(Hub._close))


def with_slots_of_the_version(close: Any) -> Any:
    def closed(self: Hub, decision: Any, now: float) -> list[Effect]:
        step = self.algorithm.step
        algorithm, slots = self.algorithm, self.slots
        object.__setattr__(algorithm, "step", lambda _, totals: step(slots, totals))
        try:
            effects: list[Effect] = close(self, decision, now)
            return effects
        finally:
            object.__delattr__(algorithm, "step")

    return closed


@mutant
def orders_withdrawn_by_a_balancing(patch: Patch) -> None:
    close = Hub._close
    patch.setattr(Hub, "_close", lambda self, decision, now: close(self, replace(decision, keep=False), now))


@mutant
def orders_kept_at_a_full_synchronisation(patch: Patch) -> None:
    close = Hub._close
    patch.setattr(Hub, "_close", lambda self, decision, now: close(self, replace(decision, keep=True), now))


@mutant
def status_forgotten_by_the_snapshot(patch: Patch) -> None:
    patch.setattr(roster, "_status_state", lambda status: None)


@mutant
def base_not_restored(patch: Patch) -> None:
    patch.setattr(Anchor, "restore", classmethod(lambda cls, filters, state, bodies: cls(filters)))


@mutant
def packed_model_forgotten_by_the_snapshot(patch: Patch) -> None:
    state = Anchor.state

    def without(self: Anchor) -> Any:
        found = state(self)
        return found | {"packed": None} if found is not None else None

    patch.setattr(Anchor, "state", without)


@mutant
def hub_goes_on_with_what_filters_lost(patch: Patch) -> None:
    moved = Anchor.moved

    def exact(self: Anchor, bodies: Any, slots: Slots, rebase: bool, seed: int) -> Slots:
        moved(self, bodies, slots, rebase, seed)
        return slots

    patch.setattr(Anchor, "moved", exact)


@mutant
def examples_counted_on_after_a_synchronisation(patch: Patch) -> None:
    local = Continual.local

    def on(self: Continual, learner: Learner, task: Task, memory: Slots) -> Local | Going:
        return local(self, learner, replace(task, numbers={**task.numbers, "sync": 0.0}), memory)

    patch.setattr(Continual, "local", on)


@mutant
def status_of_an_old_order_accepted(patch: Patch) -> None:
    status = Hub._status

    def trusting(self: Hub, event: Status, now: float) -> list[Effect]:
        member = self.roster.get(event.node)
        if member is not None and member.order is not None:
            event = replace(event, order=member.order.id)
        return status(self, event, now)

    patch.setattr(Hub, "_status", trusting)


@mutant
def status_not_answered(patch: Patch) -> None:
    """A node whose leave to go on was lost never hears of it again."""
    status = Hub._status
    patch.setattr(Hub, "_status", lambda self, event, now: status(self, event, now)[:-1])


@mutant
def status_said_once(patch: Patch) -> None:
    on = Worker.on

    def silent(self: Worker, event: Event, now: float) -> list[Effect]:
        effects = on(self, event, now)
        if isinstance(event, Timer):
            effects = [Send("hub", Poll(self.node)) if e == Send("hub", self.status) else e for e in effects]
        return effects

    patch.setattr(Worker, "on", silent)


@mutant
def amendments_not_passed_on(patch: Patch) -> None:
    take = Worker._take
    patch.setattr(Worker, "_take", lambda self, order: [e for e in take(self, order) if not isinstance(e, Amend)])
