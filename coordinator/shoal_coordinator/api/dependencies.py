"""Parts of the coordinator that routes depend on.

This is the only module of the API that knows the class `Coordinator`. Dependencies are coroutines although they wait
for nothing: FastAPI runs a plain function in a thread of its pool, which costs more.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any

from fastapi import Depends, Request

from shoal_coordinator.analytics.run_comparison import RunComparer
from shoal_coordinator.analytics.run_export import RunExport
from shoal_coordinator.cluster.event_relay import EventRelay
from shoal_coordinator.cluster.follower_jobs import FollowerJobs, FollowerSync
from shoal_coordinator.cluster.host import TelemetryFlusher
from shoal_coordinator.cluster.job_routes import JobRoutes
from shoal_coordinator.cluster.rpc import FollowerCalls
from shoal_coordinator.composition.coordinator import Coordinator
from shoal_coordinator.composition.job_lifecycle import JobLifecycle
from shoal_coordinator.jobs.job_blobs import JobBlobs
from shoal_coordinator.jobs.job_registry import JobRegistry
from shoal_coordinator.jobs.model_labels import ModelLabels
from shoal_coordinator.models.version_reader import VersionReader
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
from shoal_coordinator.presenters.job_presenter import JobPresenter
from shoal_coordinator.presenters.node_presenter import NodePresenter
from shoal_coordinator.schemas.replicas import ReplicaStatus
from shoal_coordinator.settings import Settings
from shoal_coordinator.split.split_registry import SplitRegistry
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry.event_bus import EventBus
from shoal_coordinator.telemetry.log_store import LogStore
from shoal_coordinator.telemetry.metrics import Metrics
from shoal_coordinator.telemetry.system_metrics import SystemMetrics
from shoal_coordinator.telemetry.traffic import TrafficCounter


def coordinator_of(request: Request) -> Coordinator:
    """Return the coordinator of this process."""
    found: Coordinator = request.app.state.coordinator
    return found


def _part(path: str) -> Any:
    find = attrgetter(path)

    async def part(request: Request) -> Any:
        return find(coordinator_of(request))

    return Depends(part)


Registry = Annotated[JobRegistry, _part("jobs")]
SplitJobs = Annotated[SplitRegistry, _part("jobs.split")]
Blobs = Annotated[JobBlobs, _part("blobs")]
Lifecycle = Annotated[JobLifecycle, _part("parts.lifecycle")]
Presenter = Annotated[JobPresenter, _part("parts.presenter")]
NodeViews = Annotated[NodePresenter, _part("parts.node_presenter")]
Db = Annotated[Database, _part("database")]
NodePresence = Annotated[Presence, _part("nodes.presence")]
KnownCredentials = Annotated[Credentials, _part("nodes.credentials")]
Registrar = Annotated[NodeRegistry, _part("parts.node_registry")]
Followers = Annotated[FollowerCalls, _part("cluster.followers")]
JobsOfFollowers = Annotated[FollowerJobs, _part("cluster.follower_jobs")]
Routes = Annotated[JobRoutes, _part("cluster.routes")]
FollowerEvents = Annotated[EventRelay, _part("cluster.event_relay")]
Syncs = Annotated[FollowerSync, _part("cluster.follower_sync")]
ByteCounts = Annotated[TrafficCounter, _part("telemetry.traffic")]
TelemetryWriter = Annotated[TelemetryFlusher, _part("parts.telemetry_writer")]
Events = Annotated[EventBus, _part("telemetry.event_bus")]
NodeLogs = Annotated[LogStore, _part("telemetry.log_store")]
Measured = Annotated[SystemMetrics, _part("telemetry.system_metrics")]
AppSettings = Annotated[Settings, _part("settings")]
AppMetrics = Annotated[Metrics, _part("telemetry.metrics")]
NodeWakeups = Annotated[Wakeups, _part("nodes.wakeups")]
Documents = Annotated[TrustDocuments, _part("peers.trust_documents")]
Relays = Annotated[RelayAuth, _part("peers.relay_auth")]
Reenrolments = Annotated[RelayAuth, _part("peers.reenrolment_auth")]
Statuses = Annotated[PeerStatuses, _part("peers.statuses")]
Checkpoints = Annotated[SignedCheckpoints, _part("peers.signed_checkpoints")]
VersionRows = Annotated[VersionReader, _part("parts.version_reader")]
Labels = Annotated[ModelLabels, _part("parts.model_labels")]
Services = Annotated[NodeServices, _part("parts.node_services")]
Polls = Annotated[TaskPolls, _part("parts.task_polls")]
Exporter = Annotated[RunExport, _part("parts.run_export")]
Comparer = Annotated[RunComparer, _part("parts.run_comparison")]
Shedding = Annotated[LoadShedding, _part("nodes.load_shedding")]
JobOwner = Annotated[str, _part("jobs.owner")]
IsReady = Annotated[bool, _part("ready")]
StartedAt = Annotated[float, _part("started_at")]
OperatorToken = Annotated[str, _part("operator_token")]
StatusOfReplica = Annotated[Callable[[], ReplicaStatus] | None, _part("replica_status")]
