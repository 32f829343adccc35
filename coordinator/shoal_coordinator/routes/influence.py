"""What each node has done to a job's model, and what the model does for each node."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from shoal_coordinator import influence
from shoal_coordinator.access import Coord, Reader, label
from shoal_coordinator.influence import Fairness, Influence
from shoal_coordinator.problems import errors

router = APIRouter(tags=["reports"], responses=errors(401, 403, 404))


@router.get("/jobs/{job}/influence")
async def influence_of(job: str, request: Request, _: Reader, coordinator: Coord) -> Influence:
    """Each node's share of the newest versions, how long its updates are beside the others', and what was refused."""
    label(request, kind="dashboard")
    record = coordinator.record(job)
    limited = record.driver.hub.limited if record.driver is not None else {}
    bounds = record.spec.limits.bounds()
    async with coordinator.database.reader.connect() as connection:
        looked_at, nodes = await influence.influence_of(connection, job)
    return Influence(
        job=job,
        versions=looked_at,
        norm_factor=bounds.norm_factor,
        share_max=bounds.share_max,
        nodes=[one.model_copy(update={"limited": limited.get(one.node, "")}) for one in nodes],
    )


@router.get("/jobs/{job}/fairness")
async def fairness_of(
    job: str,
    request: Request,
    _: Reader,
    coordinator: Coord,
    metric: Annotated[
        str, Query(pattern=r"^[a-z0-9_]+([./-][a-z0-9_]+){0,7}$", max_length=64, description="a metric of the reports")
    ] = "eval/accuracy",
) -> Fairness:
    """How a metric differs between nodes, by each node's last report: mean, spread, worst tenth, worst node."""
    label(request, kind="dashboard")
    coordinator.record(job)
    async with coordinator.database.reader.connect() as connection:
        return await influence.fairness_of(connection, job, metric)
