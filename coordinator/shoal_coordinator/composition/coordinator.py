"""The composition root of the coordinator: builds every part, and starts and stops them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Row, select

from shoal.core.cluster.job_assignment import LEADER
from shoal.core.errors import StorageFailed
from shoal_coordinator.cluster.host import ClusterParts
from shoal_coordinator.cluster.rpc import Rpc
from shoal_coordinator.composition.housekeeping import Housekeeping, run_alerts
from shoal_coordinator.composition.parts import Cluster, DatabaseParts, MemoryParts, Nodes, Peers, Telemetry
from shoal_coordinator.jobs.job_blobs import JobBlobs
from shoal_coordinator.jobs.job_registry import JobRegistry
from shoal_coordinator.nodes import credentials
from shoal_coordinator.peers import shared_secrets
from shoal_coordinator.schemas.replicas import ReplicaStatus
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage import job_owners
from shoal_coordinator.storage.lease_store import LeaseHolder
from shoal_coordinator.storage.tables import jobs, nodes
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry.metrics import Metrics
from shoal_coordinator.telemetry.traffic import TrafficCounter

log = structlog.get_logger()


class Coordinator:
    """A coordinator: builds its parts, restores the jobs, and runs the background tasks.

    Call `start` before serving and `stop` after.

    Args:
        lease_holder: the lease under which it writes to a database that it shares; None: the database is its own.
        rpc: calls to the other coordinators of that database.
    """

    database: Database
    parts: DatabaseParts

    def __init__(
        self,
        settings: Settings,
        traffic: TrafficCounter,
        operator_token: str,
        lease_holder: LeaseHolder | None = None,
        rpc: Rpc | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """Build the parts that live in memory. `start` builds those that use the database."""
        self.settings, self.operator_token = settings, operator_token
        owner = lease_holder.owner if lease_holder is not None else LEADER
        self.telemetry = Telemetry(settings, traffic, metrics or Metrics())
        self.nodes = Nodes(settings, self._queue_wakeup if owner and rpc is not None else None)
        self.peers = Peers(settings, self.nodes.presence)
        self.jobs = JobRegistry(owner, self._is_remote)
        self.blobs = JobBlobs(settings, self.telemetry.metrics)
        shared = ClusterParts(
            settings,
            operator_token,
            self.jobs,
            self.nodes.presence,
            self.nodes.credentials,
            self.nodes.wakeups,
            self.nodes.fair_queue,
            traffic,
            self.telemetry.log_store,
        )
        self.cluster = Cluster(shared, lease_holder, rpc)
        self.ready = False
        self.on_lease_lost: Callable[[], None] = self.drain
        """Called when another coordinator has taken the database over."""
        self.replica_status: Callable[[], ReplicaStatus] | None = None
        """Returns the state of this coordinator among those of its database; None: it is alone."""
        self.started_at = time.time()
        self._tasks: list[asyncio.Task[None]] = []

    def _is_remote(self, job: str) -> bool:
        return self.cluster.routes.owns(job)

    def _queue_wakeup(self, node: str) -> None:
        if self.cluster.follower is not None:
            self.cluster.follower.queue_wakeup(node)

    def _build_parts(self) -> None:
        """Build the parts that use the database."""
        memory = MemoryParts(self.settings, self.telemetry, self.nodes, self.peers, self.cluster, self.jobs, self.blobs)
        self.parts = DatabaseParts(memory, self.database, lambda: self.ready)
        shared = self.cluster.parts
        shared.database, shared.telemetry_writer = self.database, self.parts.telemetry_writer
        shared.hand_over, shared.restore_job = self.parts.lifecycle.hand_over, self.restore_job
        shared.adopt_jobs = self.adopt_jobs

    async def start(self) -> None:
        """Open the database, restore every job, and start the background tasks. Undone if any of it fails."""
        self.database = await asyncio.to_thread(
            Database, self.settings.url, self.settings.data, self.cluster.lease_holder
        )
        self.database.committed = self.telemetry.metrics.commits.observe
        try:
            self._build_parts()
            await self._load()
        except BaseException:
            await self._stop_parts()
            raise
        housekeeping = Housekeeping(
            self.settings,
            self.jobs,
            self.parts.lifecycle,
            self.nodes.presence,
            self.nodes.load_shedding,
            self.peers.statuses,
            self.peers.trust_documents,
            self.database,
        )
        tick = housekeeping.run(
            self.cluster.hears_nodes, (self._sweep_blobs, self.parts.change_publisher.publish), self.on_lease_lost
        )
        background = {
            "tick": tick,
            "telemetry": self.parts.run_telemetry(),
            "alerts": run_alerts(self.parts.alert_loop),
        }
        if self.parts.alert_loop.webhook is not None:
            background["webhook"] = self.parts.alert_loop.webhook.run()
        self._tasks = [asyncio.create_task(work, name=name) for name, work in background.items()]
        self.ready = True
        log.info("ready", jobs=len(self.jobs.records), data=str(self.settings.data))

    async def _sweep_blobs(self) -> None:
        await self.parts.retention.sweep_periodically(
            [one.blob_use for one in self.jobs.runners()],
            self.cluster.routes.jobs,
            None if self.jobs.owner else self.blobs.starts,
        )

    async def _load(self) -> None:
        """Read what the database holds, and restore the jobs that are this coordinator's."""
        database = self.database
        await database.write(lambda c: self.nodes.credentials.load(c, self.operator_token))
        await database.write(self.telemetry.traffic.load)
        if self.cluster.lease_holder is not None:
            await self._share_secrets(self.cluster.lease_holder)
        await database.write(self.peers.trust_documents.load)
        for row in await database.write(lambda c: c.execute(select(nodes).where(~nodes.c.revoked)).all()):
            self.nodes.presence.load(row)
        rows = await database.write(lambda c: c.execute(select(jobs)).all())
        self.cluster.load_owners(
            {row.name: row.owner for row in rows if row.owner != self.jobs.owner and not self.jobs.owner}
        )
        for row in [row for row in rows if row.owner == self.jobs.owner]:
            await self.parts.lifecycle.restore_job(row)
        if not self.jobs.owner:
            await self.parts.retention.sweep_starts(self.blobs.starts)
        await self.jobs.split.start(self.settings, self.jobs.records, lambda node: self.nodes.wakeups[node].set())
        logging.getLogger().addHandler(self.telemetry.log_store.own)
        await database.write(self.parts.alert_loop.load)

    async def _share_secrets(self, holder: LeaseHolder) -> None:
        """Take over the secrets that all coordinators of a database share; the leader stores them."""
        await self.database.write(lambda c: shared_secrets.share_key(c, self.settings.data))
        if holder.is_leader:
            token = credentials.hash_secret(self.operator_token)
            await self.database.write(lambda c: shared_secrets.store_token(c, token))
            await self.database.write(lambda c: job_owners.absorb(c, holder.store.name))

    async def restore_job(self, row: Row[Any]) -> None:
        """Restore a job that another coordinator owned, with its alerts."""
        await self.parts.lifecycle.take_over(row)
        await self.database.write(self.parts.alert_loop.load)

    async def adopt_jobs(self, names: set[str]) -> None:
        """Restore the jobs that the leader assigned to this follower."""
        for row in await self.parts.lifecycle.assigned_rows(names):
            await self.restore_job(row)
            await self.database.write(partial(self.telemetry.traffic.reload, jobs={row.name}))
            for member in self.jobs.runner(row.name).hub.roster.present_members():
                self.nodes.wakeups[member.node].set()

    def drain(self) -> None:
        """End open polls and streams. Requests in hand are still answered."""
        self.ready = False
        self.telemetry.event_bus.end()
        self.nodes.wakeups.notify_all()

    async def stop(self, *, keeps: bool = False) -> None:
        """Finish requests in hand and write the last counts. `keeps`: hold the lease until it expires."""
        self.drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.parts.alert_loop.webhook is not None:
            self.parts.alert_loop.webhook.close()
        await self._stop_parts(keeps=keeps)

    async def _stop_parts(self, *, keeps: bool = False) -> None:
        for runner in self.jobs.runners():
            await runner.stop()
        await self.jobs.split.stop()
        self.parts.lifecycle.evaluator.stop()
        logging.getLogger().removeHandler(self.telemetry.log_store.own)
        if not self.database.fenced:  # else another coordinator counts now
            try:
                await self.parts.telemetry_writer.write_counts()
                await self.parts.telemetry_writer.flush_logs()
            except StorageFailed as error:
                log.error("the last byte counts and log lines were not written", error=repr(error))
        await self.database.close(keeps=keeps)
