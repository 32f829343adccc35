"""State machines: `on(event, now) -> effects`, synchronous and deterministic.

A pump feeds events and carries out effects. The same machines run under a virtual clock with simulated faults, and
under asyncio with sockets. `now` is in seconds on a clock that never jumps; a machine has no other clock.

    events      Message | Timer | Restarted | NodeLost | TaskProgress | TaskDone | ReportRejected
    effects     Send | Tell | Work | Amend | Cancel | Wake | Save | Measured | JobEvent
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from shoal.core.protocol.message import BlobRef, Message, Metrics, Phase, Task, TaskId, TaskStatus, immutable
from shoal.core.protocol.peer_message import PeerMessage

HUB = "hub"
"""The hub's name as a receiver. No node may have it."""


@dataclass(frozen=True)
class Timer:
    """Event: the time of the last `Wake` has come. It may also be fed at other times: a machine compares `now`."""

    type_name: ClassVar[str] = "timer"


@dataclass(frozen=True)
class Restarted:
    """Event: the hub's process has started again with this state. The ids of later tasks have a higher term."""

    type_name: ClassVar[str] = "restarted"
    at: float | None = None
    """Seconds since 1970 at that moment, for availability windows; None: unknown."""
    incarnation: int = 0
    """Random number of this process, which tells it from another coordinator of the same term; 0: none."""


@dataclass(frozen=True)
class NodeLost:
    """Event: a node has been silent for so long that the schedule should not wait for it."""

    type_name: ClassVar[str] = "node_lost"
    node: str
    why: str = "no sign of life"


@immutable
class TaskResult:
    """Result of a task from the user's code. `memory` is the node's private memory afterwards."""

    weight: float
    blob: BlobRef | None = None
    metrics: Metrics = field(default_factory=dict)
    memory: BlobRef | None = None


@dataclass(frozen=True)
class TaskProgress:
    """Event: the work of a task has made a check, and its status should be sent. There is nothing to report yet."""

    status: TaskStatus


@immutable
class TaskDone:
    """Event: the work of a task has ended in this phase, with a result or with an error (one line)."""

    task: TaskId
    result: TaskResult | None = None
    error: str = ""
    phase: Phase = ""
    traceback: str = ""


@dataclass(frozen=True)
class ReportRejected:
    """Event: the hub refused this task's report (a foreign model, NaN, …). Sending it again cannot succeed."""

    task: TaskId
    why: str


HubEvent = Message | Timer | Restarted | NodeLost
"""The events of a hub. The journal stores each under its `type_name`."""
Event = HubEvent | TaskProgress | TaskDone | ReportRejected


@immutable
class Send:
    """Effect: send a message to a node, or to `HUB`."""

    to: str
    message: Message


@dataclass(frozen=True)
class Tell:
    """Effect: send a message to a peer."""

    to: str
    message: PeerMessage


@immutable
class Work:
    """Effect: do this task in the background; `TaskDone` follows. `memory` is the committed private memory."""

    task: Task
    memory: BlobRef | None = None


@dataclass(frozen=True)
class Amend:
    """Effect: continue the task in progress with these values."""

    task: Task


@dataclass(frozen=True)
class Cancel:
    """Effect: this task's result is no longer wanted; no `TaskDone` is needed."""

    task: TaskId


@immutable
class Wake:
    """Effect: feed a `Timer` at that time. A machine has one alarm: a later `Wake` replaces an earlier one."""

    at: float


@dataclass(frozen=True)
class ModelVersion:
    """A closed version: its model, and how it was made."""

    number: int
    model: BlobRef
    why: str
    opened_s: float
    closed_s: float
    weight: float = 0.0
    reports: tuple[tuple[str, TaskId, float, str], ...] = ()
    """(node, task, weight, digest) of each update that was counted, in the order in which they were folded."""
    asked: int = 0
    numbers: Metrics = field(default_factory=dict)
    """Numbers that the schedule keeps from here on: its threshold, its counters."""
    algorithm_state: BlobRef | None = None
    """The algorithm's slots beside the model; None without any. The hub alone reads them."""


@dataclass(frozen=True)
class Memory:
    """A node's private memory, which replaces the one before."""

    blob: BlobRef


@dataclass(frozen=True)
class MachineState:
    """Durable state of a peer, as JSON values, from which a new process is restored."""

    state: dict[str, Any]


@dataclass(frozen=True)
class Save:
    """Effect: store this durably before any later effect. After a `ModelVersion`, the hub can be snapshotted."""

    what: ModelVersion | Memory | MachineState


@immutable
class Measured:
    """Effect: the metrics of a version, as means over all reports so far."""

    number: int
    metrics: Metrics


JobEventKind = Literal["decision", "mode", "node", "refusal", "state", "warning"]


@dataclass(frozen=True)
class JobEvent:
    """Effect: a sentence for people about a decision and its reason."""

    kind: JobEventKind
    text: str
    version: int
    node: str = ""


Effect = Send | Tell | Work | Amend | Cancel | Wake | Save | Measured | JobEvent


class Machine(Protocol):
    """A state machine that a pump can drive."""

    def on(self, event: Event, now: float) -> Sequence[Effect]: ...
