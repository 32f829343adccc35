"""Further invariants where reports are relative to a reference model, and tasks stand until they are recalled.

stands      a balancing leaves the tasks of uninvolved nodes unchanged
step        no node is allowed past a check that it has not reported
held        a node holds the hub's reference model of the time of its task, bit for bit
weight      a report weighs the examples that its node has trained on since the reference was set; for a node that
            has finished, the most that these ever were
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.algorithm.reference_model import NEW_REFERENCE
from shoal.core.model.tree import Slots, Tree
from shoal.core.protocol.machine import Effect, Event, ModelVersion, Save, Send, TaskResult, Work
from shoal.core.protocol.message import Amendment, BlobRef, Blobs, Task, TaskId, TaskStatus
from shoal.core.protocol.metrics import FINISHED
from shoal.core.server.hub import Hub


class Violation(AssertionError):
    """A violated invariant."""


def require(holds: bool, what: str, *details: object) -> None:
    """Raise `Violation` unless `holds`. Details are formatted into the braces of `what` only then."""
    if not holds:
        raise Violation(what.format(*details))


class ReferenceChecker:
    """The checker of these invariants, called by `InvariantChecker` for each first occurrence."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._standing: dict[str, TaskId] = {}
        self._reported_checks: dict[TaskId, int] = {}  # the last check in a status
        self._bases: dict[TaskId, BlobRef | None] = {}
        self._doing: dict[str, TaskId] = {}

    def fed(self, event: Event, effects: Sequence[Effect], hub: Hub) -> None:
        """Check an event and its effects."""
        if isinstance(event, TaskStatus):
            self._reported_checks[event.task] = max(event.check, self._reported_checks.get(event.task, 0))
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Task):
                self._check_task(effect.message, hub)
            elif isinstance(effect, Send) and isinstance(effect.message, Amendment):
                self._check_step(effect.message.task, effect.message.checks_allowed)
            elif isinstance(effect, Save) and isinstance(effect.what, ModelVersion):
                self._check_standing(event, effect.what, hub)
        self._standing = {member.node: member.task.id for member in hub.roster.all_members() if member.task is not None}

    def _check_task(self, task: Task, hub: Hub) -> None:
        if task.id not in self._bases:
            self._bases[task.id] = self._blobs.put(hub.store.reference.slots) if hub.store.reference.slots else None
        self._check_step(task.id, task.checks_allowed)

    def _check_step(self, task: TaskId, until: int) -> None:
        reported = self._reported_checks.get(task, 0)
        require(until <= reported + 1, "step: {} goes on to {}, but has reported {} checks", task, until, reported)

    def _check_standing(self, event: Event, version: ModelVersion, hub: Hub) -> None:
        if hub.progress.phase != "running" or hub.store.reference.task_numbers.get(NEW_REFERENCE, 1.0):
            return
        concerned = {getattr(event, "node", ""), *(node for node, _, _, _ in version.reports)}
        for node, before in self._standing.items():
            now = hub.roster[node].task
            still = node in concerned or (now is not None and now.id == before)
            require(still, "stands: {} withdraws task {} of {}, which had no part in it", version.number, before, node)

    def started(self, node: str, work: Work) -> None:
        """Record a node's start of a task."""
        self._doing[node] = work.task.id

    def holds(self, node: str, base: BlobRef | None) -> None:
        """Check the reference model that a node holds."""
        task = self._doing[node]
        require(
            base == self._bases[task], "held: for {} {} holds {} instead of {}", task, node, base, self._bases[task]
        )


def check_weight(task: Task, per_batch: float, before: Slots, result: TaskResult, after: Slots) -> None:
    """Check a report's weight. `before`, `after`: private memory; `per_batch`: examples of a mini-batch."""

    def number(slots: Slots, name: str) -> float:
        value = slots.get(name, 0.0)
        assert not isinstance(value, Tree)
        return value

    batches = number(after, "batch_index") - number(before, "batch_index")
    last = number(before, "examples_since_reference")
    known = 0.0 if task.numbers.get(NEW_REFERENCE) and batches else last  # without any, as it was last
    right = known + per_batch * batches
    if FINISHED in result.metrics:  # then it weighs what it weighed at most
        right = max(right, number(before, "examples_max"), last)
    require(result.weight == max(1.0, right), "weight: {} weighs {} instead of {}", task, result.weight, right)
