"""Schedules decide when nodes train and when a version is made: pure functions of a view, with reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

from shoal.core.errors.phrases import counted
from shoal.core.errors.ranges import check_ranges
from shoal.core.protocol.message import Kind, Metrics, ScheduleFamily
from shoal.core.scheduling.round import Round
from shoal.core.scheduling.selection import Candidate, Picked, Selection

VIOLATIONS, FULL = "total.violations", "total.full_syncs"
"""Numbers for people: violations and full synchronizations since the job began."""


@dataclass(frozen=True)
class Ask:
    """Give each of these nodes a task."""

    nodes: tuple[str, ...]
    kind: Kind
    why: str


@dataclass(frozen=True)
class Recall:
    """Ask these nodes for a report at their next check."""

    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Advance:
    """Let all nodes that wait at a check train up to the next one. It is not shown to people."""


@dataclass(frozen=True)
class Warn:
    """Warn people about a node."""

    node: str
    why: str


@dataclass(frozen=True)
class Close:
    """Make a new version from the reports."""

    why: str
    to: tuple[str, ...] = ()
    """Nodes that get a task for the new version at once."""
    keep: bool = False
    """True if other nodes keep their tasks; else these are withdrawn."""
    rebase: bool = False
    """True if this version becomes the reference, to which reports are relative."""
    last: bool = False
    """True if the job's training ends with this version."""
    late: bool = False
    """True if the deadline has passed: nodes that were asked and have not reported have missed it."""


@dataclass(frozen=True)
class Wait:
    """Do nothing before `until` (None: before the next event)."""

    why: str
    until: float | None = None
    reports: int = 0
    """Number of reports before which further reports change nothing, so that it need not decide on each; 0: on each."""
    wanted: int = 0
    """With `reports`: the number of reports for a version, so that the reason can be shown again after each report."""


Decision = Ask | Recall | Advance | Warn | Close | Wait


@dataclass(frozen=True)
class NodeStates:
    """The present nodes of a job and their tasks."""

    members: tuple[str, ...]
    """Nodes that can be asked, sorted."""
    busy: Mapping[str, Kind]
    """Nodes that have a task and have not reported on it."""
    waiting: frozenset[str] = frozenset()
    """Busy nodes that have made a check and wait for an amendment."""
    finished: frozenset[str] = frozenset()
    """Nodes that have reported the end of their training."""
    present: int = 0
    """Number of present nodes that are not excluded, including those that are set aside after failures."""


@dataclass(frozen=True)
class NodeSampler:
    """The random choice of nodes, reproducible from the job's seed."""

    selection: Selection = field(default_factory=Selection)
    seed: int = 0
    candidate: Callable[[str], Candidate] = Candidate
    """Returns a node as a candidate."""


@dataclass(frozen=True)
class ModelMonitor:
    """Measurements of models. Each takes time in proportion to the model."""

    divergence: Callable[[], float] = lambda: 0.0
    """Returns the squared norm of the mean of the reports."""
    reference_size: Callable[[], float] = lambda: 0.0
    """Returns the squared norm of the reference."""
    variance: Callable[[], float | None] = lambda: None
    """Returns the algorithm's estimate from the nodes' statuses; None while one is missing."""


@dataclass(frozen=True)
class View:
    """A schedule's view of a job. Times in seconds on the hub's clock."""

    now: float
    version: int
    round: Round
    """The reports and events since the last version."""
    nodes: NodeStates
    seconds: tuple[float, ...] = ()
    """Seconds of the last versions, oldest first."""
    numbers: Metrics = field(default_factory=dict)
    """The last result of `Schedule.numbers`."""
    versions_left: int = 1_000_000
    """Versions that may still be made; at most 1: the next one is the last."""
    sampler: NodeSampler = field(default_factory=NodeSampler)
    monitor: ModelMonitor = field(default_factory=ModelMonitor)

    @property
    def population(self) -> int:
        """The number of nodes that could be asked when this version was opened (now, before it is)."""
        return self.round.population or len(self.nodes.members)

    @property
    def idle(self) -> tuple[str, ...]:
        """Members without a task, sorted."""
        return tuple(node for node in self.nodes.members if node not in self.nodes.busy)

    def pick(self, nodes: Sequence[str], count: int) -> Picked:
        """Pick this many without replacement; the same for the same job seed, version and history."""
        return self.sampler.selection.pick(self._candidates(nodes), count, self._rng)

    def candidates(self, nodes: Sequence[str], count: int) -> tuple[str, ...]:
        """Return the nodes that measure the model before this many are picked; empty if none need to."""
        if count >= len(nodes):
            return ()
        return self.sampler.selection.draw_candidates(self._candidates(nodes), count, self._rng)

    def _candidates(self, nodes: Sequence[str]) -> list[Candidate]:
        return [self.sampler.candidate(node) for node in sorted(nodes)]

    @property
    def _rng(self) -> Random:
        return Random(f"{self.sampler.seed}/{self.version}/{len(self.round.asked)}")  # reproducible, not secret


@dataclass(frozen=True)
class Schedule:
    """Base class of schedules. Fields are configuration, as in `Algorithm`."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    versions: ClassVar[int] = 10
    """Default number of versions."""
    family: ClassVar[ScheduleFamily] = "synchronous"
    changeable: ClassVar[tuple[str, ...]] = ("deadline_s", "min_nodes")
    """Fields that an operator may change while a job runs. No stored state may depend on them."""

    def __post_init__(self) -> None:
        """Check the fields' ranges. Raises `InvalidJob`."""
        check_ranges(self)

    @property
    def relative_to_reference(self) -> bool:
        """True if reports are relative to a reference, which a `Close` may change; else to the last version."""
        return self.family in ("periodic", "conditional", "monitored")

    def accepts_staleness(self, staleness: int) -> bool:
        """Return True if a report counts that is `staleness` versions old."""
        return staleness == 0

    @property
    def required_nodes(self) -> int:
        """The least number of nodes with which it makes tasks: the field `min_nodes` of most schedules."""
        return int(getattr(self, "min_nodes", 0))

    @property
    def cohort_size(self) -> int:
        """The greatest number of nodes that are asked for a version; 0: it depends on the number of nodes."""
        return 0

    @property
    def max_lead(self) -> int:
        """The number of checks that a node may make before it waits for an amendment; 0: any number."""
        return 0

    def numbers(self, view: View, close: Close | None) -> Metrics:
        """Return the numbers that the schedule keeps and sends to nodes; `close` is None at the start of the job."""
        return {}

    def is_backed_off(self, numbers: Metrics, node: str, now: float) -> bool:
        """Return True if the numbers say that a node is set aside at this moment."""
        return False

    def decide(self, view: View) -> list[Decision]:
        """Return the next decisions. After finitely many of them are carried out, it must return a `Wait`."""
        raise TypeError(f"{type(self).__name__} does not implement decide")


@dataclass(frozen=True)
class RelativeSchedule(Schedule):
    """One whose reports are relative to a base, and which goes on until its nodes have trained enough."""

    versions: ClassVar[int] = 1_000_000
    family: ClassVar[ScheduleFamily] = "periodic"

    def accepts_staleness(self, staleness: int) -> bool:
        """Return True: a report counts while its task stands, and tasks are withdrawn when the reference changes."""
        return True


def wait_for_nodes(view: View, min_nodes: int) -> list[Decision]:
    """Wait for that many nodes before any has been asked; [] once they are there."""
    if view.version or view.round.asked or len(view.nodes.members) >= min_nodes:
        return []
    return [Wait(nodes_ready(view, min_nodes))]


def nodes_ready(view: View, least: int) -> str:
    """Return the reason for a wait for that many nodes."""
    return f"{len(view.nodes.members)} of {counted(least, 'node')} ready"
