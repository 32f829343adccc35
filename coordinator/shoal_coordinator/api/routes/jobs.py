"""Jobs: how they begin, and what there is to read of them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request, Response
from pydantic import AwareDatetime
from sqlalchemy import select

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import InvalidJob, InvalidPayload
from shoal.core.protocol.machine import JobEventKind
from shoal.core.protocol.message import BlobRef
from shoal.jobs.spec import JobSpec, job_schema, parse_job
from shoal.validation.message_checks import is_digest
from shoal_coordinator.api.authentication import DashboardReader, Operator, ReaderOrNode
from shoal_coordinator.api.dependencies import (
    Blobs,
    Db,
    Documents,
    JobsOfFollowers,
    Lifecycle,
    NodePresence,
    Presenter,
    Registry,
    TelemetryWriter,
)
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.api.routes.control import described
from shoal_coordinator.http.problems import errors
from shoal_coordinator.jobs.job_blobs import JobBlobs
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.peers.signed_checkpoints import RecoveredJob, RecoveryClaim, verify_recovery
from shoal_coordinator.peers.trust_documents import TrustDocuments
from shoal_coordinator.schemas.jobs import JobEvents, JobEventView, JobList, JobRequest, JobView, VersionList
from shoal_coordinator.schemas.nodes import JobNodes
from shoal_coordinator.schemas.peers import RestoreRequest
from shoal_coordinator.schemas.traffic import JobTraffic, TrafficRow, TrafficTotal
from shoal_coordinator.schemas.values import from_iso, iso
from shoal_coordinator.storage.dialects import whole_sum
from shoal_coordinator.storage.tables import job_events, traffic
from shoal_coordinator.telemetry import traffic_buckets
from shoal_coordinator.telemetry.traffic import crossed_by_direction
from shoal_coordinator.updates import layout_mismatch

router = api_router(tags=["jobs"], responses=errors(401, 403, 404))

Limit = Annotated[int, Query(ge=1, le=5000)]
After = Annotated[int, Query(ge=-1, lt=2**63, description="only what is newer than this")]


@router.get("/jobs")
async def list_jobs(
    _: DashboardReader,
    registry: Registry,
    presenter: Presenter,
    after: Annotated[str, Query(max_length=63, description="only jobs that stand below this one")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> JobList:
    """List jobs, newest first."""
    mine = [_place(name, record.created_at) for name, record in registry.records.items()]
    others = {view.name: view for view in await presenter.remote_views()}
    places = sorted(mine + [_place(name, from_iso(view.created_at)) for name, view in others.items()])
    if after:
        last = next((place for place in places if place[1] == after), None)
        if last is None:
            registry.job(after)  # raises
        places = [place for place in places if last is None or place > last]
    names = [name for _, name in places[:limit]]
    records = [registry.records[name] for name in names if name not in others]
    own = {view.name: view for view in await presenter.jobs(records)}
    found = [others.get(name) or own[name] for name in names]
    return JobList(jobs=found, next=found[-1].name if len(places) > limit else None)


def _place(name: str, created_at: float) -> tuple[float, str]:
    return -created_at, name


@router.get("/traffic")
async def show_total_traffic(
    _: DashboardReader,
    database: Db,
    writer: TelemetryWriter,
    since: Annotated[
        AwareDatetime,
        Query(description="earliest time, at most eight days ago", examples=["2026-11-22T00:00:00Z"]),
    ],
) -> TrafficTotal:
    """Return the bytes of all jobs since the start of the given quarter of an hour. Bytes between nodes count once."""
    at = traffic_buckets.start(since.timestamp(), time.time())
    await writer.write_counts()
    async with database.reader.connect() as connection:
        found = await traffic_buckets.since(connection, at)
    return TrafficTotal(since=iso(at), up_bytes=found["up"], down_bytes=found["down"])


@dataclass(frozen=True)
class CreationParts:
    """The parts that create a job."""

    job_blobs: Blobs
    lifecycle: Lifecycle
    presence: NodePresence
    follower_jobs: JobsOfFollowers
    documents: Documents


@router.post("/jobs", status_code=201, responses=errors(409), response_model=JobView)
async def create_job(
    body: JobRequest,
    request: Request,
    response: Response,
    _: Operator,
    parts: Annotated[CreationParts, Depends()],
    registry: Registry,
    presenter: Presenter,
) -> JobView | Response:
    """Start a job, if its job file is valid."""
    spec = parse_job(body.spec)
    if body.base_model:
        if spec.base_model not in ("", body.base_model):
            raise InvalidJob("base_model is another base model than the job file's", hint="leave one of them out")
        spec = spec.model_copy(update={"base_model": body.base_model})
    base = await parts.lifecycle.find_base(spec.base_model)
    if base is None and body.base_model:
        raise _not_uploaded("base_model", "bases")
    start = _start_model(parts.job_blobs, body.start_model) if body.start_model else None
    if start is not None:
        model = await asyncio.to_thread(parts.job_blobs.starts.get, start)
        layout_mismatch.check_start(spec, tree_slot(model, "model").layout, parts.presence)
    owner = parts.follower_jobs.choose_owner(spec)
    if owner:
        with registry.claim_name(spec.name):
            return await parts.follower_jobs.create(owner, spec.name, await request.body())
    given = await _given(parts.job_blobs, parts.documents, spec, start, body.restore)
    await parts.lifecycle.create_job(spec, start, given, body.paused, base)
    response.headers["location"] = f"/api/v1/jobs/{spec.name}"
    return await described(registry, presenter, spec.name)


async def _given(
    job_blobs: JobBlobs, documents: TrustDocuments, spec: JobSpec, start: BlobRef | None, told: RestoreRequest | None
) -> RecoveredJob | None:
    """Return the documents to restore a job from, after checking every signature."""
    if told is None:
        return None
    if start is None:
        raise InvalidJob("restore without start_model", hint="upload the manifest's model first, and name it")
    key, slots = await documents.key(), job_blobs.starts.get(start)
    begun = told.created_at.timestamp() if told.created_at is not None else None
    word = RecoveryClaim(told.node, told.term, begun)
    return await asyncio.to_thread(verify_recovery, spec, start, slots, told.documents(), word, key)


def _not_uploaded(field: str, folder: str) -> InvalidJob:
    return InvalidJob(f"{field} names no uploaded body", hint=f"PUT /api/v1/{folder}/{{sha256}} first")


def _start_model(job_blobs: JobBlobs, digest: str) -> BlobRef:
    size = job_blobs.starts.size(digest) if is_digest(digest) else None
    if size is None:
        raise _not_uploaded("start_model", "blobs")
    ref = BlobRef(digest, size)
    try:
        tree_slot(job_blobs.starts.get(ref), "model")
    except InvalidPayload as error:
        raise InvalidJob(f"start_model: {error.message}") from None
    return ref


@router.get("/jobs/{job}")
async def show_job(job: str, request: Request, registry: Registry, presenter: Presenter, _: ReaderOrNode) -> JobView:
    """Return a job."""
    label(request, kind="dashboard")
    return await described(registry, presenter, job)


@router.get("/jobs/{job}/versions")
async def list_versions(
    job: str,
    _: DashboardReader,
    registry: Registry,
    presenter: Presenter,
    after: After = -1,
    points: Annotated[int, Query(ge=0, le=10_000, description="maximum number of versions; 0: all")] = 0,
) -> VersionList:
    """List closed versions with their metrics and bytes."""
    registry.job(job)
    return VersionList(versions=await presenter.version_list(job, after, points))


@router.get("/jobs/{job}/events")
async def list_events(
    job: str,
    _: DashboardReader,
    registry: Registry,
    database: Db,
    after: After = -1,
    limit: Limit = 500,
    kind: Annotated[list[JobEventKind], Query(description="only events of these kinds")] = [],  # noqa: B006
) -> JobEvents:
    """List the newest `limit` events of a job, oldest first."""
    registry.job(job)
    query = select(job_events).where(
        job_events.c.job == job, job_events.c.topic == "job_event", job_events.c.id > after
    )
    if kind:
        query = query.where(job_events.c.data["kind"].as_string().in_(kind))
    async with database.reader.connect() as connection:
        rows = (await connection.execute(query.order_by(job_events.c.id.desc()).limit(limit))).all()
    return JobEvents(events=[JobEventView(id=row.id, at=iso(row.at), **row.data) for row in reversed(rows)])


@router.get("/jobs/{job}/nodes")
async def list_job_nodes(job: str, _: DashboardReader, registry: Registry, presenter: Presenter) -> JobNodes:
    """List the nodes of a job and their current state."""
    record = registry.job(job)
    if record.runner is None:
        return JobNodes.model_validate({"nodes": (record.summary or {}).get("nodes", [])})
    return JobNodes(nodes=presenter.job_nodes(record.runner))


@router.get("/jobs/{job}/traffic")
async def show_job_traffic(
    job: str,
    _: DashboardReader,
    registry: Registry,
    database: Db,
    writer: TelemetryWriter,
    by: Annotated[list[Literal["version", "node", "kind"]], Query(description="how to group")] = [],  # noqa: B006
) -> JobTraffic:
    """Return bytes on the wire, headers included, by direction and group."""
    registry.job(job)
    groups = [traffic.c[name] for name in dict.fromkeys(by)]
    sums = [whole_sum(traffic.c[name]).label(name) for name in ("requests", "head_bytes", "body_bytes")]
    query = select(*groups, traffic.c.direction, *sums).where(traffic.c.job == job)
    query = query.group_by(*groups, traffic.c.direction).order_by(*groups, traffic.c.direction)
    await writer.write_counts()
    async with database.reader.connect() as connection:
        found = [dict(row) for row in (await connection.execute(query)).mappings()]
        total = {row[0]: int(row[1]) for row in await connection.execute(crossed_by_direction(job))}
    rows = [TrafficRow.model_validate({**row, "bytes": row["head_bytes"] + row["body_bytes"]}) for row in found]
    return JobTraffic(job=job, rows=rows, total={"up": total.get("up", 0), "down": total.get("down", 0)})


@router.get("/schemas/job.json", tags=["reference"])
async def show_job_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file, with all installed algorithms and schedules."""
    return job_schema()
