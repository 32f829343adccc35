"""Runs over each other."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from shoal_coordinator.access import Coord, Reader, label
from shoal_coordinator.compare_views import Comparison
from shoal_coordinator.comparing import Comparing
from shoal_coordinator.problems import errors

router = APIRouter(tags=["jobs"], responses=errors(401, 403, 404))

RUNS_MAX = 100

Name = Annotated[str, Query(max_length=63)]


@router.get("/compare")
async def compare(
    request: Request,
    _: Reader,
    coordinator: Coord,
    run: Annotated[list[Name], Query(min_length=1, max_length=RUNS_MAX, description="jobs; each counts once")],
    target: Annotated[
        float | None,
        Query(allow_inf_nan=False, description="value whose price is asked; default 0.98 of the worst run's best"),
    ] = None,
    points: Annotated[int, Query(ge=2, le=2000, description="thin each line to so many")] = 300,
) -> Comparison:
    """Up to a hundred jobs in one answer: lines to draw, last and best values, and what the target has cost."""
    label(request, kind="dashboard")
    comparing: Comparing = request.app.state.comparing
    return await comparing.compare(coordinator, list(dict.fromkeys(run)), target, points)
