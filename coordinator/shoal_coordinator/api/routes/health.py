"""For machines that watch: alive, ready, metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from shoal.core.errors import StorageFailed
from shoal.runtime.durable_files import free_bytes
from shoal_coordinator.api.authentication import Reader
from shoal_coordinator.api.dependencies import (
    Blobs,
    ByteCounts,
    JobOwner,
    Services,
    Shedding,
    StatusOfReplica,
    coordinator_of,
)
from shoal_coordinator.api.routers import operation_id
from shoal_coordinator.http.problems import EVERYWHERE, errors, problem
from shoal_coordinator.jobs.job_blobs import JobBlobs
from shoal_coordinator.jobs.job_registry import JobRegistry
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.node_protocol.node_request import NodeServices
from shoal_coordinator.nodes.load_shedding import LoadShedding
from shoal_coordinator.schemas.replicas import ReplicaCollector
from shoal_coordinator.settings import Settings
from shoal_coordinator.telemetry.traffic import TrafficCounter
from shoal_coordinator.updates.uploads import Uploads

router = APIRouter(tags=["health"], responses=EVERYWHERE, generate_unique_id_function=operation_id)
METRICS = CONTENT_TYPE_LATEST.partition(";")[0]


@router.get("/healthz")
async def check_health(request: Request) -> dict[str, str]:
    """Answer if the process runs."""
    label(request, kind="health")
    return {"status": "ok"}


@router.get("/readyz", responses=errors(503))
async def check_readiness(request: Request) -> Response:
    """Answer 200 if all jobs are restored, their last writes succeeded, and the disk has space."""
    label(request, kind="health")
    coordinator = coordinator_of(request)
    trouble = _trouble(coordinator.jobs, coordinator.blobs, coordinator.settings, is_ready=coordinator.ready)
    if trouble:
        return problem(503, "; ".join(trouble), "not-ready", "see the coordinator's log", "/readyz")
    return Response('{"status":"ready"}', media_type="application/json")


def _trouble(registry: JobRegistry, blobs: JobBlobs, settings: Settings, *, is_ready: bool) -> list[str]:
    """Return the reasons why the coordinator is not ready, each as a sentence."""
    found = [] if is_ready else ["still starting, or stopping"]
    found += [f"{runner.name}: {runner.gate.trouble}" for runner in registry.runners() if runner.gate.trouble]
    try:
        Uploads(blobs.starts, settings).check_room(0)
    except StorageFailed as error:
        return [*found, f"nothing more is accepted: {error.message}"]
    for runner in registry.runners():
        model = runner.hub.store.model
        lacking = "" if runner.gate.has_ended else runner.uploads.shortage(model.nbytes if model is not None else 0)
        found += [f"{runner.name}: no update is accepted: {lacking}"] if lacking else []
    return found


class _Collector:
    """Numbers taken when they are asked for. No label holds a node's name: there may be thousands."""

    def __init__(
        self, services: NodeServices, owner: str, traffic: TrafficCounter, load_shedding: LoadShedding, blobs: JobBlobs
    ) -> None:
        self._services, self._owner, self._traffic = services, owner, traffic
        self._load_shedding, self._blobs = load_shedding, blobs

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        if not self._owner:  # else the leader tells it
            yield from self._of_all()
        yield from self._of_jobs()
        burden = self._load_shedding.estimate()
        yield GaugeMetricFamily("shoal_load", "Processor time that it takes, in cores, at most 1", burden.load)
        yield GaugeMetricFamily(
            "shoal_poll_spread_seconds", "Time over which polls of nodes are spread; 0: they are not", burden.window_s
        )
        pauses = self._load_shedding.pauses_asked
        yield CounterMetricFamily("shoal_poll_backoff", "Answers that asked a node to pause", pauses)
        with suppress(StorageFailed):  # a disk that cannot be asked: /readyz says so
            free = free_bytes(self._blobs.starts.folder)
            yield GaugeMetricFamily("shoal_disk_free_bytes", "Space left for models and updates", free)

    def _of_jobs(self) -> Iterator[Metric]:
        version = GaugeMetricFamily("shoal_job_version", "Newest version of a job's model", labels=["job_name"])
        members = GaugeMetricFamily("shoal_job_nodes", "Members that give signs of life", labels=["job_name"])
        busy = GaugeMetricFamily("shoal_job_nodes_busy", "Of these, members that have a task", labels=["job_name"])
        running = GaugeMetricFamily("shoal_job_running", "1 unless a job has ended or is paused", labels=["job_name"])
        trouble = GaugeMetricFamily("shoal_job_degraded", "1 while a job cannot be written", labels=["job_name"])
        for runner in self._services.jobs.runners():
            roster = runner.hub.roster
            version.add_metric([runner.name], runner.hub.progress.version)
            members.add_metric([runner.name], len(roster.present_members()))
            busy.add_metric([runner.name], roster.busy_count())
            trouble.add_metric([runner.name], int(bool(runner.gate.trouble)))
            running.add_metric([runner.name], int(not runner.gate.has_ended and runner.hub.progress.paused_at is None))
        yield from (version, members, busy, running, trouble)

    def _of_all(self) -> Iterator[Metric]:
        nodes = GaugeMetricFamily("shoal_nodes", "Nodes by state", labels=["state"])
        for state, count in self._services.presence.states().items():
            nodes.add_metric([state], count)
        wire = CounterMetricFamily("shoal_wire_bytes", "Bytes on the wire", labels=["job_name", "direction"])
        for (job, direction), count in sorted(self._traffic.totals.items()):
            wire.add_metric([job, direction], count)
        yield from (nodes, wire)


@router.get("/metrics", response_class=Response, responses={200: {"content": {METRICS: {}}}, **errors(401, 403)})
async def show_metrics(
    request: Request,
    _: Reader,
    services: Services,
    owner: JobOwner,
    byte_counts: ByteCounts,
    load_shedding: Shedding,
    job_blobs: Blobs,
    replica_status: StatusOfReplica,
) -> Response:
    """Return the metrics in Prometheus' text format."""
    label(request, kind="health")
    registry = CollectorRegistry()
    registry.register(_Collector(services, owner, byte_counts, load_shedding, job_blobs))
    if replica_status is not None:
        registry.register(ReplicaCollector(replica_status))
    told = generate_latest(services.metrics.registry) + generate_latest(registry)
    return Response(told, media_type=CONTENT_TYPE_LATEST)
