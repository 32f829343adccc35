"""Jobs: how they begin, and what there is to read of them."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import AwareDatetime
from sqlalchemy import select

from shoal.core.algorithm import tree_slot
from shoal.core.errors import InvalidJob, InvalidPayload
from shoal.core.machine import NoteKind
from shoal.core.message import Ref
from shoal.spec import JobSpec, job_schema, parse_job
from shoal_coordinator import describe, misfit, quarters, traffic_views, views
from shoal_coordinator.access import Coord, Operator, Reader, ReaderOrNode, label
from shoal_coordinator.dialects import whole_sum
from shoal_coordinator.ledger import crossed_by_direction
from shoal_coordinator.manifests import Given, Told, checked
from shoal_coordinator.peer_views import GoesOn
from shoal_coordinator.problems import errors
from shoal_coordinator.routes.control import described
from shoal_coordinator.service import Coordinator
from shoal_coordinator.tables import feed, traffic
from shoal_coordinator.views import iso, seconds

router = APIRouter(tags=["jobs"], responses=errors(401, 403, 404))

Limit = Annotated[int, Query(ge=1, le=5000)]
After = Annotated[int, Query(ge=-1, lt=2**63, description="only what is newer than this")]


@router.get("/jobs")
async def jobs(
    request: Request,
    _: Reader,
    coordinator: Coord,
    after: Annotated[str, Query(max_length=63, description="only jobs that stand below this one")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> views.Jobs:
    """Jobs, newest first."""
    label(request, kind="dashboard")
    mine = [_place(name, record.created_at) for name, record in coordinator.records.items()]
    others = {view.name: view for view in await coordinator.deputies.shown()}
    places = sorted(mine + [_place(name, seconds(view.created_at)) for name, view in others.items()])
    if after:
        last = next((place for place in places if place[1] == after), None)
        if last is None:
            coordinator.record(after)  # raises
        places = [place for place in places if last is None or place > last]
    names = [name for _, name in places[:limit]]
    records = [coordinator.records[name] for name in names if name not in others]
    own = {view.name: view for view in await describe.jobs(coordinator, records)}
    found = [others.get(name) or own[name] for name in names]
    return views.Jobs(jobs=found, next=found[-1].name if len(places) > limit else None)


def _place(name: str, created_at: float) -> tuple[float, str]:
    return -created_at, name


@router.get("/traffic")
async def all_traffic(
    request: Request,
    _: Reader,
    coordinator: Coord,
    since: Annotated[
        AwareDatetime,
        Query(description="what is older than eight days counts as that", examples=["2026-11-22T00:00:00Z"]),
    ],
) -> traffic_views.TrafficSince:
    """Bytes of all jobs, since the quarter of an hour in which that moment lies; those among nodes are counted once."""
    label(request, kind="dashboard")
    at = quarters.start(since.timestamp(), time.time())
    await coordinator.books.write_counts()
    async with coordinator.database.reader.connect() as connection:
        found = await quarters.since(connection, at)
    return traffic_views.TrafficSince(since=iso(at), up_bytes=found["up"], down_bytes=found["down"])


@router.post("/jobs", status_code=201, responses=errors(409), response_model=views.Job)
async def create(
    body: views.NewJob, request: Request, response: Response, _: Operator, coordinator: Coord
) -> views.Job | Response:
    """Begin a job. Its file is checked first; nothing is kept of one that is wrong."""
    spec = parse_job(body.spec)
    start = _start_model(coordinator, body.start_model) if body.start_model else None
    if start is not None:
        model = await asyncio.to_thread(coordinator.starts.get, start)
        misfit.check_start(spec, tree_slot(model, "model").layout, coordinator.presence)
    owner = coordinator.deputies.choose(spec)
    if owner:
        with coordinator.claimed(spec.name):
            return await coordinator.deputies.begin(owner, spec.name, await request.body())
    given = await _given(coordinator, spec, start, body.goes_on)
    await coordinator.create(spec, start, given, body.hold)
    response.headers["location"] = f"/api/v1/jobs/{spec.name}"
    return await described(coordinator, spec.name)


async def _given(coordinator: Coordinator, spec: JobSpec, start: Ref | None, told: GoesOn | None) -> Given | None:
    """What a job goes on from, if it is to; every signature checked."""
    if told is None:
        return None
    if start is None:
        raise InvalidJob("goes_on without start_model", hint="upload the manifest's model first, and name it")
    key, slots = await coordinator.papers.key(), coordinator.starts.get(start)
    begun = told.created_at.timestamp() if told.created_at is not None else None
    word = Told(told.node, told.term, begun)
    return await asyncio.to_thread(checked, spec, start, slots, told.texts(), word, key)


def _start_model(coordinator: Coordinator, digest: str) -> Ref:
    size = coordinator.starts.size(digest) if re.fullmatch("[0-9a-f]{64}", digest) else None
    if size is None:
        raise InvalidJob("start_model names no uploaded body", hint="PUT /api/v1/bodies/{sha256} first")
    ref = Ref(digest, size)
    try:
        tree_slot(coordinator.starts.get(ref), "model")
    except InvalidPayload as error:
        raise InvalidJob(f"start_model: {error.message}") from None
    return ref


@router.get("/jobs/{job}")
async def job(job: str, request: Request, coordinator: Coord, _: ReaderOrNode) -> views.Job:
    """One job."""
    label(request, kind="dashboard")
    return await described(coordinator, job)


@router.get("/jobs/{job}/versions")
async def versions(
    job: str,
    request: Request,
    _: Reader,
    coordinator: Coord,
    after: After = -1,
    points: Annotated[int, Query(ge=0, le=10_000, description="thin to so many; 0: all")] = 0,
) -> views.Versions:
    """Closed versions with their metrics and bytes."""
    label(request, kind="dashboard")
    coordinator.record(job)
    return views.Versions(versions=await describe.version_list(coordinator, job, after, points))


@router.get("/jobs/{job}/notes")
async def notes(
    job: str,
    request: Request,
    _: Reader,
    coordinator: Coord,
    after: After = -1,
    limit: Limit = 500,
    kind: Annotated[list[NoteKind], Query(description="only notes of these kinds")] = [],  # noqa: B006
) -> views.Notes:
    """Decisions with their reasons, and what else happened: the newest `limit`, oldest first."""
    label(request, kind="dashboard")
    coordinator.record(job)
    query = select(feed).where(feed.c.job == job, feed.c.topic == "note", feed.c.id > after)
    if kind:
        query = query.where(feed.c.data["kind"].as_string().in_(kind))
    async with coordinator.database.reader.connect() as connection:
        rows = (await connection.execute(query.order_by(feed.c.id.desc()).limit(limit))).all()
    return views.Notes(notes=[views.Note(id=row.id, at=iso(row.at), **row.data) for row in reversed(rows)])


@router.get("/jobs/{job}/nodes")
async def job_nodes(job: str, request: Request, _: Reader, coordinator: Coord) -> views.JobNodes:
    """The nodes of a job and what they are doing."""
    label(request, kind="dashboard")
    record = coordinator.record(job)
    if record.driver is None:
        return views.JobNodes.model_validate({"nodes": (record.summary or {}).get("nodes", [])})
    return views.JobNodes(nodes=describe.job_nodes(coordinator, record.driver))


@router.get("/jobs/{job}/traffic")
async def job_traffic(
    job: str,
    request: Request,
    _: Reader,
    coordinator: Coord,
    by: Annotated[list[Literal["version", "node", "kind"]], Query(description="how to group")] = [],  # noqa: B006
) -> traffic_views.Traffic:
    """Bytes on the wire: request and response, head and body, by direction and as grouped."""
    label(request, kind="dashboard")
    coordinator.record(job)
    groups = [traffic.c[name] for name in dict.fromkeys(by)]
    sums = [whole_sum(traffic.c[name]).label(name) for name in ("requests", "head_bytes", "body_bytes")]
    query = select(*groups, traffic.c.direction, *sums).where(traffic.c.job == job)
    query = query.group_by(*groups, traffic.c.direction).order_by(*groups, traffic.c.direction)
    await coordinator.books.write_counts()
    async with coordinator.database.reader.connect() as connection:
        found = [dict(row) for row in (await connection.execute(query)).mappings()]
        total = {row[0]: int(row[1]) for row in await connection.execute(crossed_by_direction(job))}
    rows = [
        traffic_views.TrafficRow.model_validate({**row, "bytes": row["head_bytes"] + row["body_bytes"]})
        for row in found
    ]
    return traffic_views.Traffic(job=job, rows=rows, total={"up": total.get("up", 0), "down": total.get("down", 0)})


@router.get("/schemas/job.json", tags=["reference"])
async def schema() -> dict[str, Any]:
    """The JSON Schema of a job file, with every installed algorithm and schedule."""
    return job_schema()
