"""Invariants of every run with a coordinator, checked after every event.

    once          no update counts in two versions, nor twice in one; no node counts twice in a version, unless the
                  schedule asks it again
    kept          an update that was acknowledged as counted is in a closed version, or in the open one
    numbered      versions are consecutive, and begin with the initial model
    fresh         an update counts only in the version of its task, or as much later as is admitted
    sum           a version's model is the weighted mean of exactly the updates that it lists
    grown         the first version of a stage is the last one of the stage before, with further weights of 0
    asked         a node may be selected when it gets a train task (`shoal.core.scheduling.selection`)
    task          a task's id names one task for ever; it carries what the algorithm wants sent
    memory        private memory is replaced only after a counted acknowledgement, by the memory of the counted
                  report; work starts from the memory of the node's last counted report
    replay        snapshot and journal lead to the same effects and the same state as the first time

Further invariants of dynamic averaging: see `shoal.sim.checks.reference_checks`. The scenarios check that schedules
settle, that needed blobs exist, and that runs end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from math import fsum, inf
from typing import Any

import numpy as np

from shoal.core.algorithm.algorithm import Update, tree_slot
from shoal.core.algorithm.filter import pack_difference, unpack
from shoal.core.algorithm.reference_model import NEW_REFERENCE
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Array, Slots, Tree, digest, to_float
from shoal.core.protocol.machine import (
    Effect,
    Event,
    JobEvent,
    ModelVersion,
    ReportRejected,
    Save,
    Send,
    TaskResult,
    Work,
)
from shoal.core.protocol.message import Ack, BlobRef, Blobs, Message, Report, Task, TaskId
from shoal.core.protocol.metrics import STAGE
from shoal.core.server.hub import Hub
from shoal.core.server.model_store import load_slots
from shoal.sim.checks.reference_checks import ReferenceChecker, Violation, require
from shoal.sim.network.observer import Observer

__all__ = ["InvariantChecker", "Violation", "require"]

Key = tuple[str, TaskId]
"""A report's identity: its node and its task."""

TOLERANCE = 1e-6
"""Between a float32 model and the recomputed one, relative to the greater of 1 and the value."""


class InvariantChecker(Observer):
    """An observer that checks the hub against all that it has sent and received."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._history: list[Sequence[Effect]] = []
        self._tasks: dict[TaskId, Task] = {}
        self._versions: list[ModelVersion] = []
        self._base: ModelVersion | None = None
        self._closed: dict[Key, int] = {}  # version by report
        self._acked: set[Key] = set()  # as counted, and in no closed version yet
        self._open: set[Key] = set()  # in the version that is open
        self._excluded: set[Key] = set()  # refused after they had been acknowledged
        self._at_crash: list[Any] = []
        self._memories = MemoryChecker()
        self._anchored = ReferenceChecker(blobs)

    def fed(self, index: int, event: Event, now: float, effects: Sequence[Effect], hub: Hub) -> None:
        """Check an event of the journal, and its replays."""
        if index < len(self._history):
            again = self._history[index] == effects
            require(again, "replay: event {}, {}, has other effects than the first time", index, event)
            return
        require(index == len(self._history), "replay: event {} is fed before {}", index, len(self._history))
        self._history.append(effects)
        self._note_excluded(effects, hub)
        for effect in effects:
            if isinstance(effect, Send):
                if isinstance(effect.message, Task):
                    self._check_asked(effect.message, hub, now)
                    self._check_task(effect.message, hub)
                elif isinstance(effect.message, Ack) and effect.message.counted and isinstance(event, Report):
                    self._memories.counted(event)
            elif isinstance(effect, Save) and isinstance(effect.what, ModelVersion):
                self._check_version(effect.what, hub)
        self._anchored.fed(event, effects, hub)
        if isinstance(event, Report) and hub.progress.phase == "running":
            self._check_round(hub)

    def _note_excluded(self, effects: Sequence[Effect], hub: Hub) -> None:
        """Find the reports that the hub has refused after it had acknowledged them."""
        now = {(report.node, report.task) for report in hub.state.round.reports}
        versions = [e.what for e in effects if isinstance(e, Save) and isinstance(e.what, ModelVersion)]
        counted = {(node, task) for version in versions for node, task, _, _ in version.reports}
        refused = {effect.node for effect in effects if isinstance(effect, JobEvent) and effect.kind == "refusal"}
        self._excluded |= {key for key in (self._open | self._acked) - now - counted if key[0] in refused}
        self._acked -= self._excluded
        self._open = now

    def _check_asked(self, task: Task, hub: Hub, now: float) -> None:
        if task.id in self._tasks or task.kind != "train":
            return
        one, selection = hub.roster[task.node].candidate, hub.settings.plan.selection
        closed = (
            ""
            if hub.settings.schedule.relative_to_reference
            else selection.describe_closed(one, now + hub.eligibility.clock_offset_s)
        )
        require(not selection.describe_exclusion(one), "asked: {} is asked: {}", one, selection)
        reported, form = hub.roster[task.node].node_info.model, tree_slot(hub.store.slots, "model").layout.form
        require(reported in (None, form), "asked: {} has another model: {}", task.node, reported)
        require(
            not closed,
            "asked: {} is asked at {} s of the day: {}",
            one,
            (now + hub.eligibility.clock_offset_s) % 86400,
            closed,
        )

    def _check_task(self, task: Task, hub: Hub) -> None:
        known = self._tasks.setdefault(task.id, task)
        same = replace(task, revision=known.revision, recall=known.recall, checks_allowed=known.checks_allowed)
        require(known == same, "task: {} has the id of {}", task, known)
        require(task.reference in (None, *hub.state.blob_refs()), "task: {} names a base that no node holds", task)
        if (
            known is task and hub.store.slots and task.version == hub.progress.version
        ):  # else it was given before a close
            slots = hub.settings.algorithm.task_slots(hub.store.slots, task.node, task.kind)
            slots = {"model": slots["model"]} if task.kind == "init" else slots
            whole = task.kind == "init" or (hub.settings.plan.sends_differences and task.reference is None)
            wanted = self._blobs.put(slots if whole else hub.store.reference.packed_slots(slots))
            require(task.blob == wanted, "task: {} does not carry what the algorithm wants sent", task)

    def _check_round(self, hub: Hub) -> None:
        nodes = [report.node for report in hub.state.round.reports]
        if hub.settings.schedule.family != "asynchronous":
            require(len(set(nodes)) == len(nodes), "once: a node counts twice in one version: {}", nodes)
        for report in hub.state.round.reports:
            version = self._closed.get((report.node, report.task))
            require(version is None, "once: {} has counted in version {} already", report, version)

    def _check_version(self, version: ModelVersion, hub: Hub) -> None:
        require(version.number == len(self._versions), "numbered: {} where {} is due", version, len(self._versions))
        keys = [(node, task) for node, task, _, _ in version.reports]
        known = set(keys) if hub.settings.schedule.family == "asynchronous" else {node for node, _ in keys}
        require(len(known) == len(keys), "once: a node counts twice in {}", version)
        for key in keys:
            require(key not in self._closed, "once: {} is in {}, and in an earlier version", key, version)
            self._closed[key] = version.number
            made_for, since = self._tasks[key[1]].version, self._base.number if self._base else version.number - 1
            in_time = made_for >= since or (
                not self._base and hub.settings.schedule.accepts_staleness(since - made_for)
            )
            require(in_time, "fresh: {} counts an update that was made for {}", version, made_for)
        missing = self._acked - set(keys)
        require(not missing, "kept: {} lacks {}, which were acknowledged as counted", version, missing)
        self._acked.clear()
        if self._versions and version.numbers.get(STAGE) != self._versions[-1].numbers.get(STAGE):
            self._check_growth(self._versions[-1], version)
        elif self._versions:
            self._check_sum(self._base or self._versions[-1], version, hub)
        self._versions.append(version)
        if hub.settings.schedule.relative_to_reference and hub.store.reference.task_numbers[NEW_REFERENCE]:
            self._base = version

    def _check_sum(self, before: ModelVersion, version: ModelVersion, hub: Hub) -> None:
        """Fold the listed updates again, in reverse order, onto the version before; add the models by hand, too."""
        base, found = (load_slots(self._blobs, one.model, one.algorithm_state) for one in (before, version))
        expected, filters = hub.settings.algorithm.update_layout(base), hub.settings.plan.filters
        totals, by_hand, weights = (
            Totals(hub.settings.plan.aggregation_precision),
            0.0 * floats(tree_slot(base, "model")),
            fsum(weight for _, _, weight, _ in version.reports),
        )
        for node, _, weight, name in reversed(version.reports):
            slots = unpack(filters, self._blobs.get(BlobRef(name, 0)), expected)
            norm = max(largest(value) for value in slots.values())
            totals = hub.settings.algorithm.fold(totals, Update(node, before.number, weight, slots, norm), 1.0)
            by_hand += weight * floats(tree_slot(slots, "model"))
        require(weights == version.weight > 0, "sum: {} lists a weight of {}", version, weights)
        if filters and hub.settings.uses_reference:
            self._check_filtered(hub, version.number, totals, base, found)
            return
        gap = distance(hub.settings.algorithm.step(base, totals), found)
        good = gap == 0 if hub.settings.plan.aggregation_precision == "fixed" else gap <= TOLERANCE
        require(good, "sum: {} is {} away from the sum of what it lists", version, gap)
        wanted = floats(tree_slot(base, "model")) + by_hand / weights
        gap = relative(wanted, floats(tree_slot(found, "model")))
        require(gap <= TOLERANCE, "sum: {} is {} away from the weighted mean of what it lists", version, gap)

    def _check_growth(self, before: ModelVersion, version: ModelVersion) -> None:
        """Check the first version of a stage, as `shoal.sim.hosts.toy_models` grows its models."""
        stage = version.numbers.get(STAGE, 0.0)
        require(stage == before.numbers.get(STAGE, 0.0) + 1, "grown: {} does not follow {}", version, before)
        require(not version.reports, "grown: {} counts updates of the stage before", version)
        base, found = (floats(tree_slot(self._blobs.get(one.model), "model")) for one in (before, version))
        right = len(found) == len(base) + 1 and np.array_equal(found, [*base, 0.0])
        require(right, "grown: {} computes something else than the version before", version)

    def _check_filtered(self, hub: Hub, number: int, totals: Totals, base: Slots, found: Slots) -> None:
        """Check that the model is what receivers decode; bit for bit where the order of sums does not matter."""
        model, seed = tree_slot(hub.settings.algorithm.step(base, totals), "model"), hub.settings.plan.task_seed(number)
        _, received = pack_difference(hub.settings.plan.filters, model, tree_slot(base, "model"), seed)
        gap = apart(received, tree_slot(found, "model"))
        require(
            gap == 0 or hub.settings.plan.aggregation_precision != "fixed",
            "sum: the model is {} away from what its receivers have",
            gap,
        )

    def sent(self, node: str, message: Message | ReportRejected, hub: Hub) -> None:
        """Check a message of the coordinator."""
        if not isinstance(message, Ack) or not message.counted or self._kind(message.task) != "train":
            return
        key = (node, message.task)
        if key not in self._closed:
            here = any((report.node, report.task) == key for report in hub.state.round.reports)
            if key in self._excluded:
                return
            require(here, "kept: {} is acknowledged as counted, but it is in no version", key)
            self._acked.add(key)

    def _kind(self, task: TaskId) -> str:
        require(task in self._tasks, "task: {} is acknowledged, but it was never given", task)
        return self._tasks[task].kind

    def names(self, hub: Hub) -> list[BlobRef | None]:
        """Return the blobs that the next version is checked against."""
        base = [self._base.model, self._base.algorithm_state] if self._base else []
        return [*(report.blob for report in hub.state.round.reports), *base]

    def crashed(self, hub: Hub) -> None:
        """Record the state that the next process must restore."""
        self._at_crash = everything(hub)

    def restored(self, hub: Hub) -> None:
        """Check that the lost state is restored bit for bit."""
        if self._at_crash:
            for before, after in zip(self._at_crash, everything(hub), strict=True):
                require(before == after, "replay: the state was {}, and is now {}", before, after)
        held = {(report.node, report.task) for report in hub.state.round.reports}
        gone = self._acked - held
        require(not gone, "kept: {} were acknowledged as counted, and are gone", gone)

    def started(self, node: str, work: Work) -> None:
        """Check a node's start of a task."""
        self._memories.started(node, work)
        self._anchored.started(node, work)

    def holds(self, node: str, base: BlobRef | None) -> None:
        """Check the reference model that a node holds."""
        self._anchored.holds(node, base)

    def worked(self, node: str, task: TaskId, result: TaskResult) -> None:
        """Record a node's result."""
        self._memories.worked(node, task, result)

    def committed(self, node: str, memory: BlobRef) -> None:
        """Check the private memory that a node commits."""
        self._memories.committed(node, memory)

    def node_died(self, node: str, memory: BlobRef | None, disk_survived: bool) -> None:
        """Record what a dead node has lost."""
        if not disk_survived:
            self._memories.forgot(node, memory)


class MemoryChecker:
    """The expected private memory of each node."""

    def __init__(self) -> None:
        self._now: dict[str, BlobRef | None] = {}
        self._made: dict[Key, dict[str, BlobRef | None]] = {}  # memory, by the digest of the update made with it
        self._counted: dict[str, tuple[Key, str]] = {}  # each node's last counted report, and the digest of its update
        self._gone: set[Key] = set()  # made, but no longer on the node's disk
        self._damaged: set[Key] = set()  # made by a node whose disk was damaged later: it may have been made again

    def worked(self, node: str, task: TaskId, result: TaskResult) -> None:
        """Record an update together with the memory after it."""
        made = self._made.setdefault((node, task), {})
        made[result.blob.digest if result.blob else ""] = result.memory
        self._gone.discard((node, task))

    def counted(self, report: Report) -> None:
        """Expect the memory of this report from now on, if the node still has it."""
        key, name = (report.node, report.task), report.blob.digest if report.blob else ""
        if key == self._counted.get(report.node, (None,))[0]:
            return
        self._counted[report.node] = key, name
        memory = self._made[key][name]
        if memory is not None and key not in self._gone:
            self._now[report.node] = memory

    def started(self, node: str, work: Work) -> None:
        """Check that work starts from the expected memory."""
        right = self._now.get(node)
        require(work.memory == right, "memory: {} starts from it instead of {}", work, right)

    def committed(self, node: str, memory: BlobRef) -> None:
        """Check that the memory belongs to the last counted report."""
        key, name = self._counted.get(node, (None, ""))
        made = self._made[key] if key else {}
        right = memory in made.values() if key in self._damaged else made.get(name) == memory
        require(right, "memory: {} commits {}, which does not belong to its last report, {}", node, memory, key)
        self._now[node] = memory

    def forgot(self, node: str, memory: BlobRef | None) -> None:
        """Expect whatever is left on a damaged disk."""
        self._now[node] = memory
        lost = {key for key in self._made if key[0] == node}
        self._gone |= lost
        self._damaged |= lost


def floats(tree: Tree) -> Array:
    """Return all floats of a tree, one after the other, in float64."""
    parts = [to_float(tree.block(s.start, s.stop), s.dtype) for s in tree.layout.segments if s.is_float]
    return np.concatenate(parts) if parts else np.zeros(0)


def largest(value: Tree | float) -> float:
    """Return the greatest magnitude of a slot's numbers."""
    return float(np.abs(floats(value)).max(initial=0.0)) if isinstance(value, Tree) else abs(value)


def relative(a: Array, b: Array) -> float:
    """Return the greatest difference, relative to the greater of 1 and the value."""
    return float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(a)), initial=0.0))


def distance(a: Slots, b: Slots) -> float:
    """Return the greatest relative difference between two sets of slots; infinite when their forms differ."""
    if a.keys() != b.keys():
        return inf
    return max(apart(left, b[name]) for name, left in a.items())


def apart(a: Tree | float, b: Tree | float) -> float:
    """Return the same for one slot; whole numbers must be equal."""
    if isinstance(a, Tree) and isinstance(b, Tree):
        whole = [(s.start, s.stop) for s in a.layout.segments if not s.is_float]
        same = a.layout == b.layout and all(np.array_equal(a.block(*place), b.block(*place)) for place in whole)
        return relative(floats(a), floats(b)) if same else inf
    if isinstance(a, Tree) or isinstance(b, Tree):
        return inf
    return abs(a - b) / max(1.0, abs(a))


def everything(hub: Hub) -> list[Any]:
    """Return a hub's complete state, in a form that can be compared bit for bit."""
    totals = deepcopy(hub.state.sum.totals)
    gathered = {name: digest(totals.mean(name)) for name in sorted(totals.trees)} if totals.weight else {}
    names = ("opened_at", "population", "asked", "failed", "probed", "recalled", "recalled_at")
    plain = (*names, "bytes_transferred", "reports")
    sent = hub.store.reference.packed_slots(hub.store.slots)
    return [
        json.dumps(hub.snapshot(), sort_keys=True),
        deepcopy([getattr(hub.state.round, name) for name in plain]),
        [
            replace(member) for member in hub.roster.all_members()
        ],  # not in the snapshot's own words, which may forget something
        (
            hub.store.reference.task_reference,
            hub.store.reference.task_numbers,
            digests(hub.store.reference.slots),
            digests(sent),
        ),
        (totals.weight, dict(totals.numbers), gathered, [one.report for one in hub.state.sum.held]),
        {version: means.values() for version, means in hub.state.sum.means.items()},
        digests(hub.store.slots),
    ]


def digests(slots: Slots) -> dict[str, str | float]:
    """Return slots by their contents."""
    return {name: digest(value) if isinstance(value, Tree) else value for name, value in slots.items()}
