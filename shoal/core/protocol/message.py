"""The messages between a job's hub, its nodes and its operators.

    node -> hub      Join             a process has started; the hub forgets earlier failures and sends the current task
                     Poll             request for the current task, and a sign of life
                     TaskStatus       a few numbers from the middle of a task; the latest one counts
                     Report           the result of a task; sent until it is acknowledged
                     TaskFailed       the task cannot be done, and why; sent until it is acknowledged
                     Leave            the node leaves; its task is taken back
                     CoordinatorPing  question whether the hub answers, from a node that goes on without it
    hub -> node      Task             the current task; repeated at every poll until its report is durable
                     Amendment        the changed fields of a task that the node holds
                     NoTask           the node has no task
                     Ack              the report or failure is durable, and whether it counted
                     Stop             the job has ended
                     CoordinatorAlive the hub answers, in this term
    operator -> hub  Pause, Resume, Stop, SwitchMode, DrainNode, ChangeSettings

All are level-triggered: each may be lost, duplicated, delayed or sent again. Models and updates are not part of a
message: a `BlobRef` names one by the SHA-256 of its bytes. `type_name` is a message's `type` in a head and in the
journal; the classes' own names are not sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeVar, dataclass_transform

from shoal.core.model.model_form import ModelForm
from shoal.core.model.tree import Slots

_Fields = TypeVar("_Fields")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable(kind: type[_Fields]) -> type[_Fields]:
    """Make a class a dataclass whose fields mypy protects: those of each task, which a job makes by the million.

    A dataclass that is frozen at run time takes three to four times as long to construct.
    """
    return dataclass(unsafe_hash=True)(kind)


TaskId = tuple[int, int]
"""(term, n): the n-th task since a start of the coordinator; `term` counts the starts. Later tasks compare greater."""

Kind = Literal["init", "train", "evaluate", "gossip"]
"""Kind of task: make an initial model; train; evaluate only; gossip among peers until the task is recalled."""

ScheduleFamily = Literal["synchronous", "asynchronous", "periodic", "conditional", "monitored"]
"""Relation of tasks to model versions under a schedule. Under the last three, nodes train on over many versions, and
their reports are relative to a reference model.

synchronous     nodes are asked for each version, and reports on older versions do not count
asynchronous    nodes are asked for each version, and reports on older versions count, even several of one node
periodic        nodes are averaged after equal numbers of mini-batches
conditional     nodes report when their models are too far from the reference
monitored       nodes are averaged when the variance is too great that the hub estimates from their statuses
"""

Phase = Literal["", "download", "init", "train", "evaluate", "gossip", "upload"]
"""Phase in which a node failed: the download, the work itself, the upload; empty: unknown."""

Metrics = dict[str, float]
"""Named numbers. "train/…" are measured while training, "eval/…" on the node's held-out data with the model of
`version`; "eval/examples" is the weight of the latter."""


@immutable
class BlobRef:
    """Reference to a blob: the SHA-256 of its bytes in hexadecimal, and its length in bytes."""

    digest: str
    nbytes: int


def ref_state(ref: BlobRef | None) -> list[str | int] | None:
    """Return a reference as JSON values; None for None."""
    return [ref.digest, ref.nbytes] if ref is not None else None


def ref_from_state(state: Sequence[Any] | None) -> BlobRef | None:
    """Return a reference from the values of `ref_state`."""
    return BlobRef(*state) if state is not None else None


class Blobs(Protocol):
    """Storage of blobs by their hash: storing one twice is the same as once."""

    def put(self, slots: Slots) -> BlobRef: ...

    def get(self, ref: BlobRef) -> Slots: ...


@dataclass(frozen=True)
class NodeInfo:
    """A node's own information that bears on whether it is asked (`shoal.core.scheduling.selection`)."""

    tags: tuple[str, ...] = ()
    hours: tuple[str, ...] = ()
    """Availability windows, such as "22:00-06:00" (UTC); none: at any time."""
    drain_reason: str = ""
    """Reason why an operator has drained it. Empty: it may be asked."""
    model: ModelForm | None = None
    """Form of its learner's model; None: unknown."""


@dataclass(frozen=True)
class Join:
    """A process has started and holds no task, or a peer that has gone on without the hub (`gossip_rounds`) is back.

    The receiver sets `node_info` from the node's registration; it is not sent.
    """

    type_name: ClassVar[str] = "join"
    node: str
    gossip_rounds: TaskId | None = None
    """(term, local rounds) of the training without the hub that no version contains yet."""
    node_info: NodeInfo = NodeInfo()


@immutable
class Poll:
    """Request for the current task. `node_info` as in `Join`."""

    type_name: ClassVar[str] = "poll"
    node: str
    node_info: NodeInfo = NodeInfo()


@immutable
class Task:
    """Work for one node. `seed` is the only source of randomness that the work may use.

    The hub can amend a current task; `revision` counts its amendments. `recall` asks for a report at the node's next
    check; `checks_allowed` is the last check to which the node may train without an amendment (0: no limit).
    """

    type_name: ClassVar[str] = "task"
    id: TaskId
    node: str
    kind: Kind
    version: int
    seed: int
    blob: BlobRef | None = None
    reference: BlobRef | None = None
    """A model that both ends hold. The report is relative to it, and so is `blob` if the job has filters."""
    numbers: Metrics = field(default_factory=dict)
    """Numbers from the schedule, such as the threshold of a node's local condition."""
    revision: int = 0
    recall: bool = False
    checks_allowed: int = 0
    issued_in_term: int = 0
    """The hub's term when it sent this task, if the receiver knows it: a restarted hub also sends tasks that it made in
    an earlier term."""


@dataclass(frozen=True)
class Amendment:
    """The present values of those fields of a task that can change, for a node that holds the task."""

    type_name: ClassVar[str] = "amendment"
    task: TaskId
    revision: int = 0
    recall: bool = False
    checks_allowed: int = 0

    @staticmethod
    def of(task: Task) -> Amendment:
        """Return the amendment that describes a task, for a node that holds it."""
        return Amendment(task.id, task.revision, task.recall, task.checks_allowed)


@dataclass(frozen=True)
class TaskStatus:
    """A node's status in the middle of a task: the number of its checks, and the metrics of the last one.

    `monitor_state`: a few bytes for schedules whose estimate needs more than numbers.
    """

    type_name: ClassVar[str] = "task_status"
    node: str
    task: TaskId
    check: int
    values: Metrics = field(default_factory=dict)
    monitor_state: bytes = b""


@immutable
class Report:
    """Result of a task. The receiver measures `norm` of the blob (0 without one); a sender cannot set it."""

    type_name: ClassVar[str] = "report"
    node: str
    task: TaskId
    version: int
    weight: float
    blob: BlobRef | None = None
    metrics: Metrics = field(default_factory=dict)
    norm: float = 0.0

    def with_norm(self, norm: float) -> Report:
        """Return the report with its measured norm. (`dataclasses.replace` takes twice as long, at each report.)"""
        return Report(self.node, self.task, self.version, self.weight, self.blob, self.metrics, norm)


@dataclass(frozen=True)
class TaskFailed:
    """The task was not done. `error` is one line for people; `traceback` says in whose code it was raised."""

    type_name: ClassVar[str] = "task_failed"
    node: str
    task: TaskId
    error: str
    phase: Phase = ""
    traceback: str = ""


@dataclass(frozen=True)
class Leave:
    """The node leaves the job; the hub takes its task back."""

    type_name: ClassVar[str] = "leave"
    node: str


@dataclass(frozen=True)
class CoordinatorPing:
    """Question whether the hub answers, from a node that goes on without it. `term`: the node's own."""

    type_name: ClassVar[str] = "coordinator_ping"
    node: str
    term: int


@dataclass(frozen=True)
class CoordinatorAlive:
    """The hub answers. Its tasks are of this term, which is above every term that a ping has shown it."""

    type_name: ClassVar[str] = "coordinator_alive"
    term: int


@immutable
class NoTask:
    """The node has no task. `newest_task`: the newest task that the hub has made, so a late message cancels no newer
    task."""

    type_name: ClassVar[str] = "no_task"
    newest_task: TaskId


@immutable
class Ack:
    """The report is durable. The node commits the private memory of the task only if the report counted."""

    type_name: ClassVar[str] = "ack"
    task: TaskId
    counted: bool
    why: str = ""


@dataclass(frozen=True)
class Pause:
    """Make no new tasks until `Resume`."""

    type_name: ClassVar[str] = "pause"
    why: str = "by an operator"


@dataclass(frozen=True)
class Resume:
    """Make tasks again after `Pause`."""

    type_name: ClassVar[str] = "resume"
    why: str = "by an operator"


@dataclass(frozen=True)
class Stop:
    """To a node: the job has ended. From an operator: end it, at once or when the current round has closed."""

    type_name: ClassVar[str] = "stop"
    why: str = "by an operator"
    when: Literal["now", "round"] = "now"
    model_differs: bool = False
    """To a node: it is excluded, because its model differs from the job's."""


@dataclass(frozen=True)
class SwitchMode:
    """Change the job's mode: its nodes continue as peers, or hand it back to the server."""

    type_name: ClassVar[str] = "switch_mode"
    to: Literal["gossip", "server"]
    why: str = "by an operator"


@dataclass(frozen=True)
class ChangeSettings:
    """Change settings, by their keys, from the next version on (`shoal.core.job.settings_change`)."""

    type_name: ClassVar[str] = "change_settings"
    values: Metrics
    why: str = "by an operator"


@dataclass(frozen=True)
class DrainNode:
    """Give a node no more tasks or, with an empty `why`, give it tasks again. It stays a member and keeps its memory.

    `withdraw`: take its current task back at once; otherwise it finishes that task, and the report counts.
    """

    type_name: ClassVar[str] = "drain_node"
    node: str
    why: str = ""
    withdraw: bool = False


NodeMessage = Join | Poll | CoordinatorPing | TaskStatus | Report | TaskFailed | Leave
HubMessage = Task | Amendment | NoTask | Ack | CoordinatorAlive | Stop
OperatorMessage = Pause | Resume | Stop | SwitchMode | DrainNode | ChangeSettings
Message = NodeMessage | HubMessage | OperatorMessage
"""The messages by sender. Codec, checks and hosts derive from these unions the messages that they accept."""


def term_of(message: Message, held: Task | None = None) -> int | None:
    """Return the hub's term that a message shows; None if it shows none, or amends the task that the node holds."""
    match message:
        case Amendment(task=task) if held is not None and task == held.id:
            return None
        case Task(id=task, issued_in_term=term):
            return max(task[0], term)
        case Amendment(task=task) | NoTask(newest_task=task):
            return task[0]
        case CoordinatorAlive(term):
            return term
    return None
