"""A trace of a run: one line for each event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass

from shoal.core.protocol.machine import Effect, Event, JobEvent, ReportRejected, Save, Send, TaskResult, Work
from shoal.core.protocol.message import BlobRef, Blobs, Message, NodeInfo, TaskId
from shoal.core.server.hub import Hub
from shoal.sim.checks.invariants import InvariantChecker
from shoal.sim.network.observer import Direction

DIGITS = 8
"""Shown digits of a hash."""


SILENT = {"revision", "recall", "checks_allowed", "issued_in_term", "monitor_state"}
"""Fields that are left out while they are zero."""


def shown(thing: object) -> str:
    """Return a short text of a message, event or effect, without empty fields."""
    match thing:
        case BlobRef():
            text = thing.digest[:DIGITS]
        case float():
            text = f"{thing:.6g}"
        case (int(process_number), int(number)):
            text = f"{process_number}.{number}"
        case list() | tuple():
            text = f"[{', '.join(shown(part) for part in thing)}]"
        case dict():
            text = f"{{{', '.join(f'{name} {shown(value)}' for name, value in thing.items())}}}"
        case Send():
            text = f"-> {thing.to}: {shown(thing.message)}"
        case JobEvent():
            text = f"{thing.kind}: {thing.text}"
        case Save():
            text = f"Save {shown(thing.what)}"
        case _ if is_dataclass(thing):
            values = ((field.name, getattr(thing, field.name)) for field in fields(thing))
            named = ((n, value) for n, value in values if value or (value == 0 and n not in SILENT))
            parts = [f"{n}={shown(value)}" for n, value in named if value != NodeInfo()]
            text = " ".join((type(thing).__name__, *parts))
        case _:
            text = str(thing)
    return text


class Tracer(InvariantChecker):
    """A checker that writes a line for each event before it checks it. `now` returns the virtual time."""

    def __init__(self, blobs: Blobs, write_line: Callable[[str], None], now: Callable[[], float]) -> None:
        super().__init__(blobs)
        self._write_line, self._now = write_line, now
        self._fed = 0

    def _line(self, who: str, text: str) -> None:
        self._write_line(f"{self._now():9.3f} {who:>4}  {text}")

    def fed(self, index: int, event: Event, now: float, effects: Sequence[Effect], hub: Hub) -> None:
        """Write an event of the journal and its effects; only its number on a replay."""
        if index < self._fed:
            self._line("hub", f"#{index} again")
        else:
            self._fed += 1
            self._line("hub", f"#{index} at {now:.3f}: {shown(event)}")
            for effect in effects:
                self._write_line(f"{'':17}{shown(effect)}")
        super().fed(index, event, now, effects, hub)

    def crashed(self, hub: Hub) -> None:
        """Write the coordinator's death."""
        self._line("hub", f"DIES {_point(hub)}")
        super().crashed(hub)

    def restored(self, hub: Hub) -> None:
        """Write the coordinator's start."""
        self._line("hub", f"starts {_point(hub)}")
        super().restored(hub)

    def node_started(self, node: str) -> None:
        """Write a node's start."""
        self._line(node, "starts")

    def node_died(self, node: str, memory: BlobRef | None, disk_survived: bool) -> None:
        """Write a node's death."""
        self._line(node, "DIES" if disk_survived else f"DIES, and its disk is left with memory {shown(memory)}")
        super().node_died(node, memory, disk_survived)

    def started(self, node: str, work: Work) -> None:
        """Write a node's task."""
        self._line(node, shown(work))
        super().started(node, work)

    def worked(self, node: str, task: TaskId, result: TaskResult) -> None:
        """Write a node's result."""
        self._line(node, f"task {shown(task)}: {shown(result)}")
        super().worked(node, task, result)

    def committed(self, node: str, memory: BlobRef) -> None:
        """Write a node's new memory."""
        self._line(node, f"keeps memory {shown(memory)}")
        super().committed(node, memory)

    def message_sent(self, node: str, direction: Direction, message: Message | ReportRejected) -> None:
        """Write a message that is sent."""
        self._line(
            node if direction == "up" else "hub", f"sends{'' if direction == 'up' else f' {node}'} {shown(message)}"
        )

    def message_lost(self, node: str, direction: Direction, message: Message | ReportRejected) -> None:
        """Write a message that is lost."""
        self._line(node if direction == "up" else "hub", f"  lost: {type(message).__name__}")


def _point(hub: Hub) -> str:
    reports = len(hub.state.round.reports)
    return f"in phase {hub.progress.phase}, version {hub.progress.version}, with {reports} reports gathered"
