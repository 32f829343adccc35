"""The leader lease: of several coordinators over one database one leads, and the others forward to it.

              the lease has expired, or was this one's own in an earlier process
    standby ────────────────────────────────────────────────────────────────► taking ───► owner
       ▲                                                                        │           │
       └──────────────── another was faster; the state was not restored ◄───────┘           │
       └──────────────── another has taken the lease: a later term ◄────────────────────────┘

The lease is a row of the database: its holder, its term, and its end by the database's clock. Each new leader's term is
one higher, and the database rejects writes of earlier terms: that makes writing safe. Time makes answering safe: a
leader answers only while no other can hold the lease, counted on its own clock from *before* it asked for the last
renewal. So a process that was stopped and continues gives no outdated answers, even before it learns of its successor.
Clocks are never compared; they only have to run equally fast.

`next` returns the next action; its outcome is passed to `looked`, `missed`, `took`, `refused` or `dropped`. `renewed`
and `fenced` may be called at any time. `way` returns the leader.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from shoal.core.errors import InvalidJob

Phase = Literal["standby", "taking", "leader", "dropping"]

SLOWER = 0.95
"""Lower bound on this clock's speed relative to the database's: a leader counts on this part of its lease."""


@dataclass(frozen=True)
class LeaseRow:
    """The row as it was read: `left_s` by the database's clock; `address`, `secret`: of a leader that answers."""

    term: int
    holder: str
    left_s: float
    address: str = ""
    secret: str = ""


@dataclass(frozen=True)
class LocalLeader:
    """This coordinator leads, in this term."""

    term: int


@dataclass(frozen=True)
class RemoteLeader:
    """Another coordinator leads, at that address; forwarded requests are signed with its term's secret."""

    term: int
    address: str
    secret: str


@dataclass(frozen=True)
class NoLeader:
    """No coordinator leads now; retry after that time."""

    retry_s: float


@dataclass(frozen=True)
class ReadLease:
    """An action: read the row."""


@dataclass(frozen=True)
class TakeLease:
    """An action: take the lease and restore all state."""


@dataclass(frozen=True)
class StepDown:
    """An action: drop all state, because another coordinator leads."""


class HeldLease:
    """A lease as its holder counts on it. Times are seconds of its own clock; `lease_s`: duration from a renewal."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._until = float("-inf")

    def renewed(self, begun: float) -> None:
        """Record a renewal that was requested at `begun`."""
        self._until = max(self._until, begun + SLOWER * self._lease_s)

    def fenced(self) -> None:
        """Record that it has another term now, or was released."""
        self._until = float("-inf")

    def holds(self, now: float) -> bool:
        """Return whether no other coordinator can hold it yet."""
        return now < self._until


class LeaderLease:
    """One coordinator's part in it. `me`: its name, the same in all its processes. Times are seconds of its clock.

    `lease_s`: duration of a lease from its renewal. `look_s`: interval at which a follower reads the row.
    """

    def __init__(self, me: str, lease_s: float, look_s: float) -> None:
        if not 0 < look_s < lease_s:
            raise InvalidJob("a lease must last longer than the time between two looks at it")
        self.me, self.lease_s, self.look_s = me, lease_s, look_s
        self.phase: Phase = "standby"
        self.term = 0
        """This one's own term, while it leads."""
        self.takeovers = 0
        self._hold = HeldLease(lease_s)
        self._seen: LeaseRow | None = None
        self._seen_until = float("-inf")
        self._due = float("-inf")

    # Actions

    def next(self, now: float) -> ReadLease | TakeLease | StepDown | float:
        """Return the next action, or the time until which there is none."""
        if self.phase == "dropping":
            return StepDown()
        if self.phase != "standby":
            return now + self.look_s
        if self._due > now:
            return self._due
        if self._seen is not None and self._may_take(self._seen):
            self.phase = "taking"
            return TakeLease()
        return ReadLease()

    def _may_take(self, seen: LeaseRow) -> bool:
        return seen.left_s <= 0 or seen.holder in ("", self.me)

    def shun(self, now: float) -> None:
        """Forget an unreachable leader until the row is read again."""
        self._seen_until = min(self._seen_until, now)

    # Outcomes

    def looked(self, begun: float, now: float, seen: LeaseRow) -> None:
        """Record the row, read by a query that began at `begun`."""
        known = self._seen
        if self.phase != "standby" or (known is not None and seen.term < known.term):
            return
        self._seen, self._seen_until = seen, begun + seen.left_s
        if not self._may_take(seen):
            self._due = now + min(self.look_s, max(seen.left_s, 0.0))

    def missed(self, now: float) -> None:
        """Record that the database did not answer."""
        self._due = now + self.look_s

    def took(self, term: int) -> None:
        """Record that the lease is taken and all state is restored. `renewed` was called with its start."""
        if self.phase == "taking":
            self.phase, self.term, self.takeovers = "leader", term, self.takeovers + 1

    def refused(self, now: float) -> None:
        """Record that another was faster, or that the state could not be restored."""
        if self.phase in ("taking", "dropping"):
            self._stand_by(now + self.look_s)

    def renewed(self, begun: float) -> None:
        """Record a renewal that was requested at `begun`."""
        self._hold.renewed(begun)

    def fenced(self) -> None:
        """Record that the database has rejected a write: the lease has another term."""
        if self.phase in ("taking", "leader"):
            self.phase = "dropping"
        self._hold.fenced()

    def dropped(self, now: float) -> None:
        """Record that all state is dropped."""
        self._stand_by(now)

    def _stand_by(self, due: float) -> None:
        self.phase, self.term, self._due = "standby", 0, due
        self._seen = None
        self._hold.fenced()

    # The leader

    def holds(self, now: float) -> bool:
        """Return whether no other coordinator can hold the lease yet."""
        return self._hold.holds(now)

    def way(self, now: float) -> LocalLeader | RemoteLeader | NoLeader:
        """Return the leader."""
        if self.phase == "leader":
            return LocalLeader(self.term) if self.holds(now) else NoLeader(self.look_s)
        seen = self._seen
        known = self.phase == "standby" and seen is not None and now < self._seen_until
        if known and seen is not None and seen.address and seen.holder != self.me:
            return RemoteLeader(seen.term, seen.address, seen.secret)
        return NoLeader(self.look_s)

    @property
    def seen(self) -> LeaseRow | None:
        """The row as it was last read, without its secret."""
        return replace(self._seen, secret="") if self._seen is not None else None
