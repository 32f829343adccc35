"""Reports of nodes: rows, heat map, quantiles, series, and the timeline of a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Query
from sqlalchemy import func, select

from shoal_coordinator.analytics import report_queries, round_timeline
from shoal_coordinator.analytics.report_queries import ReportFilter
from shoal_coordinator.api.authentication import DashboardReader
from shoal_coordinator.api.dependencies import AppSettings, Db, Registry, TelemetryWriter
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.http.problems import errors
from shoal_coordinator.schemas.reports import Heatmap, NodeSeries, Quantiles, ReportList, RoundTimeline
from shoal_coordinator.storage.tables import reports as table
from shoal_coordinator.storage.tables import versions

router = api_router(tags=["reports"], responses=errors(401, 403, 404))

NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
Metric = Annotated[
    str,
    Query(
        pattern=r"^[a-z0-9_]+([./-][a-z0-9_]+){0,7}$",
        max_length=64,
        description="a metric of the reports, or what was measured of them: seconds, up_bytes, staleness, norm, …",
        examples=["train/loss"],
    ),
]
Since = Annotated[int, Query(ge=0, lt=2**53, description="only from this round on")]
Points = Annotated[int, Query(ge=1, le=2000, description="maximum number of columns")]
After = Annotated[int, Query(ge=-1, lt=2**63, description="only what is newer than this: `next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=5000)]
NodeName = Annotated[str, Path(pattern=NAME)]


async def _report_filter(
    job: str,
    registry: Registry,
    database: Db,
    settings: AppSettings,
    metric: Metric = "train/loss",
    since: Since = 0,
    points: Points = 1000,
) -> ReportFilter:
    """Return the filter. Bytes are limited to rounds that retention has not merged."""
    late = registry.job(job).spec.build_schedule().accepts_staleness(1)
    if metric in report_queries.BYTES:
        newest = select(func.max(versions.c.number)).where(versions.c.job == job)
        async with database.reader.connect() as connection:
            last = (await connection.execute(newest)).scalar() or 0
        since = max(since, last - settings.rounds_kept + 1)
    return ReportFilter(metric, since, points, late)


WantedReports = Annotated[ReportFilter, Depends(_report_filter)]


@router.get("/jobs/{job}/reports")
async def list_reports(
    job: str,
    _: DashboardReader,
    registry: Registry,
    database: Db,
    node: Annotated[str | None, Query(pattern=NAME, description="only this client's")] = None,
    after: After = -1,
    limit: Limit = 500,
) -> ReportList:
    """List accepted reports, oldest first."""
    registry.job(job)
    query = select(table).where(table.c.job == job, table.c.id > after).order_by(table.c.id).limit(limit + 1)
    if node is not None:
        query = query.where(table.c.node == node)
    async with database.reader.connect() as connection:
        found = (await connection.execute(query)).all()
    rows = [report_queries.report_row(row) for row in found[:limit]]
    return ReportList(reports=rows, next=rows[-1].id if len(found) > limit else None)


@router.get("/nodes/{node}/reports", responses=errors(404))
async def list_node_reports(
    node: NodeName,
    _: DashboardReader,
    database: Db,
    before: Annotated[int, Query(ge=0, lt=2**63, description="only older ones: `next` of the page before")] = 2**63 - 1,
    limit: Limit = 100,
) -> ReportList:
    """List a node's reports in all jobs, newest first."""
    query = select(table).where(table.c.node == node, table.c.id < before).order_by(table.c.id.desc()).limit(limit + 1)
    async with database.reader.connect() as connection:
        found = (await connection.execute(query)).all()
    rows = [report_queries.report_row(row) for row in found[:limit]]
    return ReportList(reports=rows, next=rows[-1].id if len(found) > limit else None)


@dataclass
class NodePage:
    """Query parameters of a page of nodes."""

    after: Annotated[str, Query(max_length=63, description="only clients whose names come after this")] = ""
    limit: Annotated[int, Query(ge=1, le=500, description="clients")] = 200


@router.get("/jobs/{job}/reports/heatmap")
async def show_heatmap(
    job: str,
    _: DashboardReader,
    database: Db,
    writer: TelemetryWriter,
    wanted: WantedReports,
    page: Annotated[NodePage, Depends()],
) -> Heatmap:
    """Return a metric by node and round. Cells are "NaN" if not finite, null without a report."""
    await writer.write_counts()
    async with database.reader.connect() as connection:
        return await report_queries.heatmap(connection, job, wanted, page.after, page.limit)


@router.get("/jobs/{job}/reports/quantiles")
async def show_quantiles(job: str, _: DashboardReader, database: Db, wanted: WantedReports) -> Quantiles:
    """Return mean, 10 % and 90 % quantiles of a metric over all nodes, by round."""
    async with database.reader.connect() as connection:
        return await report_queries.quantiles(connection, job, wanted)


@router.get("/jobs/{job}/nodes/{node}/reports/series")
async def show_node_series(
    job: str, node: NodeName, _: DashboardReader, database: Db, wanted: WantedReports
) -> NodeSeries:
    """Return a metric of one node, by round."""
    async with database.reader.connect() as connection:
        return await report_queries.series(connection, job, node, wanted)


@router.get("/jobs/{job}/rounds/{number}")
async def show_round(
    job: str,
    number: Annotated[int, Path(ge=1, lt=2**53, description="the version that it makes")],
    _: DashboardReader,
    registry: Registry,
    database: Db,
    after: After = -1,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> RoundTimeline:
    """Return the timeline of a round: each node's waiting, download, training, upload and fold."""
    record = registry.job(job)
    async with database.reader.connect() as connection:
        return await round_timeline.timeline(connection, record, number, after, limit)
