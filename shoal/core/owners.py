"""Which of several coordinators over one database owns which job.

One of them is the **lead** (`shoal.core.tenure`): it owns what is about nodes and people, and every job that nobody
else owns. The others may be **deputies**: each owns the jobs that were given to it when they began. A deputy has a
lease of its own, with an epoch, like the lead's. Both are rows of the database, and so is the owner of each job:

    leases   coordinator        → the lead, its epoch, until when          jobs   main  → (the lead)
             deputy:b1c3…       → that deputy, its epoch, until when              other → b1c3…

Each writes only in transactions that begin by renewing its lease in its epoch. A job's owner is changed either by that
owner itself, so in such a transaction, or by the lead in the one that ends the deputy's epoch, which it may only when
the lease has ended. So at no time two can write for one job, and no row has to be looked at for each job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.core.tenure import Elsewhere, Lease

LEAD = ""
"""The owner of jobs that are no deputy's."""


@dataclass(frozen=True)
class Owners:
    """The rows as they were read, by a question that was asked at `asked` on this process's own clock, in seconds."""

    deputies: Mapping[str, Lease] = field(default_factory=dict)
    """By name."""
    jobs: Mapping[str, str] = field(default_factory=dict)
    """The deputy that owns a job; jobs of the lead are not named."""
    asked: float = 0.0

    def way(self, deputy: str, now: float) -> Elsewhere | None:
        """Where that deputy answers; None when it does not now, or its lease may have ended."""
        lease = self.deputies.get(deputy)
        if lease is None or not lease.address or now >= self.asked + lease.left_s:
            return None
        return Elsewhere(lease.epoch, lease.address, lease.secret)

    def live(self, now: float) -> dict[str, Elsewhere]:
        """Deputies that answer, by name."""
        return {name: way for name in sorted(self.deputies) if (way := self.way(name, now)) is not None}

    def lost(self) -> list[str]:
        """Deputies whose lease has ended by the database's clock, though they own jobs: those have to be taken over."""
        owners = set(self.jobs.values())
        return sorted(name for name in owners if name not in self.deputies or self.deputies[name].left_s <= 0)


def evened(loads: Mapping[str, int]) -> str:
    """Who is to be given one of the lead's jobs, so that they own as many as each other; `LEAD`: nobody."""
    to = chosen(loads)
    return to if loads.get(to, 0) + 1 < loads.get(LEAD, 0) else LEAD


def chosen(loads: Mapping[str, int]) -> str:
    """Who is to own one more job: whoever owns the fewest that run; among equals the lead, then the first by name."""
    return min(loads, key=lambda name: (loads[name], name), default=LEAD)
