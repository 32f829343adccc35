"""Volatile state of nodes: signs of life, progress, latest activity."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from sqlalchemy import Row

from shoal.core.membership.life_signs import LifeSigns
from shoal.core.model.model_form import ModelForm
from shoal.core.protocol.message import DrainNode, NodeInfo, TaskId
from shoal.core.protocol.metrics import REPORTED_MAX
from shoal.core.scheduling.selection import parse_node_info
from shoal_coordinator.schemas.nodes import Availability

ERROR_REPEATED_S = 10.0
"""The same error of the same node within that time makes no second event."""

REFUSALS_MAX, REFUSAL_S = 5, 60.0
"""Job events about refusals of a node in a job: a burst, and the seconds for each further one."""

MISMATCH_REPEATED_S = 60.0

LAYOUTS_KEPT = 64
"""Each may have 64 KiB."""

LOSSES_KEPT = 32
"""A node's losses that are shown as a line."""


@dataclass
class NodeActivity:
    """A node's part in one job, as people see it. Nothing here decides anything."""

    progress: float | None = None
    task: TaskId | None = None
    sent_at: float | None = None  # monotonic
    seconds: float | None = None
    reports: int = 0
    weight: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    losses: deque[Any] = field(default_factory=lambda: deque(maxlen=LOSSES_KEPT))
    last_error: str | None = None
    last_error_at: float = 0.0  # monotonic
    failures: int = 0
    _budget_used: float = 0.0
    """Recent job events about refusals; falls by one per `REFUSAL_S`."""
    _budget_at: float = 0.0
    _suppressed: int = 0

    def start_task(self, task: TaskId) -> None:
        """Record that the node was sent this task, perhaps again."""
        if self.task != task:
            self.task, self.progress, self.sent_at = task, 0.0, time.monotonic()

    def task_sent_at(self, task: TaskId) -> float | None:
        """Return when the node was sent the task that it works on; None for any other task."""
        return self.sent_at if self.task == task else None

    def finish_task(self, task: TaskId, asked_at: float | None, weight: float | None, metrics: dict[str, Any]) -> None:
        """Record that the report on this task was counted. The node may have been sent the next one meanwhile."""
        if asked_at is not None:
            self.seconds = time.monotonic() - asked_at
        if self.task == task:
            self.task, self.progress = None, None
        self.reports += 1
        self.add_metrics(metrics)
        if "train/loss" in metrics:
            self.losses.append(metrics["train/loss"])
        self.weight = self.weight if weight is None else weight

    def add_metrics(self, metrics: dict[str, Any]) -> None:
        """Add metrics of a report or a status; the `REPORTED_MAX` names that came last are kept."""
        known = {name: value for name, value in self.metrics.items() if name not in metrics} | metrics
        self.metrics = dict(islice(known.items(), max(0, len(known) - REPORTED_MAX), None))

    def record_failure(self, error: str) -> bool:
        """Record a failed task or a refused report; return whether to create a job event.

        Repetitions are suppressed, and more than `REFUSALS_MAX` at once or one per `REFUSAL_S`, so that one node cannot
        flood the events.
        """
        now = time.monotonic()
        since = now - self._budget_at
        self._budget_used = max(0.0, self._budget_used - since / REFUSAL_S)
        self._budget_at = now
        is_new = error != self.last_error or now - self.last_error_at > ERROR_REPEATED_S
        is_new = is_new and self._budget_used <= REFUSALS_MAX - 1
        self._budget_used += is_new
        self._suppressed += not is_new
        self.task, self.progress = None, None
        self.failures += 1
        self.last_error, self.last_error_at = error, now
        return is_new

    def suppressed_text(self) -> str:
        """Return a suffix for the next event: the number of suppressed ones."""
        count, self._suppressed = self._suppressed, 0
        return f" ({count} more before were not shown)" if count else ""


class Presence:
    """All nodes. Times are this process's monotonic clock, in seconds."""

    def __init__(self, lease_s: float) -> None:
        self.leases = LifeSigns(lease_s)
        self.lease_s = lease_s
        self.info: dict[str, dict[str, Any]] = {}
        self.joined_at: dict[str, float] = {}
        self.activity: defaultdict[tuple[str, str], NodeActivity] = defaultdict(NodeActivity)
        self._node_info: dict[str, NodeInfo] = {}
        self._layouts: dict[str, dict[str, str]] = {}
        self._mismatch_sent_at: dict[
            str, dict[str, float]
        ] = {}  # by node and job, when it was answered so last (monotonic)
        self.availability: dict[str, Availability] = {}
        """Nodes that operators have drained or blocked."""
        self._last_seen: dict[str, float] = {}
        self._open_polls: defaultdict[str, int] = defaultdict(int)
        self.changed: set[str] = set()
        self.lost: set[str] = set()
        """Nodes that fell silent, until they are heard again."""

    def mark_alive(self, node: str) -> None:
        """Record a sign of life."""
        now = time.monotonic()
        self.leases.record(node, now)
        self._last_seen[node] = max(now, self._last_seen.get(node, now))
        self.lost.discard(node)
        self.changed.add(node)

    def set_info(self, node: str, info: dict[str, Any]) -> None:
        """Store a node's description of itself. Raises `Refused` for invalid tags or hours."""
        self._node_info[node], self.info[node] = parse_node_info(info), info
        self._mismatch_sent_at.pop(node, None)

    def load(self, row: Row[Any]) -> None:
        """Load a node from its database row."""
        self.joined_at[row.name] = row.joined_at
        self.set_availability(row.name, row.availability)
        self.set_info(row.name, row.info)

    def should_tell_mismatch(self, node: str, job: str) -> bool:
        """Return whether to tell a node now that its model is not the job's: at once, and once more in case that was
        lost."""
        sent_at, now = self._mismatch_sent_at.setdefault(node, {}), time.monotonic()
        if now - sent_at.get(job, -MISMATCH_REPEATED_S) < MISMATCH_REPEATED_S:
            return False
        sent_at[job] = now
        return True

    def store_layout(self, node: str, layout: dict[str, str] | None) -> None:
        """Store the tensors of a learner's model; the newest `LAYOUTS_KEPT` layouts are kept."""
        form = self.node_info(node).model
        if form is not None and layout is not None:
            self._layouts.pop(form.digest, None)
            self._layouts[form.digest] = layout
            while len(self._layouts) > LAYOUTS_KEPT:
                del self._layouts[next(iter(self._layouts))]

    def layout(self, form: ModelForm) -> dict[str, str] | None:
        """Return the tensors of a layout; None if no present node has named them."""
        return self._layouts.get(form.digest)

    def node_info(self, node: str) -> NodeInfo:
        """Return the facts for selection: the node's description of itself and its availability."""
        info, availability = self._node_info.get(node, NodeInfo()), self.availability.get(node)
        return info if availability is None else replace(info, drain_reason=f"{availability} by an operator")

    def set_availability(self, node: str, availability: Availability) -> None:
        """Store the availability that operators have set for a node."""
        if availability == "active":
            self.availability.pop(node, None)
        else:
            self.availability[node] = availability
        self.changed.add(node)

    def drain_event(self, node: str) -> DrainNode:
        """Return the same as an event for a job."""
        return DrainNode(node, self.node_info(node).drain_reason, withdraw=self.availability.get(node) == "blocked")

    def add_known(self, node: str) -> None:
        """Add a known node that has not sent anything here yet."""
        self.info.setdefault(node, {})
        self.joined_at.setdefault(node, time.time())

    def ensure_lease(self, node: str, spare_s: float = 0.0) -> None:
        """Give a member of a job without a lease a whole lease and an extension, as after a restart."""
        now = time.monotonic()
        if self.leases.age(node, now) is None:
            self.leases.record(node, now + spare_s)

    def ages(self) -> dict[str, float]:
        """Return seconds since the last sign of life of each node that is not lost; below 0 during a pause."""
        now = time.monotonic()
        found = {node: now - last for node, last in self._last_seen.items() if self.leases.age(node, now) is not None}
        return found | {node: 0.0 for node, polls in self._open_polls.items() if polls}

    def merge_ages(self, ages: dict[str, float]) -> None:
        """Merge signs of life that another coordinator has received."""
        now = time.monotonic()
        for node, age in ages.items():
            self.leases.record(node, now - age)
            self._last_seen[node] = max(now - age, self._last_seen.get(node, now - age))
            self.lost.discard(node)

    def renew_all(self) -> None:
        """Renew the leases of all present nodes, after a time without any requests."""
        now = time.monotonic()
        for node in [node for node in self._last_seen if self.leases.age(node, now) is not None]:
            self.leases.record(node, now)

    def pause(self, node: str, seconds: float) -> None:
        """Extend a node's lease by a pause that it was asked to make."""
        self._last_seen[node] = time.monotonic() + seconds
        self.leases.record(node, self._last_seen[node])

    @contextmanager
    def open_poll(self, node: str) -> Iterator[None]:
        """Mark a node as present while its poll is open, and end its pause."""
        self.leases.forget(node)
        self._last_seen.pop(node, None)
        self.mark_alive(node)
        self._open_polls[node] += 1
        try:
            yield
        finally:
            self._open_polls[node] -= 1
            self.mark_alive(node)

    def expired(self) -> list[str]:
        """Return the nodes whose leases have ended, each once."""
        now = time.monotonic()
        for node, polls in self._open_polls.items():
            if polls:
                self.leases.record(node, now)
                self._last_seen[node] = now
        silent = self.leases.expired(now)
        self.lost.update(silent)
        return silent

    def silent_s(self, node: str) -> float | None:
        """Return seconds since the last sign of life; None if there was none in this process."""
        if self._open_polls.get(node):
            return 0.0
        return max(0.0, time.monotonic() - self._last_seen[node]) if node in self._last_seen else None

    def is_stale(self, node: str) -> bool:
        """Return whether the node was silent for more than half of its lease."""
        silent = self.silent_s(node)
        return silent is None or silent > self.lease_s / 2

    def states(self) -> dict[str, int]:
        """Count nodes by state: "online", "stale" (silent for more than half of a lease) and "gone"."""
        now, stale, gone = time.monotonic(), 0, 0
        fresh_since, here_since, polls = now - self.lease_s / 2, now - self.lease_s, self._open_polls
        for node, last in self._last_seen.items():  # tens of thousands: nothing is made for any of them
            if last < fresh_since and not polls.get(node):
                if last < here_since:
                    gone += 1
                else:
                    stale += 1
        never = max(0, len(self.info) - len(self._last_seen))
        return {"online": len(self._last_seen) - stale - gone, "stale": stale, "gone": gone + never}

    def forget(self, node: str) -> None:
        self.leases.forget(node)
        self._last_seen.pop(node, None)
        self.lost.discard(node)
        self.info.pop(node, None)
        self._node_info.pop(node, None)
        self._mismatch_sent_at.pop(node, None)
        self.availability.pop(node, None)
