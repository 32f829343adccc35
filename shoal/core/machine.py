"""Machines: `on(event, now) -> effects`. Synchronous and deterministic; a pump feeds them and carries effects out.

The same machines run under a virtual clock with simulated faults, and under asyncio with sockets. `now` is in seconds
on a clock that never jumps (the pump's business); nothing else tells a machine the time.

    events      Message | PeerMessage | Timer | Boot | Lost | Progress | Done | Rejected
    effects     Send | Tell | Work | Amend | Cancel | Wake | Save | Note
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from shoal.core.message import Message, Metrics, Order, OrderId, Phase, Ref, Status
from shoal.core.peer_message import PeerMessage

HUB = "hub"
"""The hub's name as a receiver. No node may be called so."""


@dataclass(frozen=True)
class Timer:
    """The time asked for with `Wake` has come (or is past; or it comes needlessly: a machine looks at `now`)."""


@dataclass(frozen=True)
class Boot:
    """The hub's process has started anew over this state. Later orders carry a higher boot."""

    at: float | None = None
    """Seconds since 1970 at that moment, for hours of the day; None: it doesn't say."""
    life: int = 0
    """A number drawn for this process, which tells it from another coordinator of the same term; 0: it has none."""


@dataclass(frozen=True)
class Lost:
    """A node has not given a sign of life for so long that nobody should wait for it."""

    node: str
    why: str = "no sign of life"


@dataclass(frozen=True)
class Result:
    """What the user's code made of an order. `memory` is the node's private memory as it would be afterwards."""

    weight: float
    body: Ref | None = None
    metrics: Metrics = field(default_factory=dict)
    memory: Ref | None = None


@dataclass(frozen=True)
class Progress:
    """The work of an order has made a check, has nothing to report yet, and wants this to be told."""

    status: Status


@dataclass(frozen=True)
class Done:
    """The work of an order has ended, with a result or with an error (one line), in that phase."""

    order: OrderId
    result: Result | None = None
    error: str = ""
    phase: Phase = ""
    traceback: str = ""


@dataclass(frozen=True)
class Rejected:
    """The hub refused this order's report as it is (a foreign model, NaN, …); sending it again is in vain."""

    order: OrderId
    why: str


Event = Message | Timer | Boot | Lost | Progress | Done | Rejected


@dataclass(frozen=True)
class Send:
    """Send a message to a node, or to `HUB`."""

    to: str
    body: Message


@dataclass(frozen=True)
class Tell:
    """Send a message to a peer."""

    to: str
    body: PeerMessage


@dataclass(frozen=True)
class Work:
    """Do this order, in the background, and answer with `Done`. `memory` is the committed private memory."""

    order: Order
    memory: Ref | None = None


@dataclass(frozen=True)
class Amend:
    """The order that is being worked on now reads like this."""

    order: Order


@dataclass(frozen=True)
class Cancel:
    """Nobody wants this order's result any more; no `Done` is needed."""

    order: OrderId


@dataclass(frozen=True)
class Wake:
    """Come back at that time. A machine has one alarm: a later `Wake` replaces an earlier one."""

    at: float


@dataclass(frozen=True)
class Version:
    """A closed version: the model `number`, and how it came about."""

    number: int
    model: Ref
    why: str
    opened: float
    closed: float
    weight: float = 0.0
    reports: tuple[tuple[str, OrderId, float, str], ...] = ()
    """(node, order, weight, digest) of each update that was counted, in the order in which they were folded."""
    asked: int = 0
    numbers: Metrics = field(default_factory=dict)
    """What the schedule keeps from here on: its threshold, its counters."""


@dataclass(frozen=True)
class Memory:
    """A node's private memory, to be kept from now on."""

    body: Ref


@dataclass(frozen=True)
class Standing:
    """All that a peer must not forget, as JSON values: what its process would be restored from."""

    state: dict[str, Any]


@dataclass(frozen=True)
class Save:
    """Keep this, before any effect that follows. After a `Version` the hub's whole state is a good snapshot."""

    what: Version | Memory | Standing


@dataclass(frozen=True)
class Measured:
    """More is known of how good version `number` is: the means over all reports so far."""

    number: int
    metrics: Metrics


NoteKind = Literal["decision", "mode", "node", "refusal", "state", "warning"]


@dataclass(frozen=True)
class Note:
    """A sentence for people: what was decided, and why."""

    kind: NoteKind
    text: str
    version: int
    node: str = ""


Effect = Send | Tell | Work | Amend | Cancel | Wake | Save | Measured | Note


class Machine(Protocol):
    """Everything that can be pumped."""

    def on(self, event: Event, now: float) -> Sequence[Effect]: ...
