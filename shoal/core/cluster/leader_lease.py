"""Which of several coordinators over one database answers: the one that holds the lease. The others pass on to it.

              the lease has ended, or was this one's own in an earlier life
    standby ────────────────────────────────────────────────────────────────► taking ───► owner
       ▲                                                                        │           │
       └──────────────────── another was faster; it could not begin ◄───────────┘           │
       └──────────────────── another has the lease: an epoch later ◄────────────────────────┘

The lease is a row of the database: who, in which epoch, until when by the database's clock. Each owner's epoch is one
higher, and the database takes no write of an earlier one. That makes writing safe. Answering is made safe by time: an
owner answers only for as long as nobody else can have the lease, counted on its own clock from *before* it asked for
the last renewal. So one that was stopped, and goes on, says nothing out of a memory that has grown old, even before it
learns that another has taken its place. Clocks are never compared; they only have to run equally fast.

`next` says what there is to do, and its outcome is told by `looked`, `missed`, `took`, `refused`, `dropped`; `renewed`
and `fenced` may come at any time. `way` says who answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from shoal.core.errors import InvalidJob

Phase = Literal["standby", "taking", "owner", "dropping"]

SLOWER = 0.95
"""A clock may be so much slower than the database's: an owner counts on that much of its lease."""


@dataclass(frozen=True)
class Lease:
    """The row as it was read: `left_s` by the database's clock; `address`, `secret`: of an owner that answers."""

    epoch: int
    holder: str
    left_s: float
    address: str = ""
    secret: str = ""


@dataclass(frozen=True)
class Here:
    """This one answers, in that epoch."""

    epoch: int


@dataclass(frozen=True)
class Elsewhere:
    """The owner answers, at that address; what is passed on is signed with the secret of its epoch."""

    epoch: int
    address: str
    secret: str


@dataclass(frozen=True)
class Nobody:
    """Nobody answers now; ask again after that time."""

    retry_s: float


@dataclass(frozen=True)
class Look:
    """Read the row."""


@dataclass(frozen=True)
class Take:
    """Take the lease, and begin to own."""


@dataclass(frozen=True)
class Drop:
    """Another owns the database: forget everything."""


class Hold:
    """A lease as its holder counts on it. Times are its own clock's, in seconds; `lease_s`: how long it lasts."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._until = float("-inf")

    def renewed(self, begun: float) -> None:
        """The database has renewed it, by a question that was asked at `begun`."""
        self._until = max(self._until, begun + SLOWER * self._lease_s)

    def fenced(self) -> None:
        """It is of another epoch now, or was let go."""
        self._until = float("-inf")

    def holds(self, now: float) -> bool:
        """Whether nobody else can have it yet."""
        return now < self._until


class Tenure:
    """One coordinator's part in it. `me`: its name, the same in all its lives. Times are its own clock's, in seconds.

    `lease_s`: how long a lease lasts from its renewal. `look_s`: how often a standby reads the row.
    """

    def __init__(self, me: str, lease_s: float, look_s: float) -> None:
        if not 0 < look_s < lease_s:
            raise InvalidJob("a lease must last longer than the time between two looks at it")
        self.me, self.lease_s, self.look_s = me, lease_s, look_s
        self.phase: Phase = "standby"
        self.epoch = 0
        """This one's own, while it is the owner."""
        self.takeovers = 0
        self._hold = Hold(lease_s)
        self._seen: Lease | None = None
        self._seen_until = float("-inf")
        self._due = float("-inf")

    # What there is to do

    def next(self, now: float) -> Look | Take | Drop | float:
        """What to do now; or a time until which there is nothing to do."""
        if self.phase == "dropping":
            return Drop()
        if self.phase != "standby":
            return now + self.look_s
        if self._due > now:
            return self._due
        if self._seen is not None and self._may_take(self._seen):
            self.phase = "taking"
            return Take()
        return Look()

    def _may_take(self, seen: Lease) -> bool:
        return seen.left_s <= 0 or seen.holder in ("", self.me)

    def shun(self, now: float) -> None:
        """The owner is not to be reached: nothing is passed on before the next look."""
        self._seen_until = min(self._seen_until, now)

    # What came of it

    def looked(self, begun: float, now: float, seen: Lease) -> None:
        """The row was read, by a question that was asked at `begun`."""
        known = self._seen
        if self.phase != "standby" or (known is not None and seen.epoch < known.epoch):
            return
        self._seen, self._seen_until = seen, begun + seen.left_s
        if not self._may_take(seen):
            self._due = now + min(self.look_s, max(seen.left_s, 0.0))

    def missed(self, now: float) -> None:
        """The database did not answer."""
        self._due = now + self.look_s

    def took(self, epoch: int) -> None:
        """The lease is this one's, and all that it owns is restored. (`renewed` has said since when.)"""
        if self.phase == "taking":
            self.phase, self.epoch, self.takeovers = "owner", epoch, self.takeovers + 1

    def refused(self, now: float) -> None:
        """Another was faster, or what it owns could not be restored: let the others have a turn."""
        if self.phase in ("taking", "dropping"):
            self._stand_by(now + self.look_s)

    def renewed(self, begun: float) -> None:
        """The database has renewed this one's lease, by a question that was asked at `begun`."""
        self._hold.renewed(begun)

    def fenced(self) -> None:
        """The database has refused a write: its lease is of another epoch."""
        if self.phase in ("taking", "owner"):
            self.phase = "dropping"
        self._hold.fenced()

    def dropped(self, now: float) -> None:
        """Everything is forgotten."""
        self._stand_by(now)

    def _stand_by(self, due: float) -> None:
        self.phase, self.epoch, self._due = "standby", 0, due
        self._seen = None
        self._hold.fenced()

    # Who answers

    def holds(self, now: float) -> bool:
        """Whether nobody else can have the lease yet."""
        return self._hold.holds(now)

    def way(self, now: float) -> Here | Elsewhere | Nobody:
        """Who answers a request."""
        if self.phase == "owner":
            return Here(self.epoch) if self.holds(now) else Nobody(self.look_s)
        seen = self._seen
        known = self.phase == "standby" and seen is not None and now < self._seen_until
        if known and seen is not None and seen.address and seen.holder != self.me:
            return Elsewhere(seen.epoch, seen.address, seen.secret)
        return Nobody(self.look_s)

    @property
    def seen(self) -> Lease | None:
        """The row as it was read last, without its secret."""
        return replace(self._seen, secret="") if self._seen is not None else None
