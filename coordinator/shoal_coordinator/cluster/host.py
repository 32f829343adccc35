"""The coordinator as its cluster sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlalchemy import Row

from shoal.core.cluster.job_assignment import JobOwners
from shoal_coordinator.cluster.job_routes import JobRoutes
from shoal_coordinator.jobs.job_registry import JobRegistry
from shoal_coordinator.node_protocol.fair_queue import FairQueue
from shoal_coordinator.nodes.credentials import Credentials
from shoal_coordinator.nodes.presence import Presence
from shoal_coordinator.nodes.wakeups import Wakeups
from shoal_coordinator.schemas.replicas import ReplicaStatus
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry.log_store import LogStore
from shoal_coordinator.telemetry.traffic import TrafficCounter


class TelemetryFlusher(Protocol):
    """The writer of byte counts and log lines."""

    async def write_counts(self) -> None:
        """Write the byte counts so far."""

    async def flush_logs(self) -> None:
        """Write the log lines so far."""


class OwnerUpdates(Protocol):
    """The assignment of jobs to followers."""

    async def update_owners(self, owners: JobOwners) -> None:
        """Take over jobs of followers that are gone."""


@dataclass
class ClusterParts:
    """The parts of a coordinator that its leader or follower uses. The root sets the last ones at the start."""

    settings: Settings
    operator_token: str
    jobs: JobRegistry
    presence: Presence
    credentials: Credentials
    wakeups: Wakeups
    fair_queue: FairQueue
    traffic: TrafficCounter
    log_store: LogStore
    database: Database = field(init=False)
    telemetry_writer: TelemetryFlusher = field(init=False)
    hand_over: Callable[[str, str], Awaitable[None]] = field(init=False)
    """Assigns a job of this coordinator to a follower."""
    restore_job: Callable[[Row[Any]], Awaitable[None]] = field(init=False)
    """Restores a job that another coordinator owned, from its row."""
    adopt_jobs: Callable[[set[str]], Awaitable[None]] = field(init=False)
    """Restores the jobs that the leader assigned to this follower."""

    @property
    def owner(self) -> str:
        """Return the name of this coordinator as a job owner; empty for the leader."""
        return self.jobs.owner


class KnownNodes(Protocol):
    """The nodes of a coordinator, for requests that another coordinator answers."""

    presence: Presence
    credentials: Credentials


class ClusterMembership(Protocol):
    """A coordinator among those of its database."""

    routes: JobRoutes

    @property
    def follower_jobs(self) -> OwnerUpdates:
        """Return the part that assigns jobs to followers."""
        ...


class ClusterHost(Protocol):
    """A coordinator as the replica starts and stops it."""

    settings: Settings
    database: Database
    jobs: JobRegistry
    on_lease_lost: Callable[[], None]
    replica_status: Callable[[], ReplicaStatus] | None

    @property
    def nodes(self) -> KnownNodes:
        """Return the nodes that it knows."""
        ...

    @property
    def cluster(self) -> ClusterMembership:
        """Return its place among the coordinators."""
        ...

    async def start(self) -> None:
        """Restore everything."""

    async def stop(self, *, keeps: bool = False) -> None:
        """Stop, and close the database."""

    def drain(self) -> None:
        """End open polls and streams."""
