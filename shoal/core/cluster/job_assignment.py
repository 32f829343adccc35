"""The assignment of jobs to the coordinators of one database.

The **leader** (`shoal.core.cluster.leader_lease`) owns nodes, users, and every job that no other coordinator owns. The
**followers** own the jobs that were assigned to them at their start. A follower has a lease and a term of its own.
Leases and owners are rows of the database:

    leases   coordinator        → the leader, its term, until when          jobs   main  → (the leader)
             follower:b1c3…     → that follower, its term, until when              other → b1c3…

Each writes only in transactions that begin by renewing its lease in its term. A job's owner is changed either by that
owner itself, in such a transaction, or by the leader in the transaction that ends the follower's term, after its lease
has expired. So two coordinators can never write for one job, and no row has to be read per job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.core.cluster.leader_lease import LeaseRow, RemoteLeader

LEADER = ""
"""The owner of jobs that no follower owns."""


@dataclass(frozen=True)
class JobOwners:
    """The rows, read by a query that began at `asked` on this process's clock, in seconds."""

    followers: Mapping[str, LeaseRow] = field(default_factory=dict)
    """Followers' leases by name."""
    jobs: Mapping[str, str] = field(default_factory=dict)
    """The follower that owns a job; the leader's jobs are missing."""
    asked: float = 0.0

    def way(self, follower: str, now: float) -> RemoteLeader | None:
        """Return the follower's address; None when it does not answer, or its lease may have expired."""
        lease = self.followers.get(follower)
        if lease is None or not lease.address or now >= self.asked + lease.left_s:
            return None
        return RemoteLeader(lease.term, lease.address, lease.secret)

    def live(self, now: float) -> dict[str, RemoteLeader]:
        """Return the followers that answer, by name."""
        return {name: way for name in sorted(self.followers) if (way := self.way(name, now)) is not None}

    def lost(self) -> list[str]:
        """Return followers that own jobs though their lease has expired by the database's clock."""
        owners = set(self.jobs.values())
        return sorted(name for name in owners if name not in self.followers or self.followers[name].left_s <= 0)


def owner_to_move_to(loads: Mapping[str, int]) -> str:
    """Return the follower to move a job to, or `LEADER` if the numbers of jobs are balanced."""
    to = owner_of_new_job(loads)
    return to if loads.get(to, 0) + 1 < loads.get(LEADER, 0) else LEADER


def owner_of_new_job(loads: Mapping[str, int]) -> str:
    """Return the owner of a new job: the one with the fewest active jobs; on a tie the leader, then the first by
    name."""
    return min(loads, key=lambda name: (loads[name], name), default=LEADER)
