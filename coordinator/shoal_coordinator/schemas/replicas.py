"""The status of one coordinator among several, and its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


@dataclass(frozen=True)
class ReplicaStatus:
    """The role, the address and the counters of a coordinator."""

    role: Literal["leader", "follower", "standby"]
    name: str
    address: str
    term: int
    leader: str
    takeovers: int
    forwards: int
    failures: int
    jobs: int
    followers: dict[str, int]
    """Number of jobs that each reachable follower owns, by address."""


class ReplicaCollector:
    """A Prometheus collector of that status."""

    def __init__(self, status: Callable[[], ReplicaStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        now = self._status()
        yield GaugeMetricFamily("shoal_replica_leader", "1 for the leader", now.role == "leader")
        yield GaugeMetricFamily("shoal_replica_term", "Number of the lease; grows with each new leader", now.term)
        yield GaugeMetricFamily("shoal_replica_jobs", "Running jobs that this coordinator owns", now.jobs)
        yield CounterMetricFamily(
            "shoal_replica_takeovers", "Times that this coordinator became the leader", now.takeovers
        )
        yield CounterMetricFamily("shoal_replica_forwards", "Requests forwarded to another coordinator", now.forwards)
        yield CounterMetricFamily(
            "shoal_replica_forward_failures", "Forwarded requests without an answer", now.failures
        )
