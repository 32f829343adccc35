"""The parts of a coordinator by subject, wired for the composition root and the dependencies of routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from shoal_coordinator.alerts.alert_loop import AlertLoop, AlertServices
from shoal_coordinator.analytics.run_comparison import RunComparer
from shoal_coordinator.analytics.run_export import RunExport
from shoal_coordinator.cluster import merge_views
from shoal_coordinator.cluster.event_relay import EventRelay
from shoal_coordinator.cluster.follower import Follower
from shoal_coordinator.cluster.follower_jobs import FollowerJobs, FollowerSync
from shoal_coordinator.cluster.follower_polls import FollowerPolls
from shoal_coordinator.cluster.host import ClusterParts, TelemetryFlusher
from shoal_coordinator.cluster.job_routes import JobRoutes
from shoal_coordinator.cluster.rpc import FollowerCalls, Rpc, node_identity
from shoal_coordinator.composition.job_lifecycle import JobLifecycle
from shoal_coordinator.jobs.job_blobs import JobBlobs
from shoal_coordinator.jobs.job_registry import JobRegistry
from shoal_coordinator.jobs.job_runner import JobServices
from shoal_coordinator.jobs.model_labels import ModelLabels
from shoal_coordinator.models.retention import Retention
from shoal_coordinator.models.version_reader import VersionReader
from shoal_coordinator.node_protocol.fair_queue import FairQueue
from shoal_coordinator.node_protocol.node_request import NodeServices
from shoal_coordinator.node_protocol.task_polls import TaskPolls
from shoal_coordinator.nodes.credentials import Credentials
from shoal_coordinator.nodes.load_shedding import LoadShedding
from shoal_coordinator.nodes.node_registry import NodeRegistry
from shoal_coordinator.nodes.presence import Presence
from shoal_coordinator.nodes.wakeups import Wakeups
from shoal_coordinator.peers.peer_status import PeerStatuses
from shoal_coordinator.peers.relay_auth import RelayAuth
from shoal_coordinator.peers.signed_checkpoints import SignedCheckpoints
from shoal_coordinator.peers.trust_documents import TrustDocuments
from shoal_coordinator.presenters.change_publisher import ChangePublisher
from shoal_coordinator.presenters.job_presenter import JobPresenter
from shoal_coordinator.presenters.node_presenter import NodePresenter
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.lease_store import LeaseHolder
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry.event_bus import EventBus
from shoal_coordinator.telemetry.log_store import LogStore
from shoal_coordinator.telemetry.metrics import Metrics
from shoal_coordinator.telemetry.system_metrics import SystemMetrics
from shoal_coordinator.telemetry.telemetry_writer import TelemetryWriter
from shoal_coordinator.telemetry.traffic import TrafficCounter
from shoal_coordinator.updates.pending_uploads import NodeByteLimit


class Telemetry:
    """The counts, measurements, logs and events of a coordinator, in memory."""

    def __init__(self, settings: Settings, traffic: TrafficCounter, metrics: Metrics) -> None:
        self.traffic, self.metrics = traffic, metrics
        self.event_bus, self.log_store = EventBus(), LogStore(settings)
        self.system_metrics = SystemMetrics(settings.system_metrics_retention_s)


class Nodes:
    """The nodes that a coordinator knows, in memory.

    Args:
        on_wakeup: called with the name of each node that is woken.
    """

    def __init__(self, settings: Settings, on_wakeup: Callable[[str], None] | None) -> None:
        self.credentials, self.wakeups, self.fair_queue = Credentials(), Wakeups(on_wakeup), FairQueue()
        self.presence = presence = Presence(settings.lease_s)
        self.load_shedding = LoadShedding(settings.checkins_per_s_max, lambda: len(presence.leases))


class Peers:
    """The nodes as peers: what they may prove, and what they report."""

    def __init__(self, settings: Settings, presence: Presence) -> None:
        self.trust_documents = TrustDocuments(settings.data, lambda job, node: presence.activity[job, node].weight)
        self.relay_auth, self.reenrolment_auth = RelayAuth(self.trust_documents), RelayAuth(self.trust_documents)
        self.statuses, self.signed_checkpoints = PeerStatuses(self.relay_auth.relayed_by), SignedCheckpoints()


class Cluster:
    """The coordinator among those of its database.

    Args:
        lease_holder: the lease under which it writes to a shared database; None: the database is its own.
        rpc: calls to the other coordinators.
    """

    def __init__(self, parts: ClusterParts, lease_holder: LeaseHolder | None, rpc: Rpc | None) -> None:
        self.parts, self.lease_holder, self.routes = parts, lease_holder, JobRoutes()
        self.followers, self.event_relay = FollowerCalls(rpc, self.routes.live), EventRelay(rpc, self.routes.route)
        self.follower_polls = FollowerPolls(self.routes, self.followers, parts.fair_queue, parts.wakeups)
        self.follower_jobs = FollowerJobs(parts, self.routes, self.followers, self.follower_polls, self.event_relay)
        self.follower_sync = FollowerSync(parts, self.routes, self.follower_polls)
        self.follower = Follower(parts, rpc) if parts.owner and rpc is not None else None

    def load_owners(self, jobs: Mapping[str, str]) -> None:
        """Take the owners of followers' jobs at the start."""
        self.routes.load(jobs)
        self.parts.traffic.share(jobs)

    async def notify_followers(self, path: str, values: Any, node: str = "") -> None:
        """Call a route of all followers, in the name of a node if one is given."""
        if node:
            await self.followers.call_all("POST", path, values, node_identity(node))
        else:
            await self.followers.call_all("POST", path, values)

    def hears_nodes(self) -> bool:
        """Return whether nodes' signs of life are known now."""
        return self.follower is None or self.follower.hears_leader


@dataclass(frozen=True)
class MemoryParts:
    """The parts that need no database."""

    settings: Settings
    telemetry: Telemetry
    nodes: Nodes
    peers: Peers
    cluster: Cluster
    registry: JobRegistry
    blobs: JobBlobs


class DatabaseParts:
    """The parts that use the database.

    Args:
        is_ready: returns False while the coordinator stops.
    """

    def __init__(self, parts: MemoryParts, database: Database, is_ready: Callable[[], bool]) -> None:
        settings, telemetry, nodes, peers = parts.settings, parts.telemetry, parts.nodes, parts.peers
        registry, cluster, traffic, event_bus = parts.registry, parts.cluster, telemetry.traffic, telemetry.event_bus
        flush = settings.traffic_flush_s
        own = TelemetryWriter(database, traffic, telemetry.log_store, telemetry.system_metrics, event_bus, flush)
        self.telemetry_writer: TelemetryFlusher = cluster.follower or own
        self.run_telemetry = (cluster.follower or own).run
        views = partial(merge_views.follower_jobs, cluster.routes, cluster.followers, cluster.parts)
        self.presenter = JobPresenter(
            database, registry, nodes.presence, traffic, peers.statuses, cluster.routes, views
        )
        self.node_presenter = NodePresenter(database, registry, self.presenter, nodes.presence, traffic)
        self.retention = Retention(database, settings, traffic)
        node_bytes = NodeByteLimit(settings.pending_uploads_bytes_max)
        services = JobServices(database, event_bus, settings, nodes.wakeups, node_bytes, telemetry.metrics)
        documents = peers.trust_documents
        self.lifecycle = JobLifecycle(
            registry, services, parts.blobs, self.retention, nodes.presence, documents, self.presenter
        )
        self.version_reader = VersionReader(database, partial(_wait_written, registry))
        self.model_labels = ModelLabels(registry, parts.blobs, self.version_reader, self.retention, database, event_bus)
        self.node_registry = NodeRegistry(
            database,
            nodes.credentials,
            nodes.presence,
            documents,
            nodes.wakeups,
            registry.submit_all,
            cluster.notify_followers,
            (nodes.fair_queue.forget, telemetry.system_metrics.forget),
        )
        self.node_registry.on_new_key = traffic.reset_marks
        metrics = telemetry.metrics
        self.node_services = NodeServices(
            registry, nodes.presence, nodes.wakeups, documents, database, event_bus, metrics, settings, is_ready
        )
        self.task_polls = TaskPolls(
            self.node_services,
            nodes.fair_queue,
            nodes.load_shedding,
            peers.relay_auth,
            cluster.follower_polls.fetch_response,
        )
        self.run_export = RunExport(database, registry, self.presenter, traffic, self.telemetry_writer)
        self.run_comparison = RunComparer(database, self.presenter, traffic)
        raises = partial(_raises_alerts, registry)
        alert_services = AlertServices(
            database, event_bus, nodes.presence, parts.blobs.starts, registry.running, raises
        )
        self.alert_loop = AlertLoop(settings, alert_services)
        self.change_publisher = ChangePublisher(
            self.presenter, registry, event_bus, traffic, documents, peers.statuses, peers.relay_auth
        )
        self.lifecycle.on_ended = self.alert_loop.publish_end
        self.lifecycle.flush = self.telemetry_writer.flush_logs, self.telemetry_writer.write_counts
        self.lifecycle.forget = traffic.forget, peers.statuses.forget, peers.signed_checkpoints.forget


async def _wait_written(registry: JobRegistry, job: str) -> bool:
    """Wait until a job's versions are written. Returns False if the job has ended."""
    runner = registry.job(job).runner
    if runner is not None:
        await runner.feed.wait_written()
    return runner is not None


def _raises_alerts(registry: JobRegistry, job: str) -> bool:
    """Return whether this coordinator raises alerts about a job, or about none (an empty name)."""
    return job in registry.records or (not job and not registry.owner)
