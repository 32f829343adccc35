"""The view of one node: the jobs that it worked in, and its connection history."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select

from shoal_coordinator.jobs.job_registry import JobRegistry
from shoal_coordinator.nodes.presence import Presence
from shoal_coordinator.presenters.job_presenter import JobPresenter
from shoal_coordinator.schemas.nodes import NodeDetail, NodeEvent, NodeJob
from shoal_coordinator.schemas.values import iso
from shoal_coordinator.storage.tables import job_events, reports
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry.traffic import TrafficCounter

HISTORY = 200
"""Newest connection events that are shown."""


class NodePresenter:
    """The view of one node: the jobs that it worked in, and its connection history."""

    def __init__(
        self,
        database: Database,
        registry: JobRegistry,
        presenter: JobPresenter,
        presence: Presence,
        traffic: TrafficCounter,
    ) -> None:
        self._database, self._registry, self._presenter = database, registry, presenter
        self._presence, self._traffic = presence, traffic

    async def detail(self, node: str) -> NodeDetail:
        """Return the view of a known node."""
        counted = select(reports.c.job, func.count(), func.max(reports.c.at)).where(reports.c.node == node)
        own_events = select(job_events).where(
            job_events.c.topic == "job_event",
            job_events.c.data["kind"].as_string() == "node",
            job_events.c.data["node"].as_string() == node,
        )
        async with self._database.reader.connect() as connection:
            known = {job: (n, at) for job, n, at in await connection.execute(counted.group_by(reports.c.job))}
            events = (await connection.execute(own_events.order_by(job_events.c.id.desc()).limit(HISTORY))).all()
        jobs = sorted(known.keys() | self._members(node), key=self._newest_first())
        return NodeDetail(
            **self._presenter.node(node).model_dump(),
            parts=[self._part(job, node, *known.get(job, (0, None))) for job in jobs],
            history=[NodeEvent(id=row.id, at=iso(row.at), job=row.job, **row.data) for row in events],
        )

    def _members(self, node: str) -> set[str]:
        """Return the jobs whose rosters name the node."""
        return {runner.name for runner in self._registry.runners() if runner.hub.roster.get(node) is not None}

    def _newest_first(self) -> Any:
        return lambda job: -self._registry.records[job].created_at if job in self._registry.records else 0.0

    def _part(self, job: str, node: str, count: int, at: float | None) -> NodeJob:
        record = self._registry.records.get(job)
        member = record.runner.hub.roster.get(node) if record is not None and record.runner is not None else None
        activity, bytes_of_node = self._presence.activity.get((job, node)), self._traffic.of_node
        is_present = member is not None and member.is_present and record is not None and record.ended_at is None
        excluded_text = ""
        if is_present and member is not None and record is not None and record.runner is not None:
            excluded_text = record.runner.hub.settings.plan.selection.describe_exclusion(member.candidate)
        return NodeJob(
            job=job,
            is_present=is_present and not excluded_text,
            excluded_text=excluded_text,
            reports=count,
            reported_at=iso(at),
            up_bytes=bytes_of_node.get((job, node, "up"), 0),
            down_bytes=bytes_of_node.get((job, node, "down"), 0),
            failures=activity.failures if activity is not None else 0,
        )
