"""When to ask and when to close. A schedule is a pure function of a view, and every decision says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from shoal.core.message import Kind


@dataclass(frozen=True)
class Ask:
    """Give each of these nodes an order."""

    nodes: tuple[str, ...]
    kind: Kind
    why: str


@dataclass(frozen=True)
class Close:
    """Make a new version of what was reported."""

    why: str


@dataclass(frozen=True)
class Wait:
    """Nothing to do before `until` (None: before something happens)."""

    why: str
    until: float | None = None


Decision = Ask | Close | Wait


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

    @property
    def idle(self) -> tuple[str, ...]:
        """Members without an order, sorted."""
        return tuple(node for node in self.members if node not in self.busy)

    def pick(self, nodes: Sequence[str], count: int) -> tuple[str, ...]:
        """A uniform sample without replacement, sorted; the same for the same job seed, version and history."""
        if count >= len(nodes):
            return tuple(sorted(nodes))
        rng = Random(f"{self.seed}/{self.version}/{len(self.asked)}")  # reproducible, not secret
        return tuple(sorted(rng.sample(sorted(nodes), count)))


@dataclass(frozen=True)
class Schedule:
    """The one base class: fields are configuration, as in `Algorithm`."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""

    def admits(self, staleness: int) -> bool:
        """Whether a report counts that is `staleness` versions old."""
        return staleness == 0

    def decide(self, view: View) -> list[Decision]:
        """What to do now. Must come to a Wait after finitely many decisions were carried out."""
        raise TypeError(f"{type(self).__name__} does not say when to ask and when to close")
