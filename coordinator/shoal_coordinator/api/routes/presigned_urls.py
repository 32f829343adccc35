"""Presigned URLs of blobs, for nodes that use the store directly, and their reports of transferred bytes."""

from __future__ import annotations

import asyncio

from fastapi import Request

from shoal.core.errors import InvalidPayload
from shoal_coordinator.api.authentication import Node
from shoal_coordinator.api.dependencies import AppSettings, Blobs, ByteCounts, Registry
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.api.routes.blobs import Digest, current_task, task_blob
from shoal_coordinator.http.problems import errors
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.schemas.traffic import PresignRequest, PresignView, TransferRequest
from shoal_coordinator.storage.blobs.remote_blobs import RemoteBlobs, call_blobs
from shoal_coordinator.storage.blobs.store import PresignedTarget
from shoal_coordinator.telemetry.traffic import Label

router = api_router(tags=["node"], responses=errors(401, 403, 404, 409, 426))


def _view(target: PresignedTarget | None, job: str, digest: str, method: str, version: int) -> PresignView:
    """Return a presigned request of the store, or the coordinator's own path."""
    found = target or PresignedTarget(method, f"/api/v1/jobs/{job}/blobs/{digest}")
    return PresignView(method=found.method, url=found.url, headers=found.headers, version=version)


@router.get("/jobs/{job}/blobs/{digest}/presign")
async def presign_download(
    job: str, digest: Digest, request: Request, node: Node, registry: Registry, job_blobs: Blobs, settings: AppSettings
) -> PresignView:
    """Presign the download of a blob of the node's task, or of the job's base model."""
    runner = registry.runner(job)
    if registry.job(job).start.base_of(digest) is not None:
        version, kind = -1, "base"
    else:
        task = await current_task(runner, node)
        task_blob(task, digest)
        version, kind = task.version, "model"
    label(request, job, version, node, kind)
    target, blobs = None, runner.blobs
    if job_blobs.store.direct and isinstance(blobs, RemoteBlobs):
        ttl_s = settings.presign_ttl_s
        target = await asyncio.to_thread(job_blobs.store.presign_download, blobs.key(digest), ttl_s)
    return _view(target, job, digest, "GET", version)


@router.post("/jobs/{job}/blobs/{digest}/presign")
async def presign_upload(
    job: str,
    digest: Digest,
    body: PresignRequest,
    request: Request,
    node: Node,
    registry: Registry,
    job_blobs: Blobs,
    settings: AppSettings,
) -> PresignView:
    """Presign the upload of an update of exactly that size. It is checked when its report arrives."""
    runner = registry.runner(job)
    task = await current_task(runner, node)
    label(request, job, task.version, node, "blob")
    if task.kind == "evaluate":
        raise InvalidPayload("the task asks for metrics only", code="payload.unwanted", hint="send the report alone")
    if body.bytes > settings.body_bytes_max:
        text = f"a body of {body.bytes} bytes; at most {settings.body_bytes_max} here"
        raise InvalidPayload(text, code="body.too-large", hint="raise body_bytes_max of the coordinator")
    target, blobs = None, runner.blobs
    here = await call_blobs(blobs, blobs.has, digest)
    if not here and job_blobs.store.direct and isinstance(blobs, RemoteBlobs):
        runner.uploads.check_room(body.bytes)
        for replaced in runner.uploads.add_address(node, task.id, digest):
            await asyncio.to_thread(blobs.store.delete, blobs.partials.key(node, replaced))
        runner.task_timers.begun(node, task.id)
        key, ttl_s = blobs.partials.key(node, digest), settings.presign_ttl_s
        target = await asyncio.to_thread(job_blobs.store.presign_upload, key, body.bytes, digest, ttl_s)
    return _view(target, job, digest, "PUT", task.version)


@router.post("/jobs/{job}/transfers", status_code=204)
async def record_transfer(
    job: str, body: TransferRequest, request: Request, node: Node, registry: Registry, byte_counts: ByteCounts
) -> None:
    """Record the bytes of a transfer between the node and the store. Idempotent."""
    runner = registry.job(job).runner
    kind = "blob" if body.direction == "up" else "model"
    if registry.job(job).start.base_of(body.digest) is not None:
        kind = "base"
    label(request, job, -1, node, kind)
    version = min(body.version, runner.hub.progress.version) if runner is not None else -1
    counts = (body.up_head, body.up_body), (body.down_head, body.down_body)
    byte_counts.count_transfer(Label(job, version, node, kind), body.id, body.requests, *counts)
    task = runner.task_of(node) if runner is not None else None
    if runner is not None and task is not None and body.direction == "down":
        runner.task_timers.got(node, task.id)
