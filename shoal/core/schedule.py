"""When to ask and when to close. A schedule is a pure function of a view, and every decision says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

from shoal.core.errors import InvalidJob
from shoal.core.message import Kind, Metrics
from shoal.core.selection import Candidate, Picked, Selection
from shoal.core.words import counted

WINDOW = "window"
"""Among a schedule's numbers: checks after which a node reports though nobody has asked."""

VIOLATIONS, FULL = "total.violations", "total.full"
"""Among them, for people: violations and full synchronisations since the job began."""


@dataclass(frozen=True)
class Ask:
    """Give each of these nodes an order."""

    nodes: tuple[str, ...]
    kind: Kind
    why: str


@dataclass(frozen=True)
class Recall:
    """Have these nodes report what they have at their next check."""

    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Advance:
    """Let all who wait at a check go on by one. Said to nodes alone: there is nothing to tell people."""


@dataclass(frozen=True)
class Warn:
    """Tell people that something about a node is wrong."""

    node: str
    why: str


@dataclass(frozen=True)
class Close:
    """Make a new version of what was reported."""

    why: str
    to: tuple[str, ...] = ()
    """Nodes that get an order for the new version at once."""
    keep: bool = False
    """Orders of others stay as they are; else they are withdrawn."""
    rebase: bool = False
    """From now on everybody holds this version: reports are relative to it."""
    last: bool = False
    """The job's training ends with it."""
    late: bool = False
    """Its deadline has passed: nodes that were asked and have not reported have missed it."""


@dataclass(frozen=True)
class Wait:
    """Nothing to do before `until` (None: before something happens)."""

    why: str
    until: float | None = None
    reports: int = 0
    """More reports alone change nothing before so many are in: it need not look at each. 0: it looks whatever comes."""
    wanted: int = 0
    """With `reports`: how many a version wants; so what is waited for is said anew for each that comes."""


Decision = Ask | Recall | Advance | Warn | Close | Wait


@dataclass(frozen=True)
class View:
    """Everything a schedule may look at. Times in seconds on the hub's clock."""

    now: float
    version: int
    opened: float | None
    """When the first order of this version went out; None while none has."""
    population: int
    """How many nodes could be asked when this version was opened (now, while it is not)."""
    members: tuple[str, ...]
    """Nodes that are there and can be asked, sorted."""
    busy: Mapping[str, Kind]
    """Nodes that are there and have not answered the order that stands for them."""
    asked: frozenset[str]
    """Nodes that were asked in this version, whether they answered or not."""
    reports: tuple[str, ...]
    """Nodes whose reports count in this version, in order of arrival."""
    failed: frozenset[str]
    """Nodes whose last order of this version failed."""
    seconds: tuple[float, ...]
    """How long the last versions took, oldest first."""
    seed: int
    measured: frozenset[str] = frozenset()
    """Nodes that have told their loss on this version, so that it can be chosen among them."""
    recalled: frozenset[str] = frozenset()
    """Nodes that were asked to report what they have, in this version."""
    recalled_at: float | None = None
    """When that was last done."""
    late: frozenset[str] = frozenset()
    """Nodes whose reports answer a recall of an earlier version."""
    waiting: frozenset[str] = frozenset()
    """Busy nodes that have made their check and wait for word."""
    norms: Mapping[str, float] = field(default_factory=dict)
    """The norm of each report."""
    pieces: Mapping[str, float] = field(default_factory=dict)
    """How many checks of its order each reporting node says to have made."""
    numbers: Metrics = field(default_factory=dict)
    """What `Schedule.numbers` said last."""
    nbytes: int = 0
    """Bytes of the bodies that have travelled for this version."""
    finished: frozenset[str] = frozenset()
    """Nodes that have said that they have trained as much as they should."""
    left: int = 1_000_000
    """Versions that may still be made; at most 1: the next one is the last."""
    gap: Callable[[], float] = lambda: 0.0
    """The squared norm of the mean of the reports; takes time in proportion to the model."""
    size: Callable[[], float] = lambda: 0.0
    """The squared norm of the base."""
    present: int = 0
    """How many nodes are there: members, and those that are set aside after failures."""
    estimate: Callable[[], float | None] = lambda: None
    """What the algorithm makes of the nodes' statuses; None without a full set of them."""
    selection: Selection = field(default_factory=Selection)
    """Which nodes are asked where a schedule wants fewer than there are."""
    candidate: Callable[[str], Candidate] = Candidate
    """What is known of a node."""

    @property
    def idle(self) -> tuple[str, ...]:
        """Members without an order, sorted."""
        return tuple(node for node in self.members if node not in self.busy)

    def pick(self, nodes: Sequence[str], count: int) -> Picked:
        """So many of these, without replacement; the same for the same job seed, version and history."""
        return self.selection.pick([self.candidate(node) for node in sorted(nodes)], count, self._rng)

    def candidates(self, nodes: Sequence[str], count: int) -> tuple[str, ...]:
        """Those of them that are to measure the model before so many are picked; none, if none need to."""
        known = [self.candidate(node) for node in sorted(nodes)]
        return self.selection.candidates_of(known, count, self._rng) if count < len(known) else ()

    @property
    def _rng(self) -> Random:
        return Random(f"{self.seed}/{self.version}/{len(self.asked)}")  # reproducible, not secret


@dataclass(frozen=True)
class Schedule:
    """The one base class: fields are configuration, as in `Algorithm`."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    versions: ClassVar[int] = 10
    """How many versions a job makes that does not say so."""
    anchored: ClassVar[bool] = False
    """Whether reports are relative to a base, which changes only when a `Close` says so; else to the last version."""
    estimates: ClassVar[bool] = False
    """Whether it looks at what the algorithm makes of the nodes' statuses (`View.estimate`)."""
    renews: ClassVar[bool] = False
    """Whether it asks anew for every version, so that who takes part can change from one to the next."""

    measures: ClassVar[bool] = False
    """Whether it lets candidates measure the model, where the selection wants that, before it picks some of them."""
    changeable: ClassVar[tuple[str, ...]] = ("deadline_s", "min_nodes")
    """Fields that an operator may change while a job runs: those that nothing kept depends on."""
    again: ClassVar[bool] = False
    """Whether it asks nodes anew that have reported for a version already."""

    def admits(self, staleness: int) -> bool:
        """Whether a report counts that is `staleness` versions old."""
        return staleness == 0

    @property
    def least(self) -> int:
        """Nodes without which it asks nobody: the field `min_nodes`, which most have."""
        return int(getattr(self, "min_nodes", 0))

    @property
    def at_once(self) -> int:
        """Nodes that it asks for a version at most; 0: it depends on how many there are."""
        return 0

    @property
    def ahead(self) -> int:
        """Checks that a node may make by itself before it waits for word; 0: any number."""
        return 0

    def numbers(self, view: View, close: Close | None) -> Metrics:
        """What the schedule keeps from now on and tells to nodes, when it closes (or, None, at the beginning)."""
        return {}

    def rests(self, numbers: Metrics, node: str, now: float) -> bool:
        """Whether the numbers say that a node is left out at this moment."""
        return False

    def decide(self, view: View) -> list[Decision]:
        """What to do now. Must come to a Wait after finitely many decisions were carried out."""
        raise TypeError(f"{type(self).__name__} does not say when to ask and when to close")


@dataclass(frozen=True)
class Anchored(Schedule):
    """One whose reports are relative to a base, and which goes on until its nodes have trained enough."""

    versions: ClassVar[int] = 1_000_000
    anchored: ClassVar[bool] = True

    def admits(self, staleness: int) -> bool:
        """A report counts as long as its order stands: orders are withdrawn when the base changes."""
        return True


def gathering(view: View, min_nodes: int) -> list[Decision]:
    """A wait for that many members, before anybody has been asked; nothing once they are there."""
    if view.version or view.asked or len(view.members) >= min_nodes:
        return []
    return [Wait(short(view, min_nodes))]


def short(view: View, least: int) -> str:
    """Return the reason for a wait for that many nodes."""
    return f"{len(view.members)} of {counted(least, 'node')} ready"


def check_patience(name: str, deadline_s: float, min_nodes: int) -> None:
    """Raise `InvalidJob` for settings under which a schedule would wait for ever, or for nobody."""
    if not 0 < deadline_s < float("inf") or min_nodes < 1:
        raise InvalidJob(f"{name}: deadline_s must be above 0, min_nodes at least 1")
