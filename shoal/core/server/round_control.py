"""The rounds of a job: start, ask, recall, close a version, end."""

from __future__ import annotations

from dataclasses import replace

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.algorithm.sharding import ShardedTotals
from shoal.core.job.early_stop import EarlyStop
from shoal.core.job.job_plan import Phase
from shoal.core.job.settings_change import ROUNDS
from shoal.core.job.update_bounds import RecentNorms
from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import Effect, ModelVersion, Save, Send
from shoal.core.protocol.message import BlobRef, Stop
from shoal.core.protocol.metrics import LatestMeans
from shoal.core.scheduling.schedule import Ask, Close, Recall
from shoal.core.server.hub_state import HubState
from shoal.core.server.update_folder import UpdateFolder

SECONDS_KEPT = 16
"""Durations of past versions that a schedule sees."""


class RoundControl:
    """The execution of a schedule's decisions."""

    def __init__(self, state: HubState, folder: UpdateFolder) -> None:
        self._state, self._folder = state, folder

    def start(self, initial: BlobRef, why: str, now: float) -> list[Effect]:
        """Make the first version of the job or of a stage from its first model, and go from waiting to running.

        State that follows from models of the stage before starts again: the algorithm's slots, the reference model, and
        what is known of updates' norms.
        """
        state, store, settings = self._state, self._state.store, self._state.settings
        progress = state.progress
        progress.version = settings.plan.first_version if store.model is None else progress.version + 1
        progress.stage_version = progress.best_version = progress.version
        settings.adopt_changes(progress.version)
        store.slots = settings.algorithm.init(tree_slot(store.blobs.get(initial), "model"))
        state.recent_norms, state.latest_means = RecentNorms(), LatestMeans()
        state.tasks.withdraw_all()
        progress.phase = "evaluating" if self.is_last else "running"
        state.clear_round()
        model, others = store.save_version(store.slots)
        if settings.uses_reference:
            store.reference.send_whole()
            store.reference.rebase(store.blobs, store.slots)
            progress.numbers = settings.schedule.numbers(state.make_view(now), None)
        numbers = progress.numbers | progress.stage_numbers
        version = ModelVersion(progress.version, model, why, now, now, numbers=numbers, algorithm_state=others)
        return [Save(version)]

    def ask(self, ask: Ask, now: float) -> list[Effect]:
        state = self._state
        state.open_round(now)
        effects: list[Effect] = [state.event("decision", ask.why)] if ask.why else []
        numbers = state.tasks.task_numbers(ask.kind, state.merge_check)
        for node in ask.nodes:
            task = state.tasks.give(node, ask.kind, numbers, state.round, state.merge_check)
            state.round.bytes_transferred += task.blob.nbytes if task.blob is not None else 0
            effects.append(Send(node, task))
        return effects

    def recall(self, recall: Recall, now: float) -> list[Effect]:
        state = self._state
        effects: list[Effect] = [state.event("decision", recall.why)]
        effects += [Send(node, state.roster[node].recall()) for node in recall.nodes]
        state.round.recalled.update(recall.nodes)
        state.round.recalled_at = now
        return effects

    def advance(self) -> list[Effect]:
        """Let each node that waits at a check go on to the next."""
        return [
            Send(one.node, one.allow_next_check()) for one in self._state.roster.present_members() if one.is_waiting
        ]

    def close(self, close: Close, now: float) -> list[Effect]:
        """Make the next version. Withdraws the tasks of this one unless the schedule keeps them.

        If the sum cannot take one of the reports, it makes none, and the schedule decides again.
        """
        state, progress = self._state, self._state.progress
        store, settings = state.store, state.settings
        current, from_peers = state.round, progress.mode != "server"
        assert current.opened_at is not None
        count = len(current.reports)
        folded = [] if from_peers else self._folder.fold_all_held(now)
        if len(current.reports) < count:
            return folded
        weight, opened = float(state.sum.totals.weight), current.opened_at
        asked = max(len(current.involved), len(current.reports))  # some have been asked again
        view = state.make_view(now)
        stops = [] if from_peers else self._stop_early()
        grows = "" if from_peers else self._end_stage()
        progress.version += 1
        rebase = close.rebase or settings.plan.sends_differences
        store.slots = self._handed_back_slots() if progress.mode == "returning" else self._next_slots(rebase)
        counts = [(report, state.sum.weight_of(report)) for report in current.reports]
        reports = tuple((r.node, r.task, counted, r.blob.digest) for r, counted in counts if r.blob is not None)
        for report in current.reports:
            if report.task not in state.sum.reduced:
                state.bounded_nodes.pop(report.node, None)
        if not from_peers:  # the time in gossip predicts no round
            progress.round_seconds = (*progress.round_seconds, now - opened)[-SECONDS_KEPT:]
        if settings.schedule.family == "synchronous":
            self._note_deadlines(close.late)
        if not close.keep:
            state.tasks.withdraw_all()
        state.clear_round()
        if close.keep and state.roster.busy():
            state.open_round(now)  # the deadline runs even if all nodes that may train at once hang
        model, others = store.save_version(store.slots)
        if rebase:
            store.reference.rebase(store.blobs, store.slots)
        if progress.mode == "returning":
            view = replace(view, round=replace(view.round, reporters=[]))  # they violate nothing
        state.adopt_settings()
        progress.numbers = settings.schedule.numbers(view, close)
        numbers = progress.numbers | progress.stage_numbers
        version = ModelVersion(progress.version, model, close.why, opened, now, weight, reports, asked, numbers, others)
        effects = [*folded, state.event("decision", f"version {progress.version}: {close.why}"), Save(version), *stops]
        return effects + self._after_close(close, grows, now)

    def _stop_early(self) -> list[Effect]:
        """Let the version in hand be the last, if the metric of the one before says so."""
        state, settings, version = self._state, self._state.settings, self._state.progress.version
        why = self._judge(settings.plan.early_stop) if self._is_last_stage else ""
        if not why or version + 1 >= settings.plan.versions:
            return []
        settings.pending = settings.pending | {ROUNDS: float(version + 1)}
        return [state.event("state", f"version {version + 1} is the last: {why}")]

    @property
    def _is_last_stage(self) -> bool:
        return self._state.progress.stage + 1 >= len(self._state.settings.plan.stages)

    def _judge(self, rule: EarlyStop) -> str:
        """Return why the job or stage with this rule ends, by the metric of the newest version; "" if it goes on."""
        progress, version = self._state.progress, self._state.progress.version
        value = self._state.metrics_of(version).get(rule.metric) if rule.is_used else None
        if value is None:
            return ""
        if rule.improves(value, progress.best_value):
            progress.best_value, progress.best_version = value, version
        return rule.reason(value, version, progress.best_value, progress.best_version)

    def _end_stage(self) -> str:
        """Return why the version in hand is the last of its stage; "" if it is not."""
        progress = self._state.progress
        if self._is_last_stage:
            return ""
        stage = self._state.settings.plan.stages[progress.stage]
        return self._judge(stage.plateau) or stage.reason(progress.version + 1 - progress.stage_version)

    def _after_close(self, close: Close, grows: str, now: float) -> list[Effect]:
        state, progress = self._state, self._state.progress
        if self.is_last or close.last:
            progress.phase, state.round.opened_at = "evaluating", None  # all nodes measure the last version
            state.tasks.withdraw_all()
            return []
        if grows:
            state.tasks.withdraw_all()
            state.clear_round()
            progress.enter_stage(progress.stage + 1)
            return [state.event("state", f"stage {progress.stage} follows version {progress.version}: {grows}")]
        excluded = state.eligibility.excluded_nodes(now).keys() | state.roster.drained  # drained during their task
        to = tuple(node for node in close.to if node not in excluded)
        return self.ask(Ask(to, "train", ""), now) if to else []

    def close_early(self, why: str, now: float) -> list[Effect]:
        """Close a version of the reports that are in, if any, and withdraw all tasks."""
        state = self._state
        rebase = state.settings.schedule.relative_to_reference
        closed = [*self._folder.drop_without_comparison(now), *self._folder.fold_all_held(now)]
        closed += self.close(Close(why, rebase=rebase), now) if state.round.reports else []
        state.tasks.withdraw_all()
        state.clear_round()
        state.adopt_settings()
        return closed

    def end(self, phase: Phase, why: str) -> list[Effect]:
        """End the job."""
        state, progress = self._state, self._state.progress
        progress.phase, progress.paused_at, progress.ends_after_round, progress.waiting_for = phase, None, why, ""
        state.tasks.withdraw_all()
        sends = [Send(member.node, Stop(why)) for member in state.roster.present_members()]
        return [state.event("state", f"{phase}: {why}"), *sends]

    @property
    def is_last(self) -> bool:
        """True if the current version is the last."""
        progress = self._state.progress
        return progress.version >= self._state.settings.plan.versions or bool(progress.ends_after_round)

    def merged_slots(self) -> Slots:
        """Return the slots with the weighted mean of the models that came back. Uses the sum up."""
        check, slots = self._state.merge_check, self._state.store.slots
        if check is not None:
            return check.slots
        totals, mixed = self._state.sum.totals, self._state.settings.algorithm.mixed_slots
        others = {name: totals.mean(name) for name in mixed if name != "model"}
        return {**slots, "model": totals.mean_onto("model", tree_slot(slots, "model")), **others}

    def _handed_back_slots(self) -> Slots:
        """Return the merged slots. No filter may round them: evaluators measured them as they are."""
        self._state.store.reference.send_whole()
        return self.merged_slots()

    def _next_slots(self, rebase: bool) -> Slots:
        """Return the algorithm's next slots, as filters leave them on their way to the nodes."""
        state, store, totals = self._state, self._state.store, self._state.sum.totals
        algorithm, plan = state.settings.algorithm, state.settings.plan
        slots = store.slots | store.reference.slots
        totals.members = state.eligibility.counted_nodes()
        made = totals.step(algorithm, slots) if isinstance(totals, ShardedTotals) else algorithm.step(slots, totals)
        return store.reference.pack_version(store.blobs, made, rebase, plan.task_seed(state.progress.version))

    def _note_deadlines(self, late: bool) -> None:
        """Record who reported in a round, and who did not before its deadline."""
        current = self._state.round
        for node in current.asked:
            if late or node in current.norms:
                self._state.roster[node].history.add_deadline(met=node in current.norms)
