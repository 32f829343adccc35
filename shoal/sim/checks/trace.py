"""A run in words: one line for each thing that happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass

from shoal.core.hub import Hub
from shoal.core.machine import Effect, Event, Note, Rejected, Result, Save, Send, Work
from shoal.core.message import About, Bodies, Message, OrderId, Ref
from shoal.sim.invariants import Checker
from shoal.sim.watch import Direction

DIGITS = 8
"""Of a hash, shown."""


SILENT = {"rev", "recall", "until", "given_in", "state"}
"""Fields that say nothing while they are zero."""


def shown(thing: object) -> str:
    """A message, event or effect, short: fields that say nothing are left out."""
    match thing:
        case Ref():
            text = thing.digest[:DIGITS]
        case float():
            text = f"{thing:.6g}"
        case (int(boot), int(number)):
            text = f"{boot}.{number}"
        case list() | tuple():
            text = f"[{', '.join(shown(part) for part in thing)}]"
        case dict():
            text = f"{{{', '.join(f'{name} {shown(value)}' for name, value in thing.items())}}}"
        case Send():
            text = f"-> {thing.to}: {shown(thing.body)}"
        case Note():
            text = f"{thing.kind}: {thing.text}"
        case Save():
            text = f"Save {shown(thing.what)}"
        case _ if is_dataclass(thing):
            values = ((field.name, getattr(thing, field.name)) for field in fields(thing))
            said = ((n, value) for n, value in values if value or (value == 0 and n not in SILENT))
            told = [f"{n}={shown(value)}" for n, value in said if value != About()]
            text = " ".join((type(thing).__name__, *told))
        case _:
            text = str(thing)
    return text


class Tracer(Checker):
    """A checker that tells what it sees, before it judges. `now` gives the virtual time."""

    def __init__(self, bodies: Bodies, tell: Callable[[str], None], now: Callable[[], float]) -> None:
        super().__init__(bodies)
        self._tell, self._now = tell, now
        self._fed = 0

    def _line(self, who: str, text: str) -> None:
        self._tell(f"{self._now():9.3f} {who:>4}  {text}")

    def fed(self, index: int, event: Event, now: float, effects: Sequence[Effect], hub: Hub) -> None:
        """An event of the journal and what follows from it; only its number when it is fed again."""
        if index < self._fed:
            self._line("hub", f"#{index} again")
        else:
            self._fed += 1
            self._line("hub", f"#{index} at {now:.3f}: {shown(event)}")
            for effect in effects:
                self._tell(f"{'':17}{shown(effect)}")
        super().fed(index, event, now, effects, hub)

    def crashed(self, hub: Hub) -> None:
        """The coordinator dies."""
        self._line(
            "hub",
            f"DIES in phase {hub.phase}, version {hub.version}, with {len(hub.gathered.reports)} reports gathered",
        )
        super().crashed(hub)

    def restored(self, hub: Hub) -> None:
        """The coordinator is back."""
        self._line(
            "hub",
            f"starts in phase {hub.phase}, version {hub.version}, with {len(hub.gathered.reports)} reports gathered",
        )
        super().restored(hub)

    def rose(self, node: str) -> None:
        """A node's process starts."""
        self._line(node, "starts")

    def fell(self, node: str, memory: Ref | None, spared: bool) -> None:
        """A node's process dies."""
        self._line(node, "DIES" if spared else f"DIES, and its disk is left with memory {shown(memory)}")
        super().fell(node, memory, spared)

    def started(self, node: str, work: Work) -> None:
        """A node begins an order."""
        self._line(node, shown(work))
        super().started(node, work)

    def worked(self, node: str, order: OrderId, result: Result) -> None:
        """A node has a result."""
        self._line(node, f"order {shown(order)}: {shown(result)}")
        super().worked(node, order, result)

    def committed(self, node: str, memory: Ref) -> None:
        """A node replaces its private memory."""
        self._line(node, f"keeps memory {shown(memory)}")
        super().committed(node, memory)

    def travels(self, node: str, direction: Direction, message: Message | Rejected) -> None:
        """A message sets out."""
        self._line(
            node if direction == "up" else "hub", f"sends{'' if direction == 'up' else f' {node}'} {shown(message)}"
        )

    def vanished(self, node: str, direction: Direction, message: Message | Rejected) -> None:
        """A message is lost."""
        self._line(node if direction == "up" else "hub", f"  lost: {type(message).__name__}")


def _gathered(hub: Hub) -> str:
    return f"{len(hub.gathered.reports)} reports gathered"
