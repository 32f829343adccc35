"""The events of a simulated run, as an observer sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from shoal.core.protocol.machine import Effect, Event, ReportRejected, TaskResult, Work
from shoal.core.protocol.message import BlobRef, Message, TaskId
from shoal.core.server.hub import Hub

Direction = Literal["up", "down"]
"""Up: from a node to the hub."""


class Observer:
    """Base class of observers: it ignores everything. Override the events of interest."""

    def fed(self, index: int, event: Event, now: float, effects: Sequence[Effect], hub: Hub) -> None:
        """Note that the hub handled the journal's event of that index; after a crash, again."""

    def sent(self, node: str, message: Message | ReportRejected, hub: Hub) -> None:
        """Note that the coordinator sent a message."""

    def names(self, hub: Hub) -> list[BlobRef | None]:
        """Return the blobs that must be kept for this observer."""
        return []

    def crashed(self, hub: Hub) -> None:
        """Note that the coordinator died. `hub` has handled all that was committed."""

    def restored(self, hub: Hub) -> None:
        """Note that the coordinator has restored its state from snapshot and journal."""

    def started(self, node: str, work: Work) -> None:
        """Note that a node began a task."""

    def holds(self, node: str, base: BlobRef | None) -> None:
        """Note that a node holds this blob, and need not fetch it again."""

    def worked(self, node: str, task: TaskId, result: TaskResult) -> None:
        """Note that a node's work ended with a result."""

    def committed(self, node: str, memory: BlobRef) -> None:
        """Note that a node replaced its private memory."""

    def node_started(self, node: str) -> None:
        """Note that a node's process started."""

    def node_died(self, node: str, memory: BlobRef | None, disk_survived: bool) -> None:
        """Note that a node's process died. Unless the disk was spared, its report is lost, and `memory` is what is
        left."""

    def message_sent(self, node: str, direction: Direction, message: Message | ReportRejected) -> None:
        """Note that a message was sent."""

    def message_lost(self, node: str, direction: Direction, message: Message | ReportRejected) -> None:
        """Note that a message (or one of its two copies) was lost."""
