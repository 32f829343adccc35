"""The jobs of one coordinator, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import Refused, StorageFailed
from shoal.core.protocol.machine import HubEvent
from shoal.jobs.spec import JobSpec
from shoal_coordinator.jobs.hub_replay import JobStart
from shoal_coordinator.jobs.job_runner import JobRunner
from shoal_coordinator.split.split_registry import SplitRegistry


@dataclass
class JobRecord:
    """A job: live (with a runner), or ended (with the last view of it)."""

    spec: JobSpec
    created_at: float
    start: JobStart = field(default_factory=JobStart)
    runner: JobRunner | None = None
    ended_at: float | None = None
    summary: dict[str, Any] | None = None
    tags: tuple[str, ...] = ()
    labels: dict[str, dict[str, Any]] = field(default_factory=dict)


class JobRegistry:
    """The records of jobs that this coordinator runs, or that have ended.

    Args:
        owner: name of this coordinator as a job owner; empty for the leader.
        is_remote: returns whether another coordinator owns the job of that name.
    """

    def __init__(self, owner: str, is_remote: Callable[[str], bool]) -> None:
        self.owner, self._is_remote = owner, is_remote
        self.records: dict[str, JobRecord] = {}
        self.split = SplitRegistry()
        self._claimed: set[str] = set()

    def runners(self) -> list[JobRunner]:
        """Return the runners of all jobs that have one."""
        return [record.runner for record in self.records.values() if record.runner is not None]

    def running(self) -> list[JobRunner]:
        """Return the runners of jobs that have not ended, oldest first."""
        return [runner for runner in self.runners() if not runner.gate.has_ended]

    @property
    def has_recovered_jobs(self) -> bool:
        """Return whether another coordinator led one of the jobs before: nodes may know tasks unknown here."""
        return any(record.start.term for record in self.records.values())

    def has_job(self, name: str) -> bool:
        """Return whether a job of that name exists here or at another coordinator."""
        return name in self.records or self._is_remote(name)

    def has_handed_over(self, name: str) -> bool:
        """Return whether this is a follower, and the record of that job a copy of the leader's."""
        return bool(self.owner) and name in self.records and self.records[name].ended_at is not None

    def may_be_remote(self, name: str) -> bool:
        """Return whether another coordinator may have a job that is unknown here."""
        return name not in self.records and (bool(self.owner) or self._is_remote(name))

    def is_claimed(self, name: str) -> bool:
        """Return whether a job of that name is being created."""
        return name in self._claimed

    def job(self, name: str) -> JobRecord:
        """Return a job by name. Raises `Refused` (404) if it is unknown, and `StorageFailed` (503) while it moves."""
        record = self.records.get(name)
        if self.may_be_remote(name):  # sent here by the leader, or routed before the job left
            raise StorageFailed(f"job {name} is moving to this coordinator, or from it", hint="ask again in a moment")
        if record is None:
            known = ", ".join(sorted(self.records)[:5]) or "none yet"
            raise Refused(f"no job is called {name!r}", code="job.unknown", hint=f"jobs here: {known}")
        return record

    def runner(self, name: str) -> JobRunner:
        """Return the runner of a job. Raises `Refused` for a job that has ended."""
        record = self.job(name)
        if record.runner is None or record.runner.gate.has_ended:
            raise Refused(
                f"job {name} has ended",
                code="job.ended",
                hint="its model and metrics stay; start another with `shoal run`",
            )
        return record.runner

    @contextmanager
    def claim_name(self, name: str) -> Iterator[None]:
        """Reserve a name while its job is created. Raises `Refused` if it is taken.

        At a follower, a job that has ended takes no name: the leader has its record, and knows whether it was removed.
        """
        if name in self.split.names or (self.has_job(name) and not self.has_handed_over(name)) or name in self._claimed:
            raise Refused(
                f"a job called {name} exists",
                code="job.exists",
                hint='give the job another name = "…" in its file',
            )
        self._claimed.add(name)
        try:
            yield
        finally:
            self._claimed.discard(name)

    async def submit_all(self, event: HubEvent, only: set[str] | None = None) -> None:
        """Submit an event to all running jobs, or to `only` these. A job that is being restored is not waited for."""
        for runner in self.running():
            if only is not None and runner.name not in only:
                continue
            if runner.gate.is_restoring:
                runner.submit_nowait(event)
            else:
                await runner.submit(event)
