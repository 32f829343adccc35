"""Where bodies are got and put, for nodes that can be sent to the store itself; and what they tell of the bytes."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request

from shoal.core.errors import InvalidPayload
from shoal_coordinator import views
from shoal_coordinator.access import Coord, Node, label
from shoal_coordinator.blobs.bodies import StoredBodies, asked
from shoal_coordinator.blobs.store import Target
from shoal_coordinator.problems import errors
from shoal_coordinator.protocol import Label
from shoal_coordinator.routes.bodies import Digest, named_by, standing

router = APIRouter(tags=["node"], responses=errors(401, 403, 404, 409, 426))


def _shown(target: Target | None, job: str, digest: str, method: str, version: int) -> views.Target:
    """A target for a node: the store's, or our own address of that body."""
    found = target or Target(method, f"/api/v1/jobs/{job}/bodies/{digest}")
    return views.Target(method=found.method, url=found.url, headers=found.headers, version=version)


@router.get("/jobs/{job}/bodies/{digest}/target")
async def download_target(job: str, digest: Digest, request: Request, node: Node, coordinator: Coord) -> views.Target:
    """Where a body can be had that the node's order names."""
    driver = coordinator.driver(job)
    order = await standing(driver, node)
    named_by(order, digest)
    label(request, job, order.version, node, "model")
    target, bodies = None, driver.bodies
    if coordinator.blobs.direct and isinstance(bodies, StoredBodies):
        ttl_s = coordinator.settings.blobs_ttl_s
        target = await asyncio.to_thread(coordinator.blobs.download_target, bodies.key(digest), ttl_s)
    return _shown(target, job, digest, "GET", order.version)


@router.post("/jobs/{job}/bodies/{digest}/target")
async def upload_target(
    job: str, digest: Digest, body: views.UploadSize, request: Request, node: Node, coordinator: Coord
) -> views.Target:
    """Where an update is to be put, of exactly that size. It counts when the report has come and it was looked at."""
    driver, settings = coordinator.driver(job), coordinator.settings
    order = await standing(driver, node)
    label(request, job, order.version, node, "body")
    if order.kind == "evaluate":
        raise InvalidPayload("metrics were asked for, no model", code="payload.unwanted", hint="send the report alone")
    if body.bytes > settings.body_bytes_max:
        text = f"a body of {body.bytes} bytes; at most {settings.body_bytes_max} here"
        raise InvalidPayload(text, code="body.too-large", hint="raise body_bytes_max of the coordinator")
    target, bodies = None, driver.bodies
    here = await asked(bodies, bodies.has, digest)
    if not here and coordinator.blobs.direct and isinstance(bodies, StoredBodies):
        driver.uploads.room_for(body.bytes)
        for replaced in driver.uploads.offer(node, order.id, digest):
            await asyncio.to_thread(bodies.store.delete, bodies.incoming_key(node, replaced))
        driver.watches.begun(node, order.id)
        key, ttl_s = bodies.incoming_key(node, digest), settings.blobs_ttl_s
        target = await asyncio.to_thread(coordinator.blobs.upload_target, key, body.bytes, digest, ttl_s)
    return _shown(target, job, digest, "PUT", order.version)


@router.post("/jobs/{job}/moved", status_code=204)
async def moved(job: str, body: views.Moved, request: Request, node: Node, coordinator: Coord) -> None:
    """What has crossed between the node and the store. Told twice, it is booked once."""
    driver = coordinator.record(job).driver
    kind = "body" if body.direction == "up" else "model"
    label(request, job, -1, node, kind)
    version = min(body.version, driver.hub.version) if driver is not None else -1
    counts = (body.up_head, body.up_body), (body.down_head, body.down_body)
    coordinator.ledger.book_moved(Label(job, version, node, kind), body.id, body.requests, *counts)
    order = driver.order_of(node) if driver is not None else None
    if driver is not None and order is not None and body.direction == "down":
        driver.watches.got(node, order.id)
