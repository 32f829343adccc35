"""System metrics of nodes: processor, memory, GPU, network, battery."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import Query, Request
from pydantic import BaseModel, Field

from shoal_coordinator.api.authentication import DashboardReader, Node
from shoal_coordinator.api.dependencies import Db, Measured, NodePresence, Registrar
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.http.problems import errors
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.schemas.values import iso
from shoal_coordinator.telemetry.system_metrics import FIELDS, SystemMetricsSample, recent, thinned

router = api_router(tags=["nodes"])


class SystemHistory(BaseModel):
    """A node's machine over time. A series is null where nothing of it was measured."""

    node: str
    at: list[str] = Field(description="when each value was measured")
    series: dict[str, list[Any] | None] = Field(description=f"by name: {', '.join(FIELDS)}")


@router.post("/system-metrics", status_code=204, tags=["node"], responses=errors(401, 403))
async def report_system_metrics(body: SystemMetricsSample, request: Request, node: Node, measured: Measured) -> None:
    """Store a sample of a node's system metrics, at most one in 5 s. Does not renew the node's lease."""
    label(request, node=node, kind="system")
    measured.take(node, body)


@router.get("/nodes/{node}/system-metrics", responses=errors(401, 403, 404))
async def show_system_metrics(
    node: str,
    _: DashboardReader,
    database: Db,
    presence: NodePresence,
    node_registry: Registrar,
    seconds: Annotated[float, Query(ge=60, le=31 * 86400, description="how far back")] = 3600.0,
    points: Annotated[int, Query(ge=10, le=1000, description="maximum number of points, each a mean")] = 240,
) -> SystemHistory:
    """Return the history of a node's system metrics."""
    if node not in presence.info:
        raise await node_registry.unknown_node(node)
    until = time.time()
    async with database.reader.connect() as connection:
        rows = [row._asdict() for row in await connection.execute(recent(node, until - seconds))]
    found = thinned(rows, until - seconds, until, points)
    series = {name: found[name] if any(v is not None for v in found[name]) else None for name in FIELDS}
    return SystemHistory(node=node, at=[iso(at) for at in found["at"]], series=series)
