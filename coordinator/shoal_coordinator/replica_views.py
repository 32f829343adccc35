"""What a coordinator among several tells of itself: to people, and to machines that watch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


@dataclass(frozen=True)
class Standing:
    """How things are with one of them."""

    role: Literal["lead", "deputy", "standby"]
    name: str
    address: str
    epoch: int
    owner: str
    takeovers: int
    forwards: int
    failures: int
    jobs: int
    deputies: dict[str, int]
    """How many jobs each of those that answer owns, by address."""


class Collector:
    """Its numbers, for Prometheus."""

    def __init__(self, standing: Callable[[], Standing]) -> None:
        self._standing = standing

    def collect(self) -> Iterator[Metric]:
        """What Prometheus reads."""
        now = self._standing()
        yield GaugeMetricFamily("shoal_replica_leader", "1 for the leader", now.role == "lead")
        yield GaugeMetricFamily("shoal_replica_epoch", "How often the leader has changed", now.epoch)
        yield GaugeMetricFamily("shoal_replica_jobs", "Jobs that it owns and that run", now.jobs)
        yield CounterMetricFamily("shoal_replica_takeovers", "How often this one has taken it", now.takeovers)
        yield CounterMetricFamily("shoal_replica_forwards", "Requests passed on to another", now.forwards)
        yield CounterMetricFamily("shoal_replica_forward_failures", "Those that it did not answer", now.failures)
