"""The state of a hub: its parts, the view that a schedule gets, and the snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.algorithm.filter import unpack
from shoal.core.algorithm.reference_model import ReferenceModel, reference_refs
from shoal.core.job.job_plan import JobPlan, JobState
from shoal.core.job.round_sum import RoundSum
from shoal.core.job.settings_change import JobSettings
from shoal.core.job.update_bounds import RecentNorms
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import Effect, JobEvent, JobEventKind
from shoal.core.protocol.message import BlobRef, Blobs, Metrics
from shoal.core.protocol.metrics import LatestMeans
from shoal.core.protocol.snapshot import from_state, to_state
from shoal.core.scheduling.round import Round
from shoal.core.scheduling.schedule import ModelMonitor, NodeSampler, NodeStates, Schedule, View, Wait
from shoal.core.server.eligibility import Eligibility
from shoal.core.server.merge_check import MergeCheck
from shoal.core.server.model_store import ModelStore
from shoal.core.server.roster import NodeRoster, task_refs
from shoal.core.server.task_assigner import TaskAssigner


@dataclass
class QuietWait:
    """A schedule's wait for a number of reports (`Wait.reports`), during which it need not see each one.

    With a thousand nodes, it would otherwise look at all of them a thousand times.
    """

    wait: Wait
    revision: int
    """The roster's revision when the wait began."""
    seen: int
    """Reports that are in; each event that only adds one report adds one here."""
    wake: list[Effect]
    """The alarm, which such events do not change."""


class HubState:
    """The parts of a hub's state. Models are blob references, except the newest version and the reference."""

    def __init__(
        self,
        plan: JobPlan,
        algorithm: Algorithm,
        schedule: Schedule,
        blobs: Blobs,
        snapshot: Mapping[str, Any] | None = None,
    ) -> None:
        self.settings = JobSettings(plan, algorithm, schedule)
        self.progress = JobState() if snapshot is None else from_state(JobState, snapshot["progress"])
        self.store = ModelStore(blobs, plan.filters)
        self.roster = NodeRoster() if snapshot is None else NodeRoster.restore(snapshot["roster"])
        self.tasks = TaskAssigner(self.settings, self.progress, self.store, self.roster)
        self.eligibility = Eligibility(self.settings, self.store, self.roster)
        self.recent_norms = RecentNorms()
        self.bounded_nodes: dict[str, str] = {}
        """Nodes whose last update was too long or too heavy, and why."""
        self.latest_means = LatestMeans()
        self.clear_round()
        if snapshot is not None:
            self._load(snapshot)
        self.is_idle = self.has_no_work
        """True if no present node worked for the job after the last event. Other threads read it while an event is in
        progress: between the last report of a round and the first task of the next, no node has a task."""

    # The round

    def clear_round(self) -> None:
        """Start an empty round."""
        self.round, self.sum = Round(), RoundSum(self.empty_totals())
        self.merge_check: MergeCheck | None = None
        self.store.forget_task_slots()
        self.quiet_wait: QuietWait | None = None

    def open_round(self, now: float) -> None:
        """Mark the round as begun at its first task or report."""
        if self.round.opened_at is None:
            self.round.opened_at = now
            self.round.population = len(self.eligibility.askable_members(now))

    def empty_totals(self) -> Totals:
        """Return an empty sum, split over the job's shards if it has several."""
        return self.store.empty_totals(self.settings.plan.aggregation_precision, self.settings.plan.shards)

    def adopt_settings(self) -> None:
        """Put the settings that changed since the last version into force."""
        self.settings.adopt_changes(self.progress.version)
        self.quiet_wait = None

    def metrics_of(self, version: int) -> Metrics:
        """Return the metrics of the newest version so far; where few reports make one, those of all nodes."""
        means = self.sum.means.get(version)
        return (means.values() if means is not None else {}) | self.latest_means.values()

    # For people

    def event(self, kind: JobEventKind, text: str, node: str = "") -> JobEvent:
        """Return a job event at the current version."""
        return JobEvent(kind, text, self.progress.version, node)

    @property
    def has_no_work(self) -> bool:
        """True if no present node works now for a job that is neither paused nor over."""
        return self.progress.paused_at is None and not self.progress.is_over and not self.roster.is_working

    def set_waiting_for(self, why: str, now: float) -> None:
        """Store what the job waits for; where no node works for it, with what keeps nodes from being asked."""
        if self.has_no_work:
            why = why if self.eligibility.askable_members(now) or why.endswith("ready") else "no node is ready"
            missing = self.eligibility.describe_missing(self.progress.not_asked)
            why = "; ".join(part for part in (why, missing) if part)
        self.progress.waiting_for = why

    # Snapshots

    def blob_refs(self) -> list[BlobRef]:
        """Return the blobs that this state needs: the newest version's, the reference, and those of tasks."""
        check = self.merge_check
        own = [self.store.model, self.store.algorithm_state]
        refs = [*own, *self.store.reference.refs(), check.ref if check is not None else None]
        for member in self.roster.all_members():
            refs += [member.task.blob, member.task.reference] if member.task is not None else []
        return [ref for ref in refs if ref is not None]

    def snapshot(self) -> dict[str, Any]:
        """Return all that must outlive the process, as JSON values.

        Gathered reports are not part of it, so it is complete only after an `on` that returned a `Save`.
        """
        return {
            "progress": to_state(self.progress),
            "term": self.tasks.term,
            "incarnation": self.tasks.incarnation,
            "issued": self.tasks.issued,
            "clock_offset_s": self.eligibility.clock_offset_s,
            "foreign_models": dict(self.eligibility.foreign_models),
            "settings_changed": self.settings.changed,
            "settings_pending": self.settings.pending,
            "model": to_state(self.store.model) if self.store.model else None,
            "algorithm_state": to_state(self.store.algorithm_state) if self.store.algorithm_state else None,
            "roster": self.roster.state(),
            "reference": self.store.reference.state(),
            "round": self.round.state(),
            "recent_norms": self.recent_norms.state(),
            "bounded_nodes": dict(self.bounded_nodes),
            "latest_means": self.latest_means.state(),
        }

    def _load(self, snapshot: Mapping[str, Any]) -> None:
        tasks, eligibility, store = self.tasks, self.eligibility, self.store
        tasks.term, tasks.incarnation, tasks.issued = (snapshot[name] for name in ("term", "incarnation", "issued"))
        eligibility.clock_offset_s = snapshot["clock_offset_s"]
        eligibility.foreign_models = dict(snapshot["foreign_models"])
        changed, pending = snapshot["settings_changed"], snapshot["settings_pending"]
        self.settings.restore_changes(changed, pending, self.progress.version)
        self.recent_norms = RecentNorms.restore(snapshot["recent_norms"])
        self.bounded_nodes = dict(snapshot["bounded_nodes"])
        self.latest_means = LatestMeans.restore(snapshot["latest_means"])
        if snapshot["model"] is not None:
            store.load_version(*_version_refs(snapshot))
        self.round, self.sum = Round.restore(snapshot["round"]), RoundSum(self.empty_totals())
        store.reference = ReferenceModel.restore(self.settings.plan.filters, snapshot["reference"], store.blobs)

    # For the schedule

    def make_view(self, now: float) -> View:
        """Return what a schedule sees now."""
        roster, progress = self.roster, self.progress
        excluded = self.eligibility.excluded_nodes(now)
        able = roster.askable_names()
        able = tuple(node for node in able if node not in excluded) if excluded else able
        plan, store = self.settings.plan, self.store
        nodes = NodeStates(
            members=able,
            busy=roster.busy(),
            waiting=roster.waiting_nodes(),
            finished=roster.finished_nodes(),
            present=len(roster.present_members()) - len(excluded),
        )
        return View(
            now=now,
            version=progress.version,
            round=self.round,
            nodes=nodes,
            seconds=progress.round_seconds,
            numbers=progress.numbers,
            versions_left=0 if progress.ends_after_round else plan.versions - progress.version,
            sampler=NodeSampler(plan.selection, plan.seed, lambda node: roster[node].candidate),
            monitor=ModelMonitor(
                divergence=self._squared_divergence,
                reference_size=store.reference.squared_norm,
                variance=self._estimate_variance,
            ),
        )

    def _squared_divergence(self) -> float:
        """Return the squared norm of the mean of the reports, with what is held as it would count now."""
        settings, held = self.settings, list[tuple[Slots, float]]()
        layouts = settings.algorithm.update_layout(self.store.slots)
        found = self.sum.weigh_held(settings.weight_fraction_max, self.recent_norms.typical_weight)
        for one, weight in found:
            slots = unpack(settings.plan.filters, one.packed, layouts)
            held.append((slots, settings.algorithm.fold_weight(replace(one.update, weight=weight), one.discount)))
        return self.sum.totals.squared_mean_norm("model", held)

    def _estimate_variance(self) -> float | None:
        """Return the algorithm's estimate from the statuses of all working nodes; None while one is missing."""
        statuses = [member.status for member in self.roster.present_members() if member.task is not None]
        known = [status for status in statuses if status is not None]
        return self.settings.algorithm.estimate_variance(known) if known and len(known) == len(statuses) else None


def state_refs(snapshot: Mapping[str, Any]) -> list[BlobRef]:
    """Return the blobs that a snapshot needs."""
    return [*_version_refs(snapshot), *reference_refs(snapshot["reference"]), *task_refs(snapshot["roster"])]


def _version_refs(snapshot: Mapping[str, Any]) -> list[BlobRef]:
    """Return the blob of the newest version's model, and of its other slots, as far as there are any."""
    return [BlobRef(**snapshot[name]) for name in ("model", "algorithm_state") if snapshot[name] is not None]
