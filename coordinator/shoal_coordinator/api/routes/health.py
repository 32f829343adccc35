"""For machines that watch: alive, ready, metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from shoal.core.errors import StorageFailed
from shoal_coordinator.access import Coord, Reader, coordinator_of, label
from shoal_coordinator.problems import errors, problem
from shoal_coordinator.replica_views import Collector
from shoal_coordinator.service import Coordinator
from shoal_coordinator.uploads import Uploads

router = APIRouter(tags=["health"])
METRICS = CONTENT_TYPE_LATEST.partition(";")[0]


@router.get("/healthz")
async def healthz(request: Request) -> dict[str, str]:
    """The process answers."""
    label(request, kind="health")
    return {"status": "ok"}


@router.get("/readyz", responses=errors(503))
async def readyz(request: Request) -> Response:
    """Every job is restored, the last write of each succeeded, and the disk has room for what nodes send."""
    label(request, kind="health")
    trouble = _trouble(coordinator_of(request))
    if trouble:
        return problem(503, "; ".join(trouble), "not-ready", "see the coordinator's log", "/readyz")
    return Response('{"status":"ready"}', media_type="application/json")


def _trouble(coordinator: Coordinator) -> list[str]:
    """What keeps the coordinator from its work, each in a sentence."""
    found = [] if coordinator.ready else ["still starting, or stopping"]
    found += [f"{driver.name}: {driver.trouble}" for driver in coordinator.drivers() if driver.trouble]
    try:
        Uploads(coordinator.starts, coordinator.settings).room_for(0)
    except StorageFailed as error:
        return [*found, f"nothing more is accepted: {error.message}"]
    for driver in coordinator.drivers():
        model = driver.hub.model
        lacking = "" if driver.ended else driver.uploads.lacks_room(model.nbytes if model is not None else 0)
        found += [f"{driver.name}: no update is accepted: {lacking}"] if lacking else []
    return found


class _Collector:
    """Numbers taken when they are asked for. No label holds a node's name: there may be thousands."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def collect(self) -> Iterator[Metric]:
        """Yield what Prometheus reads."""
        coordinator = self._coordinator
        if not coordinator.owner:  # else the lead tells it
            yield from self._of_all()
        yield from self._of_jobs()
        burden = coordinator.steering.burden()
        yield GaugeMetricFamily("shoal_load", "Processor time that it takes, in cores, at most 1", burden.load)
        yield GaugeMetricFamily(
            "shoal_poll_spread_seconds", "Time over which polls of nodes are spread; 0: they are not", burden.window_s
        )
        pauses = coordinator.steering.pauses
        yield CounterMetricFamily("shoal_poll_backoff", "Answers that asked a node to pause", pauses)
        with suppress(StorageFailed):  # a disk that cannot be asked: /readyz says so
            free = coordinator.starts.free_bytes()
            yield GaugeMetricFamily("shoal_disk_free_bytes", "Space left for models and updates", free)

    def _of_jobs(self) -> Iterator[Metric]:
        version = GaugeMetricFamily("shoal_job_version", "Newest version of a job's model", labels=["job_name"])
        members = GaugeMetricFamily("shoal_job_nodes", "Members that give signs of life", labels=["job_name"])
        busy = GaugeMetricFamily("shoal_job_nodes_busy", "Of these, members that have an order", labels=["job_name"])
        running = GaugeMetricFamily("shoal_job_running", "1 unless a job has ended or is paused", labels=["job_name"])
        trouble = GaugeMetricFamily("shoal_job_degraded", "1 while a job cannot be written", labels=["job_name"])
        for driver in self._coordinator.drivers():
            roster = driver.hub.roster
            version.add_metric([driver.name], driver.hub.version)
            members.add_metric([driver.name], len(roster.here()))
            busy.add_metric([driver.name], roster.busy_count())
            trouble.add_metric([driver.name], int(bool(driver.trouble)))
            running.add_metric([driver.name], int(not driver.ended and driver.hub.paused_at is None))
        yield from (version, members, busy, running, trouble)

    def _of_all(self) -> Iterator[Metric]:
        nodes = GaugeMetricFamily("shoal_nodes", "Nodes by state", labels=["state"])
        for state, count in self._coordinator.presence.states().items():
            nodes.add_metric([state], count)
        wire = CounterMetricFamily("shoal_wire_bytes", "Bytes on the wire", labels=["job_name", "direction"])
        for (job, direction), count in sorted(self._coordinator.ledger.totals.items()):
            wire.add_metric([job, direction], count)
        yield from (nodes, wire)


@router.get("/metrics", response_class=Response, responses={200: {"content": {METRICS: {}}}, **errors(401, 403)})
async def metrics(request: Request, _: Reader, coordinator: Coord) -> Response:
    """Prometheus metrics."""
    label(request, kind="health")
    registry = CollectorRegistry()
    registry.register(_Collector(coordinator))
    if coordinator.standing is not None:
        registry.register(Collector(coordinator.standing))
    told = generate_latest(coordinator.metrics.registry) + generate_latest(registry)
    return Response(told, media_type=CONTENT_TYPE_LATEST)
