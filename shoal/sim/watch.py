"""What can be seen of a simulated run from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from shoal.core.hub import Hub
from shoal.core.machine import Effect, Event, Rejected, Result, Work
from shoal.core.message import Message, OrderId, Ref

Direction = Literal["up", "down"]
"""Up: from a node to the hub."""


class Watch:
    """Told of everything that happens; this one looks away. Override what is of interest."""

    def fed(self, index: int, event: Event, now: float, effects: Sequence[Effect], hub: Hub) -> None:
        """The hub took the journal's event of that index; after a crash, it takes it again."""

    def sent(self, node: str, message: Message | Rejected, hub: Hub) -> None:
        """The coordinator let a message go."""

    def names(self, hub: Hub) -> list[Ref | None]:
        """Bodies that must be kept for the observer's sake."""
        return []

    def crashed(self, hub: Hub) -> None:
        """The coordinator died. `hub` has taken all that was committed."""

    def restored(self, hub: Hub) -> None:
        """The coordinator has its state again, from the snapshot and the journal."""

    def started(self, node: str, work: Work) -> None:
        """A node began an order."""

    def holds(self, node: str, base: Ref | None) -> None:
        """A node holds this body, and need not fetch it again."""

    def worked(self, node: str, order: OrderId, result: Result) -> None:
        """A node's work came to a result."""

    def committed(self, node: str, memory: Ref) -> None:
        """A node replaced its private memory."""

    def rose(self, node: str) -> None:
        """A node's process started."""

    def fell(self, node: str, memory: Ref | None, spared: bool) -> None:
        """A node's process died. Unless its disk was spared, its report is lost, and `memory` is what is left."""

    def travels(self, node: str, direction: Direction, message: Message | Rejected) -> None:
        """A message set out."""

    def vanished(self, node: str, direction: Direction, message: Message | Rejected) -> None:
        """A message (or one of its two copies) was lost on its way."""
