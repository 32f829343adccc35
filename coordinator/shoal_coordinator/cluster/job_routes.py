"""Routes from jobs to the followers that own them, at the leader."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shoal.core.cluster.job_assignment import LEADER, JobOwners
from shoal.core.cluster.leader_lease import RemoteLeader
from shoal_coordinator.storage.lease_store import clock

_IN_PROGRESS = float("inf")
"""Time of an assignment that is being made: no rows that are read meanwhile contradict it."""


class JobRoutes:
    """The owners of jobs: as their rows were read last, and as they have changed since."""

    def __init__(self) -> None:
        self._owners = JobOwners()
        self._assigning: dict[str, tuple[str, float]] = {}  # jobs that the rows did not name yet when they were read
        self._returning: set[str] = set()  # jobs that are the leader's again, and not yet restored

    @property
    def jobs(self) -> dict[str, str]:
        """Return the owners of followers' jobs, and `LEADER` for those that the leader is about to restore."""
        begun = {job: owner for job, (owner, _) in self._assigning.items()}
        return {**dict.fromkeys(self._returning, LEADER), **self._owners.jobs, **begun}

    def load(self, jobs: Mapping[str, str]) -> None:
        """Take these owners at the start; where they are is read later."""
        self._owners = JobOwners(jobs=jobs)

    def update(self, owners: JobOwners) -> set[str]:
        """Take the rows as they were read; return the jobs that the leader must restore."""
        before = self.jobs
        self._owners = owners
        self._assigning = {job: at for job, at in self._assigning.items() if at[1] >= owners.asked}
        self._returning |= before.keys() - self.jobs.keys()
        return self._returning

    def restored(self, job: str) -> None:
        """Note that the leader has restored a job."""
        self._returning.discard(job)

    def begin_assigning(self, job: str, owner: str) -> None:
        """Route a job to a follower that is about to become its owner."""
        self._assigning[job] = owner, _IN_PROGRESS

    def assigned(self, job: str, owner: str) -> None:
        """Note that the job's row names its owner from now on, or that rows read from now on decide."""
        self._assigning[job] = owner, clock()

    def withdraw(self, job: str) -> None:
        """Note that a job was not assigned."""
        self._assigning.pop(job, None)

    def owns(self, job: str) -> bool:
        """Return whether a follower owns a job, or has until a moment ago."""
        return job in self._owners.jobs or job in self._assigning or job in self._returning

    def route(self, job: str) -> RemoteLeader | None:
        """Return where a follower's job is answered for; None while nothing answers."""
        return self._owners.way(self.jobs.get(job, LEADER), clock())

    def live(self) -> dict[str, RemoteLeader]:
        """Return the followers that answer, by name."""
        return self._owners.live(clock())

    def loads(self, running: Collection[object]) -> dict[str, int]:
        """Return the number of running jobs of each coordinator. `running`: the leader's own."""
        owned = list(self.jobs.values())
        return {LEADER: len(running)} | {name: owned.count(name) for name in self.live()}

    def jobs_of(self, follower: str) -> list[str]:
        """Return the jobs of a follower, without those that are being assigned: it would start them twice."""
        unsure = {job for job, (_, since) in self._assigning.items() if since == _IN_PROGRESS}
        return [job for job, owner in self.jobs.items() if owner == follower and job not in unsure]
