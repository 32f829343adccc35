"""What clients reported: as rows, by client and round, over all clients, and within one round."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from sqlalchemy import func, select

from shoal_coordinator import report_queries, report_views, timeline
from shoal_coordinator.access import Coord, Reader, label
from shoal_coordinator.problems import errors
from shoal_coordinator.report_queries import Wanted
from shoal_coordinator.tables import reports as table
from shoal_coordinator.tables import versions

router = APIRouter(tags=["reports"], responses=errors(401, 403, 404))

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
Points = Annotated[int, Query(ge=1, le=2000, description="thin to so many columns")]
After = Annotated[int, Query(ge=-1, lt=2**63, description="only what is newer than this: `next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=5000)]
NodeName = Annotated[str, Path(pattern=NAME)]


async def _wanted(
    job: str, coordinator: Coord, metric: Metric = "train/loss", since: Since = 0, points: Points = 1000
) -> Wanted:
    """Return what is to be drawn. Bytes of old rounds are added up, so they are drawn only of those kept one by one."""
    if metric in report_queries.BYTES:
        newest = select(func.max(versions.c.number)).where(versions.c.job == job)
        async with coordinator.database.reader.connect() as connection:
            last = (await connection.execute(newest)).scalar() or 0
        since = max(since, last - coordinator.settings.rounds_kept + 1)
    return Wanted(metric, since, points)


Drawn = Annotated[Wanted, Depends(_wanted)]


@router.get("/jobs/{job}/reports")
async def reports(
    job: str,
    request: Request,
    _: Reader,
    coordinator: Coord,
    node: Annotated[str | None, Query(pattern=NAME, description="only this client's")] = None,
    after: After = -1,
    limit: Limit = 500,
) -> report_views.Reports:
    """Reports that counted, oldest first."""
    label(request, kind="dashboard")
    coordinator.record(job)
    query = select(table).where(table.c.job == job, table.c.id > after).order_by(table.c.id).limit(limit + 1)
    if node is not None:
        query = query.where(table.c.node == node)
    async with coordinator.database.reader.connect() as connection:
        found = (await connection.execute(query)).all()
    rows = [report_queries.row_of(row) for row in found[:limit]]
    return report_views.Reports(reports=rows, next=rows[-1].id if len(found) > limit else None)


@router.get("/nodes/{node}/reports", responses=errors(404))
async def node_reports(
    node: NodeName,
    request: Request,
    _: Reader,
    coordinator: Coord,
    before: Annotated[int, Query(ge=0, lt=2**63, description="only older ones: `next` of the page before")] = 2**63 - 1,
    limit: Limit = 100,
) -> report_views.Reports:
    """A node's reports in all jobs, newest first."""
    label(request, kind="dashboard")
    query = select(table).where(table.c.node == node, table.c.id < before).order_by(table.c.id.desc()).limit(limit + 1)
    async with coordinator.database.reader.connect() as connection:
        found = (await connection.execute(query)).all()
    rows = [report_queries.row_of(row) for row in found[:limit]]
    return report_views.Reports(reports=rows, next=rows[-1].id if len(found) > limit else None)


@router.get("/jobs/{job}/heat")
async def heat(
    job: str,
    request: Request,
    _: Reader,
    coordinator: Coord,
    wanted: Drawn,
    after: Annotated[str, Query(max_length=63, description="only clients whose names come after this")] = "",
    limit: Annotated[int, Query(ge=1, le=500, description="clients")] = 200,
) -> report_views.Heat:
    """A quantity by client and round. A cell of which anything diverged is "NaN"; one without a report is null."""
    label(request, kind="dashboard")
    coordinator.record(job)
    await coordinator.books.write_counts()
    async with coordinator.database.reader.connect() as connection:
        return await report_queries.heat(connection, job, wanted, after, limit)


@router.get("/jobs/{job}/bands")
async def bands(
    job: str,
    request: Request,
    _: Reader,
    coordinator: Coord,
    wanted: Drawn,
) -> report_views.Bands:
    """A quantity over all clients, by round: its mean, and what 10 % and 90 % of them are below."""
    label(request, kind="dashboard")
    coordinator.record(job)
    async with coordinator.database.reader.connect() as connection:
        return await report_queries.bands(connection, job, wanted)


@router.get("/jobs/{job}/nodes/{node}/line")
async def line(
    job: str,
    node: NodeName,
    request: Request,
    _: Reader,
    coordinator: Coord,
    wanted: Drawn,
) -> report_views.Line:
    """A quantity of one client, by round."""
    label(request, kind="dashboard")
    coordinator.record(job)
    async with coordinator.database.reader.connect() as connection:
        return await report_queries.line(connection, job, node, wanted)


@router.get("/jobs/{job}/rounds/{number}")
async def one_round(
    job: str,
    number: Annotated[int, Path(ge=1, lt=2**53, description="the version that it makes")],
    request: Request,
    _: Reader,
    coordinator: Coord,
    after: After = -1,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> report_views.Round:
    """A round, client by client: how long each waited, downloaded, trained and uploaded, and its report was folded."""
    label(request, kind="dashboard")
    record = coordinator.record(job)
    async with coordinator.database.reader.connect() as connection:
        return await timeline.look(connection, record, number, after, limit)
