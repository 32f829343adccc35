"""The nodes of a job, and the task of each."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field, replace
from math import isfinite
from operator import attrgetter
from typing import Any

from shoal.core.protocol.message import Ack, Amendment, BlobRef, Kind, NodeInfo, Report, Task, TaskId, TaskStatus
from shoal.core.protocol.metrics import LOSS, TRAIN_LOSS
from shoal.core.protocol.snapshot import from_state, to_state
from shoal.core.scheduling.selection import Candidate

FAILURES_MAX = 3
"""Failures in a row after which a node is not asked for a while, or until its process restarts."""

PAUSE_S, PAUSE_S_MAX = 60.0, 3600.0
"""The first such pause, and the longest: each failure after it doubles it. A full disk may be empty again by then."""

ERROR_CHARACTERS_MAX = 400
"""Characters of a node's last failure that are remembered."""

DEADLINES_KEPT = 10
"""Past deadlines of a node that are remembered."""

LISTED = frozenset({"is_present", "task", "status", "is_finished", "paused_until", "is_gossiping", "node_info"})
"""Attributes of a member by which its roster keeps lists."""

GIVEN_KEPT = 8
"""Past tasks of a node that are remembered, to tell a late report from a foreign one."""


@dataclass
class TrainingHistory:
    """The past training of one node."""

    counted_updates: int = -1
    """Number of its updates that have counted; -1: it was never asked for one."""
    held_version: int = -1
    """The version whose model it was last sent and has answered for."""
    examples: float | None = None
    """The weight of its last update."""
    loss: float | None = None
    """Its loss in its last report."""
    deadlines: str = ""
    """One sign for each of the last rounds that asked it: "+" if its report counted, "-" if the deadline came first."""

    def add_report(self, report: Report) -> None:
        """Store the weight and the loss of an update or of a probe. A loss that is not finite counts as none."""
        self.examples = report.weight or self.examples
        loss = report.metrics.get(TRAIN_LOSS, report.metrics.get(LOSS))
        if loss is not None and isfinite(loss):
            self.loss = loss

    def add_deadline(self, *, met: bool) -> None:
        """Store whether the node reported before a round's deadline."""
        self.deadlines = (self.deadlines + ("+" if met else "-"))[-DEADLINES_KEPT:]


@dataclass
class RosterMember:
    """One node of a job."""

    node: str
    is_present: bool = True
    task: Task | None = None
    status: TaskStatus | None = None
    is_finished: bool = False
    last_ack: Ack | None = None
    failures: int = 0
    error: str = ""
    """The last of its failures in a row, shortened."""
    paused_until: float | None = None
    """End of its pause after failures in a row, on the hub's clock."""
    is_gossiping: bool = False
    """True if its returned model was refused: it is among peers still, and obeys no task until it says
    that it is back.
    """
    recent_tasks: list[TaskId] = field(default_factory=list)
    has_left: bool = False
    """It went in good order, or an operator removed it, and has not come back: unlike one that is merely lost."""
    node_info: NodeInfo = field(default_factory=NodeInfo)
    history: TrainingHistory = field(default_factory=TrainingHistory)
    roster: NodeRoster | None = field(default=None, init=False, compare=False, repr=False)
    """Told of what changes, since it keeps lists of it."""

    def __setattr__(self, name: str, value: Any) -> None:
        known = self.__dict__
        news = name in LISTED and known.get("roster") is not None and known[name] is not value
        known[name] = value
        if news:
            known["roster"].note_change(self, name)

    @property
    def is_set_aside(self) -> bool:
        return self.paused_until is not None

    def count_failure(self, why: str, now: float) -> float | None:
        """Count a failure; return the pause that it costs, in seconds."""
        self.failures, self.error = self.failures + 1, why[:ERROR_CHARACTERS_MAX]
        if self.failures < FAILURES_MAX:
            return None
        pause = min(PAUSE_S_MAX, PAUSE_S * 2.0 ** min(self.failures - FAILURES_MAX, 16))
        self.paused_until = now + pause
        return pause

    def clear_failures(self) -> None:
        """Forget the failures."""
        if self.failures:
            self.failures, self.error, self.paused_until = 0, "", None

    @property
    def candidate(self) -> Candidate:
        """The member as a selection sees it."""
        info, known = self.node_info, self.history
        return Candidate(self.node, info.tags, info.hours, known.examples, known.loss, info.drain_reason)

    def assign(self, task: Task) -> None:
        """Make a task stand; it replaces the one before."""
        self.task, self.status = task, None
        self.recent_tasks = [*self.recent_tasks, task.id][-GIVEN_KEPT:]
        if task.kind == "train":
            self.history.counted_updates = max(self.history.counted_updates, 0)

    def recall(self) -> Task | Amendment:
        """Recall the task; return the message for the node."""
        assert self.task is not None
        self.task = replace(self.task, revision=self.task.revision + 1, recall=True)
        return self._amended()

    def allow_next_check(self) -> Task | Amendment:
        """Let the node make one check more of its task; return the message for it."""
        assert self.task is not None
        self.task = replace(self.task, revision=self.task.revision + 1, checks_allowed=self.task.checks_allowed + 1)
        return self._amended()

    def _amended(self) -> Task | Amendment:
        """Return the task as it reads now: an amendment for a node that has sent a status, and so holds it."""
        assert self.task is not None
        return Amendment.of(self.task) if self.status is not None else self.task

    def amendment_for(self, status: TaskStatus) -> Amendment | None:
        """Return what a node with this status does not know yet of its task."""
        task = self.task
        assert task is not None
        return Amendment.of(task) if task.recall or status.check < task.checks_allowed else None

    @property
    def is_waiting(self) -> bool:
        """True if the node has made the last check that its task lets it make by itself."""
        task, status = self.task, self.status
        return task is not None and status is not None and not task.recall and 0 < task.checks_allowed <= status.check

    def close_task(self, ack: Ack) -> None:
        """Remove the task, with this answer."""
        if self.task is not None and self.task.blob is not None:
            self.history.held_version = self.task.version
        self.task, self.status, self.last_ack = None, None, ack


_name = attrgetter("node")


class NodeRoster:
    """The nodes of a job, in the order of their names.

    A schedule looks at all of them with every event, and an event changes one: so lists are cached until they change.
    Callers must not change a returned list, nor keep it: a new node is inserted into it.
    """

    def __init__(self) -> None:
        self._members: dict[str, RosterMember] = {}
        self.timed: set[str] = set()
        """Members that have hours."""
        self.drained: set[str] = set()
        """Nodes that an operator has drained."""
        self.forms: set[str] = set()
        """Digests of all forms of models that members have told."""
        self.revision = 0
        """Rises when others than before are here and can be asked, or one says something else of itself."""
        self._told: set[str] = set()
        self._paused: set[str] = set()
        self._all: list[RosterMember] | None = None
        self._forget()

    def _forget(self) -> None:
        """Forget cached lists: other nodes are here than before."""
        self._here: list[RosterMember] | None = None
        self._busy: dict[str, Kind] | None = None
        self._finished: frozenset[str] | None = None
        self._forget_askable()

    def _forget_askable(self) -> None:
        """Forget which nodes may be asked: others may, or one says something else of itself."""
        self._able: list[RosterMember] | None = None
        self._names: tuple[str, ...] | None = None
        self.revision += 1

    def note_change(self, member: RosterMember, name: str) -> None:
        """Note that a field of a node, one of `LISTED`, has changed."""
        if name == "is_present":
            self._forget()
        elif name == "task":
            self._change_task(member)
        elif name == "status":
            (self._told.discard if member.status is None else self._told.add)(member.node)
        elif name == "is_finished":
            self._finished = None
        elif name == "paused_until":
            (self._paused.discard if member.paused_until is None else self._paused.add)(member.node)
            self._forget_askable()
        else:
            self._forget_askable()

    def _change_task(self, member: RosterMember) -> None:
        busy = self._busy
        if busy is None or not member.is_present:
            return
        if member.task is None:
            busy.pop(member.node, None)
        elif member.node in busy:
            busy[member.node] = member.task.kind
        else:
            self._busy = None  # it has a place between others

    def get(self, node: str) -> RosterMember | None:
        return self._members.get(node)

    def __getitem__(self, node: str) -> RosterMember:
        return self._members[node]

    def admit(self, node: str, node_info: NodeInfo | None = None) -> RosterMember:
        """Return the node of that name, new or old, and from now on here. `about`: its present information."""
        if node not in self._members:
            self._enter(RosterMember(node, node_info=node_info or NodeInfo()))
        member = self._members[node]
        if not member.is_present or member.has_left:
            member.is_present, member.has_left = True, False
        if node_info is not None:
            self.set_node_info(member, node_info)
        return member

    def set_node_info(self, member: RosterMember, node_info: NodeInfo) -> None:
        """Keep what is said of a member now."""
        if node_info != member.node_info:
            member.node_info = node_info
            self._time(member)

    def _enter(self, member: RosterMember) -> None:
        """Insert a new node into each list: of a hundred thousand that join, none may copy or sort the others."""
        for members in (self.askable(), self.present_members(), self.all_members()):
            insort(members, member, key=_name)
        self._names = None
        self._members[member.node] = member
        self._adopt(member)
        self.revision += 1

    def _adopt(self, member: RosterMember) -> None:
        member.roster = self
        self._time(member)
        if member.status is not None:
            self._told.add(member.node)
        if member.paused_until is not None:
            self._paused.add(member.node)

    def _time(self, member: RosterMember) -> None:
        (self.timed.add if member.node_info.hours else self.timed.discard)(member.node)
        (self.drained.add if member.node_info.drain_reason else self.drained.discard)(member.node)
        if member.node_info.model is not None:
            self.forms.add(member.node_info.model.digest)

    def all_members(self) -> list[RosterMember]:
        if self._all is None:
            self._all = sorted(self._members.values(), key=_name)
        return self._all

    def present_members(self) -> list[RosterMember]:
        """Return the nodes that give signs of life."""
        if self._here is None:
            self._here = [member for member in self.all_members() if member.is_present]
        return self._here

    def askable(self) -> list[RosterMember]:
        """Return the nodes that may be asked."""
        if self._able is None:
            self._able = [one for one in self.present_members() if not (one.is_set_aside or one.is_gossiping)]
        return self._able

    def askable_names(self) -> tuple[str, ...]:
        """Return their names."""
        if self._names is None:
            self._names = tuple(member.node for member in self.askable())
        return self._names

    def members_set_aside(self) -> list[RosterMember]:
        """Return the nodes that are here and not asked for a while, after failures."""
        return [one for one in (self._members[node] for node in sorted(self._paused)) if one.is_present]

    @property
    def has_members_set_aside(self) -> bool:
        """True if any node is paused after failures."""
        return bool(self._paused)

    def next_resume(self) -> float | None:
        """Return the end of the first pause after failures; None if there is none."""
        return min((self._members[node].paused_until or 0.0 for node in self._paused), default=None)

    def end_suspensions(self, now: float) -> list[RosterMember]:
        """End the pauses that are over; the members whose they were."""
        due = [self._members[node] for node in sorted(self._paused) if (self._members[node].paused_until or 0.0) <= now]
        for member in due:
            member.paused_until = None
        return due

    def busy(self) -> dict[str, Kind]:
        """Return the present nodes with a task, with its kind; the caller owns the dictionary."""
        if self._busy is None:
            self._busy = {member.node: member.task.kind for member in self.present_members() if member.task is not None}
        given = self._busy
        self._busy = given.copy()  # without the holes of what was removed: it can be copied five times faster itself
        return given

    def busy_count(self) -> int:
        """Return the number of present nodes with a task. Caches nothing: it is asked while the hub is at work, too."""
        known = self._busy
        return len(known) if known is not None else sum(member.task is not None for member in self.present_members())

    @property
    def is_working(self) -> bool:
        """Return True if a present node has a task."""
        known = self._busy
        return bool(known) if known is not None else any(member.task is not None for member in self.present_members())

    def finished_nodes(self) -> frozenset[str]:
        """Return the present nodes that have trained as much as they should."""
        if self._finished is None:
            self._finished = frozenset(member.node for member in self.present_members() if member.is_finished)
        return self._finished

    def waiting_nodes(self) -> frozenset[str]:
        """Return the present nodes that wait at a check."""
        told = map(self._members.__getitem__, self._told)
        return frozenset(member.node for member in told if member.is_present and member.is_waiting)

    def state(self) -> list[dict[str, Any]]:
        """Return the roster as JSON values."""
        return [to_state(member) for member in self.all_members()]

    @classmethod
    def restore(cls, state: list[dict[str, Any]]) -> NodeRoster:
        roster = cls()
        for row in state:
            member = from_state(RosterMember, row)
            roster._members[member.node] = member
            roster._adopt(member)
        return roster


def task_refs(state: list[dict[str, Any]]) -> list[BlobRef]:
    """Return the blobs that the tasks in a roster of that state name."""
    tasks = [from_state(Task, row["task"]) for row in state if "task" in row]
    return [ref for task in tasks for ref in (task.blob, task.reference) if ref is not None]
