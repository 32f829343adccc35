"""A run as a file."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from shoal_coordinator import run_lines
from shoal_coordinator.access import Coord, Reader, label
from shoal_coordinator.problems import errors

router = APIRouter(tags=["jobs"], responses=errors(401, 403, 404))

LINES = "application/jsonl"


@router.get(
    "/jobs/{job}/export",
    response_class=Response,
    responses={200: {"description": "JSON Lines, the last of them of the type end", "content": {LINES: {}}}},
)
async def export(
    job: str,
    request: Request,
    _: Reader,
    coordinator: Coord,
    what: Annotated[list[run_lines.What], Query(description="only lines of these types; none: all")] = [],  # noqa: B006
) -> Response:
    """All that is known of a job, line by line: itself, versions, bytes, reports, notes with decisions, failures."""
    label(request, job, -1, "", "export")
    name = coordinator.record(job).spec.name
    wanted = tuple(dict.fromkeys(what)) or run_lines.WHAT
    headers = {"content-disposition": f'attachment; filename="{name}.jsonl"', "cache-control": "no-store"}
    return StreamingResponse(run_lines.lines(coordinator, job, wanted), headers=headers, media_type=LINES)
