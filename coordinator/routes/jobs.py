"""Jobs: what people and the command line ask of them."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import func, select

from coordinator import describe, views
from coordinator.access import Coord, Operator, Reader, ReaderOrNode, label
from coordinator.driver import Driver
from coordinator.ledger import crossed_by_direction
from coordinator.manifests import Given, checked
from coordinator.peer_views import GoesOn
from coordinator.problems import errors
from coordinator.service import Coordinator
from coordinator.tables import feed, traffic
from coordinator.views import iso
from shoal.core.algorithm import tree_slot
from shoal.core.errors import InvalidJob, InvalidPayload, Refused
from shoal.core.machine import NoteKind
from shoal.core.message import Pause, Ref, Resume, Stop, Switch
from shoal.spec import JobSpec, job_schema, parse_job

router = APIRouter(tags=["jobs"], responses=errors(401, 403, 404))

Limit = Annotated[int, Query(ge=1, le=5000)]
After = Annotated[int, Query(ge=-1, lt=2**63, description="only what is newer than this")]


async def _job(coordinator: Coordinator, name: str) -> views.Job:
    return await describe.job(coordinator, coordinator.record(name))


@router.get("/jobs")
async def jobs(request: Request, _: Reader, coordinator: Coord) -> views.Jobs:
    """All jobs, newest first."""
    label(request, kind="dashboard")
    records = sorted(coordinator.records.values(), key=lambda record: -record.created_at)
    return views.Jobs(jobs=[await describe.job(coordinator, record) for record in records])


@router.post("/jobs", status_code=201, responses=errors(409))
async def create(body: views.NewJob, response: Response, _: Operator, coordinator: Coord) -> views.Job:
    """Begin a job. Its file is checked first; nothing is kept of one that is wrong."""
    spec = parse_job(body.spec)
    start = _start_model(coordinator, body.start_model) if body.start_model else None
    await coordinator.create(spec, start, await _given(coordinator, spec, start, body.goes_on))
    response.headers["location"] = f"/api/v1/jobs/{spec.name}"
    return await _job(coordinator, spec.name)


async def _given(coordinator: Coordinator, spec: JobSpec, start: Ref | None, told: GoesOn | None) -> Given | None:
    """What a job goes on from, if it is to; every signature checked."""
    if told is None:
        return None
    if start is None:
        raise InvalidJob("goes_on without start_model", hint="upload the manifest's model first, and name it")
    key, slots = await coordinator.papers.key(), coordinator.starts.get(start)
    return await asyncio.to_thread(checked, spec, start, slots, told.texts(), key)


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
    return await _job(coordinator, job)


@router.post("/jobs/{job}/pause", responses=errors(409))
async def pause(job: str, body: views.Why, _: Operator, coordinator: Coord) -> views.Job:
    """Ask nothing new until it is resumed; reports that come still count."""
    await coordinator.driver(job).tell(Pause(body.why or Pause.why))
    return await _job(coordinator, job)


@router.post("/jobs/{job}/resume", responses=errors(409))
async def resume(job: str, body: views.Why, _: Operator, coordinator: Coord) -> views.Job:
    """Go on after a pause."""
    await coordinator.driver(job).tell(Resume(body.why or Resume.why))
    return await _job(coordinator, job)


@router.post("/jobs/{job}/stop", responses=errors(409))
async def stop(job: str, body: views.Why, _: Operator, coordinator: Coord) -> views.Job:
    """End a job, now or when the round in hand has closed."""
    await coordinator.driver(job).tell(Stop(body.why or Stop.why, body.when))
    coordinator.ring()
    return await _job(coordinator, job)


@router.post("/jobs/{job}/switch", responses=errors(409))
async def switch(job: str, body: views.Switch, _: Operator, coordinator: Coord) -> views.Job:
    """Let the nodes carry a running job on among themselves, or have them hand it back. Twice is once."""
    driver = coordinator.driver(job)
    await driver.settled()
    if _would_move(driver, body.to):
        await driver.tell(Switch(body.to, body.why or Switch.why))
    return await _job(coordinator, job)


def _would_move(driver: Driver, to: Literal["gossip", "server"]) -> bool:
    """Whether a switch would change anything. Raises `Refused` where it must not be made, or not now."""
    hub, name = driver.hub, driver.name
    if to == "gossip":
        _check_may_go(driver)
    moves = hub.mode == ("away" if to == "server" else "server")
    if moves and hub.paused_at is not None:
        raise Refused(
            f"job {name} is paused, so nothing is asked of its nodes",
            code="switch.paused",
            hint=f"resume it first: shoal jobs resume {name}",
        )
    return moves


def _check_may_go(driver: Driver) -> None:
    """Raise `Refused` when the job must not go to its nodes, or not now."""
    hub, name = driver.hub, driver.name
    driver.check_gossip()
    if hub.phase == "waiting":
        raise Refused(
            f"job {name} has no model yet that its nodes could carry on",
            code="switch.no-model",
            hint="wait for version 0: a node makes it when it joins",
        )
    if hub.phase != "running":
        raise Refused(
            f"the training of job {name} is over",
            code="switch.over",
            hint="nothing is left to be carried on; it ends when its final model is measured",
        )
    if hub.mode == "returning":
        raise Refused(
            f"the nodes of job {name} are handing back what they have",
            code="switch.returning",
            hint=f"wait until it is back: shoal jobs show {name}",
        )


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
) -> views.Traffic:
    """Bytes on the wire: request and response, head and body, by direction and as grouped."""
    label(request, kind="dashboard")
    coordinator.record(job)
    groups = [traffic.c[name] for name in dict.fromkeys(by)]
    sums = [func.sum(traffic.c[name]).label(name) for name in ("requests", "head_bytes", "body_bytes")]
    query = select(*groups, traffic.c.direction, *sums).where(traffic.c.job == job)
    query = query.group_by(*groups, traffic.c.direction).order_by(*groups, traffic.c.direction)
    await coordinator.write_counts()
    async with coordinator.database.reader.connect() as connection:
        found = [dict(row) for row in (await connection.execute(query)).mappings()]
        total = {row[0]: int(row[1]) for row in await connection.execute(crossed_by_direction(job))}
    rows = [views.TrafficRow.model_validate({**row, "bytes": row["head_bytes"] + row["body_bytes"]}) for row in found]
    return views.Traffic(job=job, rows=rows, total={"up": total.get("up", 0), "down": total.get("down", 0)})


@router.get("/schemas/job.json", tags=["reference"])
async def schema() -> dict[str, Any]:
    """The JSON Schema of a job file, with every installed algorithm and schedule."""
    return job_schema()
