"""Plausible bugs, planted while a test runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm.algorithm import Continue, LocalResult, LocalTask
from shoal.core.algorithm.continual import Continual
from shoal.core.algorithm.learner import Learner
from shoal.core.algorithm.reference_model import NEW_REFERENCE, ReferenceModel
from shoal.core.client.task_runner import TaskRunner
from shoal.core.client.worker import Worker
from shoal.core.model.aggregation import TreeSum
from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import Amend, Effect, Event, Memory, Restarted, Save, Send, Timer, Wake
from shoal.core.protocol.message import Ack, BlobRef, Leave, Message, NoTask, Poll, Report, Task, TaskStatus
from shoal.core.scheduling.round import Round
from shoal.core.scheduling.schedule import Wait
from shoal.core.server import roster
from shoal.core.server.hub import Hub
from shoal.core.server.model_store import ModelStore
from shoal.core.server.roster import RosterMember
from shoal.core.server.round_control import RoundControl
from shoal.schedules.rounds import Rounds
from shoal.sim.hosts.coordinator import SimulatedCoordinator
from shoal.sim.hosts.node import SimulatedNode

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
    submit = SimulatedCoordinator.submit

    def hasty(self: SimulatedCoordinator, event: Event) -> bool:
        if isinstance(event, Report) and self.process.up:
            self._send(event.node, Ack(event.task, True))
        return submit(self, event)

    patch.setattr(SimulatedCoordinator, "submit", hasty)


@mutant
def fed_before_commit(patch: Patch) -> None:
    """The effects go out, then the event is written: a crash in between forgets what was promised."""

    def commit(self: SimulatedCoordinator) -> None:
        in_flight, self._batch = self._batch, []
        for event, now in in_flight:
            effects = self.hub.on(event, now)
            self._watch.fed(self.fed, event, now, effects, self.hub)
            self._carry_out(effects)
            if not self.process.up or self._dies():
                return
            self.journal.append((event, now))
            self.fed += 1

    patch.setattr(SimulatedCoordinator, "_commit", commit)


@mutant
def alarm_not_set_again_after_restart(patch: Patch) -> None:
    on = Hub.on

    def deaf(self: Hub, event: Event, now: float) -> list[Effect]:
        effects = on(self, event, now)
        return [e for e in effects if not isinstance(e, Wake)] if isinstance(event, Restarted) else effects

    patch.setattr(Hub, "on", deaf)


@mutant
def leases_not_granted_again_after_restart(patch: Patch) -> None:
    patch.setattr(SimulatedCoordinator, "_grant_leases", lambda self: None)


@mutant
def order_given_once(patch: Patch) -> None:
    """Sent messages count as delivered."""
    standing = Hub.poll_reply

    def once(self: Hub, node: str) -> Message:
        message = standing(self, node)
        if isinstance(message, Task):
            delivered = self.__dict__.setdefault("delivered", set())
            if message.id in delivered:
                return NoTask(self.tasks.newest)
            delivered.add(message.id)
        return message

    patch.setattr(Hub, "poll_reply", once)


@mutant
def blobs_of_gathered_reports_swept(patch: Patch) -> None:
    names = SimulatedCoordinator.names
    gathered = lambda self: {report.blob for report in self.hub.state.round.reports}  # noqa: E731

    def greedy(self: SimulatedCoordinator) -> list[BlobRef | None]:
        self_journal, self.journal = self.journal, []
        try:
            return [ref for ref in names(self) if ref not in gathered(self)]
        finally:
            self.journal = self_journal

    patch.setattr(SimulatedCoordinator, "names", greedy)


@mutant
def replayed_at_another_time(patch: Patch) -> None:
    feed = SimulatedCoordinator._feed

    def timeless(self: SimulatedCoordinator) -> Sequence[Effect]:
        event, _ = self.journal[self.fed]
        self.journal[self.fed] = event, self.clock.now()
        return feed(self)

    patch.setattr(SimulatedCoordinator, "_feed", timeless)


# The hub


@mutant
def no_dedupe(patch: Patch) -> None:
    """An answered task goes on standing."""
    patch.setattr(RosterMember, "close_task", lambda self, ack: setattr(self, "last_ack", ack))


@mutant
def repeated_report_answered_differently(patch: Patch) -> None:
    """The remembered answer is not used: a report whose acknowledgement was lost is told that it came too late."""
    patch.setattr(RosterMember, "close_task", lambda self, ack: setattr(self, "task", None))


@mutant
def late_updates_not_fenced(patch: Patch) -> None:
    patch.setattr(Rounds, "accepts_staleness", lambda self, staleness: True)
    close = RoundControl.close
    patch.setattr(RoundControl, "close", lambda self, decision, now: close(self, replace(decision, keep=True), now))


@mutant
def snapshot_without_the_open_round(patch: Patch) -> None:
    state = Hub.snapshot
    patch.setattr(Hub, "snapshot", lambda self: state(self) | {"round": Round().state()})


@mutant
def task_ids_issued_again(patch: Patch) -> None:
    """The term is not counted, but the tasks are counted again."""

    def term(self: Hub, event: Restarted, now: float) -> list[Effect]:
        self.tasks.term, self.tasks.issued = 1, 0
        return []

    patch.setattr(Hub, "_restart", term)


@mutant
def handed_back_order_stays_asked(patch: Patch) -> None:
    leave = Hub._leave

    def kept(self: Hub, event: Leave, now: float) -> list[Effect]:
        asked = set(self.state.round.asked)
        effects = leave(self, event, now)
        self.state.round.asked = asked
        return effects

    patch.setattr(Hub, "_leave", kept)


@mutant
def blobs_remembered_by_id(patch: Patch) -> None:
    """Another tree may get the id of one that is gone."""

    living: list[Any] = []  # in the place of an allocator, which reuses freed places, or does not

    def id_of(value: Any) -> int:
        if all(one is not value for one in living):
            living.append(value)
        return next(number for number, one in enumerate(living) if one is value) % 4

    def body(self: ModelStore, slots: Slots) -> BlobRef:
        key: Any = frozenset((name, id_of(value)) for name, value in slots.items())
        if key not in self._stored:
            self._stored[key] = self.blobs.put(slots)
        return self._stored[key]

    patch.setattr(ModelStore, "store_task_slots", body)


@mutant
def deadline_compared_strictly(patch: Patch) -> None:
    """The alarm is set for the very moment at which the deadline has not passed yet."""
    decide = Rounds.decide

    def strict(self: Rounds, view: Any) -> Any:
        decisions = decide(self, view)
        due = None if view.round.opened_at is None else view.round.opened_at + self.deadline(view)
        if due is not None and view.now == due and view.nodes.busy:
            return [Wait("not yet", due)]
        return decisions

    patch.setattr(Rounds, "decide", strict)


@mutant
def deadline_never_rings(patch: Patch) -> None:
    """The end of a deadline does not trigger a decision."""
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
            cells = self._view(part)
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

    def forgetful(self: Worker, task: Task) -> list[Effect]:
        if task.id > self._current():
            self.pending = None
        return take(self, task)

    patch.setattr(Worker, "_take", forgetful)


@mutant
def finished_order_begun_again(patch: Patch) -> None:
    acknowledged = Worker._acknowledged

    def forgetful(self: Worker, ack: Ack) -> list[Effect]:
        effects = acknowledged(self, ack)
        self.last_task = (-1, -1)
        return effects

    patch.setattr(Worker, "_acknowledged", forgetful)


@mutant
def late_idle_cancels_a_newer_order(patch: Patch) -> None:
    idle = Worker._idle
    patch.setattr(Worker, "_idle", lambda self, event: idle(self, NoTask((1 << 30, 0))))


@mutant
def said_once(patch: Patch) -> None:
    """A report is sent, and the worker waits for an acknowledgement that may never come."""
    hello = Worker._hello

    def silent(self: Worker, event: Event, now: float) -> list[Effect]:
        effects = on(self, event, now)
        if type(event).__name__ == "Timer" and self.unacknowledged is not None:
            return [Send("hub", hello(self)), *effects[1:]]
        return effects

    on = Worker.on
    patch.setattr(Worker, "on", silent)


@mutant
def report_not_spooled(patch: Patch) -> None:
    patch.setattr(SimulatedNode, "_spool", lambda self: True)


# Dynamic averaging


@mutant
def reference_kept_at_a_full_synchronization(patch: Patch) -> None:
    """Nodes go on from the new model, the hub from the old one."""
    rebase = ReferenceModel.rebase

    def kept(self: ReferenceModel, blobs: Any, slots: Slots) -> None:
        if not self.slots:
            rebase(self, blobs, slots)

    patch.setattr(ReferenceModel, "rebase", kept)


@mutant
def reference_changed_by_a_balancing(patch: Patch) -> None:
    begin = TaskRunner._begin

    def begun(self: TaskRunner, task: Task) -> None:
        begin(
            self, replace(task, numbers=task.numbers | {NEW_REFERENCE: 1.0}) if NEW_REFERENCE in task.numbers else task
        )

    patch.setattr(TaskRunner, "_begin", begun)


@mutant
def mean_added_to_the_last_version(patch: Patch) -> None:
    """Updates are relative to the base, and not to the result of the last balancing."""
    patch.setattr(RoundControl, "close", with_slots_of_the_version(RoundControl.close))


def with_slots_of_the_version(close: Any) -> Any:
    def closed(self: RoundControl, decision: Any, now: float) -> list[Effect]:
        algorithm, slots = self._state.settings.algorithm, self._state.store.slots
        step = algorithm.step
        object.__setattr__(algorithm, "step", lambda _, totals: step(slots, totals))
        try:
            effects: list[Effect] = close(self, decision, now)
            return effects
        finally:
            object.__delattr__(algorithm, "step")

    return closed


@mutant
def orders_withdrawn_by_a_balancing(patch: Patch) -> None:
    close = RoundControl.close
    patch.setattr(RoundControl, "close", lambda self, decision, now: close(self, replace(decision, keep=False), now))


@mutant
def orders_kept_at_a_full_synchronization(patch: Patch) -> None:
    close = RoundControl.close
    patch.setattr(RoundControl, "close", lambda self, decision, now: close(self, replace(decision, keep=True), now))


@mutant
def status_forgotten_by_the_snapshot(patch: Patch) -> None:
    encode = roster.to_state
    patch.setattr(roster, "to_state", lambda member: {n: v for n, v in encode(member).items() if n != "status"})


@mutant
def base_not_restored(patch: Patch) -> None:
    patch.setattr(ReferenceModel, "restore", classmethod(lambda cls, filters, state, blobs: cls(filters)))


@mutant
def packed_model_forgotten_by_the_snapshot(patch: Patch) -> None:
    state = ReferenceModel.state

    def without(self: ReferenceModel) -> Any:
        found = state(self)
        return found | {"difference": None} if found is not None else None

    patch.setattr(ReferenceModel, "state", without)


@mutant
def hub_goes_on_with_what_filters_lost(patch: Patch) -> None:
    moved = ReferenceModel.pack_version

    def exact(self: ReferenceModel, blobs: Any, slots: Slots, rebase: bool, seed: int) -> Slots:
        moved(self, blobs, slots, rebase, seed)
        return slots

    patch.setattr(ReferenceModel, "pack_version", exact)


@mutant
def examples_counted_on_after_a_synchronization(patch: Patch) -> None:
    local = Continual.local

    def on(self: Continual, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
        return local(self, learner, replace(task, numbers={**task.numbers, "new_reference": 0.0}), memory)

    patch.setattr(Continual, "local", on)


@mutant
def status_of_an_old_order_accepted(patch: Patch) -> None:
    status = Hub._status

    def trusting(self: Hub, event: TaskStatus, now: float) -> list[Effect]:
        member = self.roster.get(event.node)
        if member is not None and member.task is not None:
            event = replace(event, task=member.task.id)
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
    patch.setattr(Worker, "_take", lambda self, task: [e for e in take(self, task) if not isinstance(e, Amend)])
