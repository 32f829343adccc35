"""For machines that watch: alive, ready, metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from shoal.core.errors import StorageFailed
from shoal_coordinator import merging
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

    def __init__(self, coordinator: Coordinator, states: list[str]) -> None:
        self._coordinator, self._states = coordinator, states

    def collect(self) -> Iterator[Metric]:
        """What Prometheus reads."""
        coordinator = self._coordinator
        if not coordinator.owner:  # else the lead tells it
            yield from self._of_all()
        version = GaugeMetricFamily("shoal_job_version", "Versions closed", labels=["job"])
        members = GaugeMetricFamily("shoal_job_nodes", "Members that give signs of life", labels=["job"])
        trouble = GaugeMetricFamily("shoal_job_trouble", "1 while a job cannot be written", labels=["job"])
        for driver in coordinator.drivers():
            version.add_metric([driver.name], driver.hub.version)
            members.add_metric([driver.name], len(driver.hub.roster.here()))
            trouble.add_metric([driver.name], int(bool(driver.trouble)))
        yield from (version, members, trouble)
        burden = coordinator.steering.burden()
        yield GaugeMetricFamily("shoal_load", "Processor time that it takes, in cores, at most 1", burden.load)
        yield GaugeMetricFamily("shoal_spread_seconds", "Time over which nodes are spread; 0: none", burden.window_s)
        yield CounterMetricFamily("shoal_pauses", "Answers that asked a node to pause", coordinator.steering.pauses)
        with suppress(StorageFailed):  # a disk that cannot be asked: /readyz says so
            yield GaugeMetricFamily("shoal_disk_free_bytes", "Space left for bodies", coordinator.starts.free_bytes())

    def _of_all(self) -> Iterator[Metric]:
        nodes = GaugeMetricFamily("shoal_nodes", "Nodes by state", labels=["state"])
        for state in ("online", "training", "stale", "gone"):
            nodes.add_metric([state], self._states.count(state))
        wire = CounterMetricFamily("shoal_wire_bytes", "Bytes on the wire", labels=["job", "direction"])
        for (job, direction), count in sorted(self._coordinator.ledger.totals.items()):
            wire.add_metric([job, direction], count)
        yield from (nodes, wire)


@router.get("/metrics", response_class=Response, responses={200: {"content": {METRICS: {}}}, **errors(401, 403)})
async def metrics(request: Request, _: Reader, coordinator: Coord) -> Response:
    """Prometheus metrics."""
    label(request, kind="health")
    nodes = [] if coordinator.owner else await merging.shown(coordinator, sorted(coordinator.presence.info))
    registry = CollectorRegistry()
    registry.register(_Collector(coordinator, [node.state for node in nodes]))
    if coordinator.standing is not None:
        registry.register(Collector(coordinator.standing))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
