"""The assignment and withdrawal of tasks. A node has at most one task."""

from __future__ import annotations

from shoal.core.job.job_plan import JobState
from shoal.core.job.settings_change import JobSettings
from shoal.core.protocol.message import Kind, Metrics, Task, TaskId
from shoal.core.protocol.metrics import PROBE
from shoal.core.scheduling.round import Round
from shoal.core.server.merge_check import MergeCheck
from shoal.core.server.model_store import ModelStore
from shoal.core.server.roster import NodeRoster, RosterMember


class TaskAssigner:
    """The assignment of tasks to nodes, numbered within the coordinator's term."""

    def __init__(self, settings: JobSettings, progress: JobState, store: ModelStore, roster: NodeRoster) -> None:
        self._settings, self._progress, self._store, self._roster = settings, progress, store, roster
        self.term, self.incarnation, self.issued = 0, 0, 0

    @property
    def newest(self) -> TaskId:
        return (self.term, self.issued)

    def next_id(self) -> TaskId:
        self.issued += 1
        return self.newest

    def give(self, node: str, kind: Kind, numbers: Metrics, current: Round, check: MergeCheck | None) -> Task:
        """Give a node a task of the current version with these numbers; it replaces the one before."""
        task_id, member = self.next_id(), self._roster[node]
        plan, algorithm, schedule = self._settings.plan, self._settings.algorithm, self._settings.schedule
        store, version = self._store, self._progress.version
        repeats = sum(report.node == node for report in current.reports) if schedule.family == "asynchronous" else 0
        source = check.next_slots(node, store.slots) if check is not None else store.slots
        slots = algorithm.task_slots(source, node, kind) if source else {}
        if kind == "gossip":
            slots = {name: source[name] for name in algorithm.mixed_slots}
        elif kind == "init":  # of a job that grows, its node gets the model that it grows
            slots = {name: value for name, value in slots.items() if name == "model"}
        own_model = slots.get("model") is not store.slots.get("model")
        missed = plan.sends_differences and member.history.held_version != version - 1
        whole = own_model or missed or check is not None or kind in ("gossip", "init")
        task = Task(
            id=task_id,
            node=node,
            kind=kind,
            version=version,
            seed=plan.seed if kind == "init" else plan.task_seed(version, node, repeats),
            blob=store.store_task_slots(slots if whole else store.reference.packed_slots(slots)) if slots else None,
            reference=store.reference.task_reference if slots and not whole else None,
            numbers=numbers,
            checks_allowed=schedule.max_lead if kind == "train" else 0,
        )
        member.assign(task)
        if not self.probe_numbers(kind, check):
            current.asked.add(node)
        current.failed.discard(node)
        current.recalled.discard(node)  # of the task that it had before
        return task

    def probe_numbers(self, kind: Kind, check: MergeCheck | None) -> Metrics:
        """Return what marks a task as a probe, a measurement for a choice among nodes; {} for other tasks."""
        choosing = kind == "evaluate" and self._progress.phase == "running" and check is None
        return {PROBE: 1.0} if choosing else {}

    def task_numbers(self, kind: Kind, check: MergeCheck | None) -> Metrics:
        """Return the numbers of the present version's tasks of a kind."""
        settings = self._settings.node_settings if kind in ("train", "gossip") else {}
        reference, stage = self._store.reference.task_numbers, self._progress.stage_numbers
        if kind == "train":  # a name with a dot is the schedule's own
            public = {name: value for name, value in self._progress.numbers.items() if "." not in name}
            return public | reference | settings | stage
        if kind == "gossip" or check is not None:  # a node in gossip, or back from it, may hold no reference
            return settings | stage
        return reference | self.probe_numbers(kind, check) | stage

    def withdraw(self, member: RosterMember, current: Round) -> None:
        """Take a member's task back, as if it had never been asked."""
        current.asked.discard(member.node)
        member.task = None

    def withdraw_all(self) -> None:
        for member in self._roster.all_members():
            member.task = None
