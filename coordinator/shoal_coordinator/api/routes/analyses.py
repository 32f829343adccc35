"""Comparison and export of runs; influence of each node on a model, and the model's quality for each node."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse

from shoal_coordinator.analytics import influence, run_export
from shoal_coordinator.analytics.influence import Fairness, Influence
from shoal_coordinator.api.authentication import DashboardReader, Reader
from shoal_coordinator.api.dependencies import Comparer, Db, Exporter, Registry
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.http.problems import errors
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.schemas.comparisons import RunComparison

router = api_router(responses=errors(401, 403, 404))

RUNS_MAX = 100

Name = Annotated[str, Query(max_length=63)]


@router.get("/compare", tags=["jobs"])
async def compare_jobs(
    _: DashboardReader,
    comparing: Comparer,
    run: Annotated[list[Name], Query(min_length=1, max_length=RUNS_MAX, description="jobs; each counts once")],
    target: Annotated[
        float | None,
        Query(allow_inf_nan=False, description="value whose price is asked; default 0.98 of the worst run's best"),
    ] = None,
    points: Annotated[int, Query(ge=2, le=2000, description="maximum number of points of each line")] = 300,
) -> RunComparison:
    """Compare up to 100 jobs: series to plot, last and best values, and the cost of reaching the target."""
    return await comparing.compare(list(dict.fromkeys(run)), target, points)


LINES = "application/jsonl"


@router.get(
    "/jobs/{job}/export",
    tags=["jobs"],
    response_class=Response,
    responses={200: {"description": "JSON Lines, the last of them of the type end", "content": {LINES: {}}}},
)
async def export_job(
    job: str,
    request: Request,
    _: Reader,
    registry: Registry,
    exporter: Exporter,
    what: Annotated[list[run_export.What], Query(description="only lines of these types; none: all")] = [],  # noqa: B006
) -> Response:
    """Export a job as JSON Lines: the job, versions, traffic, reports, events and failures."""
    label(request, job, -1, "", "export")
    name = registry.job(job).spec.name
    wanted = tuple(dict.fromkeys(what)) or run_export.WHAT
    headers = {"content-disposition": f'attachment; filename="{name}.jsonl"', "cache-control": "no-store"}
    return StreamingResponse(exporter.lines(job, wanted), headers=headers, media_type=LINES)


@router.get("/jobs/{job}/influence", tags=["reports"])
async def show_influence(job: str, _: DashboardReader, registry: Registry, database: Db) -> Influence:
    """Return each node's share of the newest versions, its update norm relative to other nodes, and its refusals."""
    record = registry.job(job)
    limited = record.runner.hub.state.bounded_nodes if record.runner is not None else {}
    bounds = record.spec.limits.bounds()
    async with database.reader.connect() as connection:
        looked_at, nodes = await influence.influence_of(connection, job)
    return Influence(
        job=job,
        versions=looked_at,
        norm_factor=bounds.norm_factor,
        share_max=bounds.weight_fraction_max,
        nodes=[one.model_copy(update={"limited": limited.get(one.node, "")}) for one in nodes],
    )


@router.get("/jobs/{job}/fairness", tags=["reports"])
async def show_fairness(
    job: str,
    _: DashboardReader,
    registry: Registry,
    database: Db,
    metric: Annotated[
        str, Query(pattern=r"^[a-z0-9_]+([./-][a-z0-9_]+){0,7}$", max_length=64, description="a metric of the reports")
    ] = "eval/accuracy",
) -> Fairness:
    """Return the distribution of a metric over nodes, by each node's last report."""
    registry.job(job)
    async with database.reader.connect() as connection:
        return await influence.fairness_of(connection, job, metric)
