"""The handling of reports.

A report counts while its task stands. Then the task is gone, so no report counts twice; `last_ack` keeps each node's
last answer, so that a repeated report gets the same answer as the first.
"""

from __future__ import annotations

from math import hypot

from shoal.core.algorithm.algorithm import Update, tree_slot
from shoal.core.algorithm.filter import packed_layouts, unpack
from shoal.core.errors import InvalidPayload, Refused
from shoal.core.model.model_form import base_name
from shoal.core.model.tree import Layout, Slots, Tree, statistics_distance
from shoal.core.protocol.machine import Effect, Measured, Send
from shoal.core.protocol.message import Ack, Kind, Report, Task
from shoal.core.protocol.metrics import EVAL_ASKED, FINISHED
from shoal.core.server.handover import Handover
from shoal.core.server.hub_state import HubState
from shoal.core.server.round_control import RoundControl
from shoal.core.server.update_folder import UpdateFolder


class ReportHandler:
    """Checks reports and takes what they carry."""

    def __init__(self, state: HubState, rounds: RoundControl, handover: Handover, folder: UpdateFolder) -> None:
        self._state, self._rounds, self._handover, self._folder = state, rounds, handover, folder
        self._takers = {
            "init": self._take_init,
            "train": self._take_update,
            "evaluate": self._take_evaluation,
            "gossip": self._take_handed_back,
        }

    # Checks that change nothing

    def layouts(self, kind: Kind) -> dict[str, Layout | None]:
        """Return the slots that a report on such a task must carry, with their layouts (None: a number)."""
        settings, slots = self._state.settings, self._state.store.slots
        if kind == "gossip":
            return {name: tree_slot(slots, name).layout for name in settings.algorithm.mixed_slots}
        filters = settings.plan.filters
        return packed_layouts(filters, settings.algorithm.update_layout(slots)) if kind == "train" else {}

    def unfilter(self, slots: Slots, kind: Kind) -> Slots:
        """Return a report's slots with the filters undone. Raises `InvalidPayload`."""
        settings = self._state.settings
        if kind != "train" or not settings.plan.filters:
            return slots
        return unpack(settings.plan.filters, slots, settings.algorithm.update_layout(self._state.store.slots))

    def check(self, report: Report) -> Ack | None:
        """Return the answer to a report that cannot count any more; None if it counts now.

        Raises `Refused` for a task that this node was never given.
        """
        state, member = self._state, self._state.roster.get(report.node)
        if member is not None and member.task is not None and member.task.id == report.task:
            return None
        if member is not None and member.last_ack is not None and member.last_ack.task == report.task:
            return member.last_ack
        shown = ".".join(map(str, report.task))
        if report.task > state.tasks.newest or member is None or report.task not in member.recent_tasks:
            raise Refused(
                f"task {shown} was not given to {report.node}",
                code="task.foreign",
                hint="poll for the task that stands and report that one",
            )
        return Ack(report.task, False, f"task {shown} was superseded; version is {state.progress.version}")

    # Reports

    def handle(self, report: Report, now: float) -> list[Effect]:
        """Take a report and acknowledge it."""
        state = self._state
        try:
            answer = self.check(report)
        except Refused as refusal:
            return [Send(report.node, Ack(report.task, False, refusal.message))]
        if answer is not None:
            return [Send(report.node, answer)]
        member = state.roster.admit(report.node)
        assert member.task is not None
        task = member.task
        try:
            effects = self._takers[task.kind](report, task, now)
            ack = Ack(report.task, True)
        except (InvalidPayload, Refused) as refusal:
            effects = [state.event("refusal", f"{report.node}: {refusal.message}", report.node)]
            if refusal.code != "report.stale":  # a slow node is not a broken one
                effects += self._folder.count_failure(member, refusal.message, now)
                member.is_gossiping = task.kind == "gossip"
            ack = Ack(report.task, False, refusal.message)
        else:
            member.clear_failures()
        member.close_task(ack)
        return [*effects, Send(report.node, ack)]

    def _take_init(self, report: Report, task: Task, now: float) -> list[Effect]:
        if report.blob is None:
            raise InvalidPayload("the task asks for an initial model, but the report has none", code="payload.missing")
        base, store = self._state.settings.plan.base_model, self._state.store
        if base and (given := tree_slot(store.blobs.get(report.blob), "model").layout.base_model) != base:
            text = f"the initial model belongs to {base_name(given)}, the job to {base_name(base)}"
            raise InvalidPayload(text, code="payload.base-model")
        stage = self._state.progress.stage
        what = f"stage {stage}: model grown by {report.node}" if stage else f"initial model of {report.node}"
        return self._rounds.start(report.blob, what, now)

    def _take_update(self, report: Report, task: Task, now: float) -> list[Effect]:
        state, settings = self._state, self._state.settings
        staleness = state.progress.version - task.version
        if not settings.schedule.accepts_staleness(staleness):
            raise Refused(f"{staleness} versions too late", code="report.stale")
        if report.blob is None:
            raise InvalidPayload("the task asks for an update, but the report has none", code="payload.missing")
        if not 0 < report.weight < float("inf"):
            raise Refused(f"a weight of {report.weight} cannot be averaged", code="report.weight")
        layouts = settings.algorithm.update_layout(state.store.slots)
        packed = state.store.blobs.get(report.blob)
        slots = unpack(settings.plan.filters, packed, layouts)
        norm = hypot(report.norm, self._statistics_moved(slots))
        update = Update(report.node, task.version, report.weight, slots, norm, self._sent_slots(task))
        state.open_round(now)
        excluded = self._folder.fold(report, task, update, packed, now)
        member = state.roster[report.node]
        member.history.add_report(report)
        member.history.counted_updates += 1
        member.is_finished = bool(report.metrics.get(FINISHED))
        return [*excluded, *self._measure(report, task.version)]

    def _statistics_moved(self, slots: Slots) -> float:
        """Return the distance of an update's statistics, which are values, from those of the present model."""
        found, own = slots.get("model"), tree_slot(self._state.store.slots, "model")
        if not own.layout.statistics or not isinstance(found, Tree) or found.layout != own.layout:
            return 0.0
        return statistics_distance(found, own)

    def _sent_slots(self, task: Task) -> Slots:
        """Return the slots that a node was sent with a task, for an algorithm that needs them."""
        state = self._state
        if not state.settings.algorithm.needs_sent_model:
            return {}
        if task.version == state.progress.version:
            return state.store.slots
        assert task.blob is not None, "a task to train carries the model"
        return state.store.blobs.get(task.blob)

    def _take_handed_back(self, report: Report, task: Task, now: float) -> list[Effect]:
        """Take a peer's model, relative to the version at which gossip began."""
        if report.blob is None or not 0 < report.weight < float("inf"):
            raise InvalidPayload("the task asks for a peer's model and its weight", code="payload.missing")
        self._handover.cancel_merge_check()
        state = self._state
        slots = state.store.blobs.get(report.blob)
        report = report.with_norm(hypot(report.norm, self._statistics_moved(slots)))
        state.sum.totals.add(slots, report.weight, report.norm)
        state.round.add_report(report, task)
        return self._measure(report, task.version)

    def _take_evaluation(self, report: Report, task: Task, now: float) -> list[Effect]:
        state, current = self._state, self._state.round
        if state.merge_check is not None:
            state.merge_check.add_report(report)
            return []
        if state.tasks.probe_numbers("evaluate", state.merge_check):
            current.probed.add(report.node)
            state.roster[report.node].history.add_report(report)
            return []
        current.add_report(report, task)
        return self._measure(report, task.version)

    # Metrics

    def _measure(self, report: Report, version: int) -> list[Effect]:
        state = self._state
        if not report.metrics:
            return []
        by_schedule = state.progress.phase == "running" and state.progress.mode == "server"
        if by_schedule and state.settings.schedule.accepts_staleness(1):
            return self._measure_latest(report)
        means = state.sum.means[version]
        means.add(report.metrics, report.weight, report.node)
        return [Measured(version, means.values())]

    def _measure_latest(self, report: Report) -> list[Effect]:
        """Measure the newest version where few reports make one: "eval/…" averages all nodes' last reports."""
        state, version = self._state, self._state.progress.version
        state.latest_means.put(report.node, report.metrics)
        means = state.sum.means[version]
        other = {name: value for name, value in report.metrics.items() if not name.startswith("eval/")}
        means.add(other, report.weight, report.node)
        found = state.latest_means.values()
        asked = {EVAL_ASKED: float(len(state.roster.busy()))} if found else {}
        return [Measured(version, means.values() | found | asked)]
