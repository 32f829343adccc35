"""What nodes measure of their machines: processor, memory, GPU, network, battery."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from shoal_coordinator.access import Coord, Node, Reader, label
from shoal_coordinator.problems import errors
from shoal_coordinator.system_metrics import FIELDS, Sample, recent, thinned
from shoal_coordinator.views import iso

router = APIRouter(tags=["nodes"])


class SystemHistory(BaseModel):
    """A node's machine over time. A series is null where nothing of it was measured."""

    node: str
    at: list[str] = Field(description="when each value was measured")
    series: dict[str, list[Any] | None] = Field(description=f"by name: {', '.join(FIELDS)}")


@router.post("/system-metrics", status_code=204, tags=["node"], responses=errors(401, 403))
async def take_sample(body: Sample, request: Request, node: Node, coordinator: Coord) -> None:
    """How a node's machine does, for people. No sign of life; at most one in five seconds is kept."""
    label(request, node=node, kind="system")
    coordinator.system_metrics.take(node, body)


@router.get("/nodes/{node}/system-metrics", responses=errors(401, 403, 404))
async def history(
    node: str,
    request: Request,
    _: Reader,
    coordinator: Coord,
    seconds: Annotated[float, Query(ge=60, le=31 * 86400, description="how far back")] = 3600.0,
    points: Annotated[int, Query(ge=10, le=1000, description="at most so many, each a mean")] = 240,
) -> SystemHistory:
    """A node's processor, memory, GPU, network and battery over time."""
    label(request, kind="dashboard")
    if node not in coordinator.presence.info:
        raise await coordinator.admission.unknown(node)
    until = time.time()
    async with coordinator.database.reader.connect() as connection:
        rows = [row._asdict() for row in await connection.execute(recent(node, until - seconds))]
    found = thinned(rows, until - seconds, until, points)
    series = {name: found[name] if any(v is not None for v in found[name]) else None for name in FIELDS}
    return SystemHistory(node=node, at=[iso(at) for at in found["at"]], series=series)
