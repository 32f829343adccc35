"""Prometheus metrics that are counted at their events. Present values are read on request
(`shoal_coordinator.api.routes.health`).

One `Metrics` for a process, whichever coordinators it holds one after the other. Any thread may count. No label is a
node's name, and each label has a bounded number of values: routes are templates, reasons are codes of `ShoalError`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from shoal import __version__
from shoal.core.errors import ShoalError
from shoal.core.protocol.machine import ModelVersion
from shoal.core.protocol.message import Report
from shoal.runtime.observability import tracing
from shoal.wire.codec import PROTOCOLS
from shoal_coordinator.storage.crashpoints import crashpoint

R = TypeVar("R")

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the lines

REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
ROUND_S = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
WORK_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Upper bounds of buckets, in seconds."""

OTHER = "other"
"""The route of a request that no route of the API answered: the dashboard's files, unknown paths."""

FORWARDED = "forwarded"
"""The route of a request that another coordinator answered."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


class Metrics:
    """Counters and histograms in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        build = Gauge("shoal_build_info", "1; its labels name the release", ["version", "protocol"], registry=registry)
        build.labels(__version__, str(PROTOCOLS[-1])).set(1)
        self._requests = Histogram(
            "shoal_http_request_duration_seconds",
            "From the first byte of a request to the last of its answer; polls and streams are held open on purpose",
            ["method", "route"],
            buckets=REQUEST_S,
            registry=registry,
        )
        self._responses = Counter("shoal_http_responses", "Answers by HTTP status", ["status"], registry=registry)
        self.connections = Gauge("shoal_connections", "Connections that are open", registry=registry)
        self.connections_max = Gauge(
            "shoal_connections_max", "Connections at once; more are refused", registry=registry
        )
        self.connections_refused = Counter(
            "shoal_connections_refused", "Connections refused because too many were open", registry=registry
        )
        self._reports = Counter("shoal_reports", "Reports that counted", ["job_name"], registry=registry)
        self._refused = Counter(
            "shoal_reports_refused", "Reports, and uploads for them, that did not count", ["reason"], registry=registry
        )
        self._rounds = Histogram(
            "shoal_round_duration_seconds",
            "From the opening of a round to its new version",
            ["job_name"],
            buckets=ROUND_S,
            registry=registry,
        )
        self._folds = Histogram(
            "shoal_fold_duration_seconds",
            "Folding one report into its round; with the last of a round, closing it too",
            buckets=WORK_S,
            registry=registry,
        )
        self.commits = Histogram(
            "shoal_commit_duration_seconds", "One transaction of the database", buckets=WORK_S, registry=registry
        )
        self._fsyncs = Histogram(
            "shoal_fsync_duration_seconds", "Making one file durable", buckets=WORK_S, registry=registry
        )
        self._observe: dict[tuple[str, str], Any] = {}
        self._count: dict[int, Any] = {}
        self._written = threading.local()

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer to a request on a route's template."""
        key = (method if method in METHODS else OTHER, route)
        if key not in self._observe:
            self._observe[key] = self._requests.labels(*key).observe
        if status not in self._count:
            self._count[status] = self._responses.labels(str(status)).inc
        self._observe[key](seconds)
        self._count[status]()

    def counted(self, job: str) -> None:
        """Count a report that counts."""
        self._reports.labels(job).inc()

    def refused(self, reason: str) -> None:
        """Count a report that does not, by a code."""
        self._refused.labels(reason).inc()

    @contextmanager
    def counting_refusals(self) -> Iterator[None]:
        """Count as refused what raises a `ShoalError`, by its code."""
        try:
            yield
        except ShoalError as error:
            self.refused(error.code)
            raise

    def closed(self, job: str, versions: list[ModelVersion], began_ns: int) -> list[ModelVersion]:
        """Count the rounds that made these versions, which are written down since then."""
        for version in (version for version in versions if version.number):  # no round has made the initial model
            self._rounds.labels(job).observe(version.closed_s - version.opened_s)
            tracing.current.close(job, version.number, version.closed_s - version.opened_s, began_ns)
        return versions

    def fold(self, job: str, report: Report, work: Callable[[], R]) -> R:
        """Run `work` on one report, and record how long it takes."""
        received = tracing.current.recall_parent((job, report.node, report.task))
        with tracing.current.span("fold", received), self._folds.time():
            return work()

    def step(self, point: str) -> None:
        """Measure fsyncs by the steps of durable writes (`shoal.runtime.durable_files.STEPS`), called in the thread
        that does them, and pass each on to the crash points."""
        if point.endswith(".written"):
            self._written.at = time.perf_counter()
        elif point.endswith(".synced"):
            self._fsyncs.observe(time.perf_counter() - self._written.at)
        crashpoint(point)


def route_of(scope: Mapping[str, Any]) -> str:
    """Return the template of the route that answered a request."""
    known: str | None = scope.get(ROUTE_KEY)
    if known is not None:
        return known
    found: str = getattr(scope.get("route"), "path", "")
    return OTHER if not found or found == CATCH_ALL else found


ROUTE_KEY = "shoal.route"
"""Key of a request's scope for the template of a route that bypassed the framework."""

CATCH_ALL = "/{path:path}"
