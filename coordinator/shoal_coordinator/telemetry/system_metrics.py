"""System metrics of nodes, kept for a day or so, for people; nothing depends on them.

take ─ a bounded list ─ flush, once a second, in one transaction ─ the table, thinned and bounded by age
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field
from sqlalchemy import Connection, delete, func, select

from shoal_coordinator.storage.dialects import insert
from shoal_coordinator.storage.tables import system_metrics

WAITING_MAX = 20_000
"""Samples of all nodes that may wait for the disk."""

LEAST_S = 5.0
"""A node's samples that come faster than that are dropped."""

CLEAR_S = 600.0
"""Seconds between two deletions of old samples."""

FULL_S, PART_S = 3600.0, 300.0
"""Samples older than `FULL_S` are thinned to the first one per node and `PART_S` seconds."""

Share = Annotated[float | None, Field(None, ge=0, le=1)]
Amount = Annotated[float | None, Field(None, ge=0, le=1e18)]


class SystemMetricsSample(BaseModel, extra="forbid"):
    """A node's machine at a moment; null: it has no such part, or cannot tell."""

    cpu: Share = Field(None, description="share of all cores that was busy since the sample before")
    memory_bytes: Amount = Field(None, description="in use")
    memory_total_bytes: Amount
    process_bytes: Amount = Field(None, description="memory of the node's own processes")
    gpu: Share = Field(None, description="share of time that the node's GPU was busy")
    gpu_memory_bytes: Amount = Field(None, description="in use, of the node's GPU")
    gpu_memory_total_bytes: Amount
    sent_bytes_per_s: Amount = Field(None, description="through all network interfaces but loopback")
    received_bytes_per_s: Amount
    disk_free_bytes: Amount = Field(None, description="where the node keeps its state")
    battery: Share = Field(None, description="how full it is")
    charging: bool | None = None


FIELDS = tuple(SystemMetricsSample.model_fields)


class SystemMetrics:
    """Samples between a request and the disk. `kept_s`: seconds for which they are kept."""

    def __init__(self, kept_s: float, clock: Callable[[], float] = time.time) -> None:
        self._kept_s, self._clock = kept_s, clock
        self._thinned = (clock() - kept_s) // PART_S * PART_S  # samples before that time are thinned, or too old
        self._waiting: list[dict[str, Any]] = []
        self._last: dict[str, float] = {}
        self._cleared = 0.0

    def take(self, node: str, sample: SystemMetricsSample) -> None:
        """Take a node's sample, unless it sends too many or the disk does not keep up."""
        now = self._clock()
        if now - self._last.get(node, 0.0) < LEAST_S or len(self._waiting) >= WAITING_MAX:
            return
        self._last[node] = now
        self._waiting.append({"node": node, "at": now, **sample.model_dump()})

    def forget(self, node: str) -> None:
        """Forget a removed node."""
        self._last.pop(node, None)

    def gather(self) -> list[dict[str, Any]]:
        """Return what waits to be written."""
        found, self._waiting = self._waiting, []
        return found

    def write(self, connection: Connection, rows: list[dict[str, Any]]) -> None:
        """Write samples down; delete those that are too old, and thin those of one part of the time."""
        if rows:
            connection.execute(insert(system_metrics).on_conflict_do_nothing(), rows)
        now = self._clock()
        if now - self._cleared > CLEAR_S:
            self._cleared = now
            connection.execute(delete(system_metrics).where(system_metrics.c.at < now - self._kept_s))
        if self._thinned + PART_S <= now - FULL_S:
            connection.execute(_thinning(self._thinned))
            self._thinned += PART_S


def _thinning(since: float) -> Any:
    """Return the statement that deletes all but each node's first sample of the part that begins then."""
    table, others = system_metrics, system_metrics.alias()
    first = select(func.min(others.c.at)).where(others.c.node == table.c.node, others.c.at >= since)
    later = table.c.at > first.correlate(table).scalar_subquery()
    return delete(table).where(table.c.at >= since, table.c.at < since + PART_S, later)


def recent(node: str, since: float) -> Any:
    """Return the query for a node's samples after that time (seconds since 1970), oldest first."""
    table = system_metrics
    return select(table).where(table.c.node == node, table.c.at > since).order_by(table.c.at)


def thinned(rows: Iterable[Mapping[str, Any]], since: float, until: float, points: int) -> dict[str, list[Any]]:
    """Return at most `points` samples, each the mean of its part of the time; `at`: the part's last."""
    width = max((until - since) / points, 1e-9)
    parts: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        parts.setdefault(int((row["at"] - since) / width), []).append(row)
    found: dict[str, list[Any]] = {name: [] for name in ("at", *FIELDS)}
    for _, part in sorted(parts.items()):
        found["at"].append(part[-1]["at"])
        for name in FIELDS:
            found[name].append(part[-1][name] if name == "charging" else _mean(row[name] for row in part))
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
