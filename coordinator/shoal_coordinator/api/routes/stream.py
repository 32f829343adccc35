"""The stream of server-sent events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy import select

from shoal import __version__
from shoal_coordinator.api.authentication import Reader as ReaderRole
from shoal_coordinator.api.dependencies import (
    ByteCounts,
    Db,
    Events,
    FollowerEvents,
    JobOwner,
    Presenter,
    Registry,
    Routes,
    StartedAt,
)
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.http.problems import errors
from shoal_coordinator.jobs.job_registry import JobRegistry
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.presenters import job_presenter
from shoal_coordinator.schemas.events import (
    AnyEvent,
    Empty,
    HelloData,
    HelloStreamEvent,
    JobChange,
    JobStreamEvent,
    PingStreamEvent,
    StreamEvent,
    VersionClosed,
    VersionStreamEvent,
)
from shoal_coordinator.schemas.values import ProvisionalAccuracy, iso
from shoal_coordinator.storage.tables import job_events
from shoal_coordinator.storage.tables import versions as table
from shoal_coordinator.telemetry.event_bus import Item, Reader

router = api_router(tags=["stream"])

REPLAY_PAGE = 1000
RETRY_MS = 1000


@dataclass(frozen=True)
class StreamParts:
    """The parts that make events."""

    registry: Registry
    presenter: Presenter
    database: Db
    routes: Routes
    byte_counts: ByteCounts
    owner: JobOwner


async def _checked_job(
    registry: Registry, routes: Routes, job: Annotated[str | None, Query(description="only this job")] = None
) -> str | None:
    """Return the job, before the stream begins and the status is sent. Raises `Refused` for an unknown one."""
    if job is not None and not routes.owns(job):
        return registry.job(job).spec.name
    return job


@router.get(
    "/stream", response_class=EventSourceResponse, responses={200: {"model": StreamEvent}, **errors(401, 403, 404)}
)
async def stream_events(
    request: Request,
    _: ReaderRole,
    parts: Annotated[StreamParts, Depends()],
    event_bus: Events,
    follower_events: FollowerEvents,
    started_at: StartedAt,
    job: Annotated[str | None, Depends(_checked_job)],
    last_event_id: Annotated[int | None, Header(ge=0, lt=2**63)] = None,
) -> AsyncIterable[ServerSentEvent]:
    """Stream events: job_event, version, metrics, job, nodes, traffic, peers, failure, logs, alert. The first three
    have ids; a stream that is opened with `Last-Event-ID` starts with the missed ones."""
    label(request, kind="dashboard")  # the viewers of a job do not count as its costs
    reader = event_bus.open(job)
    try:
        with follower_events.following(reader, last_event_id):
            yield _server_event(HelloStreamEvent(event="hello", data=_greeting(started_at)), retry=RETRY_MS)
            async for event in _events(parts, reader, last_event_id):
                yield event
    finally:
        event_bus.close(reader)


async def _events(parts: StreamParts, reader: Reader, after: int | None) -> AsyncIterable[ServerSentEvent]:
    seen = after or 0
    if after is not None:
        async for item in _replayed(parts, reader.job, after):
            seen = item.id or seen
            if (event := await _event(parts, item)) is not None:
                yield _server_event(event, item.id)
    async for live in reader.items():
        if live is None:
            yield _server_event(PingStreamEvent(event="ping", data=Empty()))  # scripts do not see comments
        elif live.rendered:
            yield ServerSentEvent(raw_data=live.rendered, event=live.topic, id=str(live.id) if live.id else None)
        elif (live.id is None or live.id > seen) and (event := await _event(parts, live)) is not None:
            yield _server_event(event, live.id)


def _greeting(started_at: float) -> HelloData:
    return HelloData(server_time=iso(time.time()), version=__version__, started_at=iso(started_at))


def _server_event(event: AnyEvent, number: int | None = None, retry: int | None = None) -> ServerSentEvent:
    text = event.data.model_dump_json()
    return ServerSentEvent(raw_data=text, event=event.event, id=None if number is None else str(number), retry=retry)


async def _replayed(parts: StreamParts, job: str | None, after: int) -> AsyncIterable[Item]:
    """Yield stored events after that id, page by page."""
    query = select(job_events).order_by(job_events.c.id).limit(REPLAY_PAGE)
    if job is not None:
        query = query.where(job_events.c.job == job)
    elif parts.owner:
        query = query.where(job_events.c.job.in_(list(parts.registry.records)))
    elif parts.routes.jobs:  # their owners tell of them
        query = query.where(job_events.c.job.not_in(list(parts.routes.jobs)))
    while True:
        async with parts.database.reader.connect() as connection:
            rows = (await connection.execute(query.where(job_events.c.id > after))).all()
        for row in rows:
            yield Item(row.topic, row.job, {"at": row.at, **row.data}, row.id)
        if len(rows) < REPLAY_PAGE:
            return
        after = rows[-1].id


async def _event(parts: StreamParts, item: Item) -> AnyEvent | None:
    """Return the event for browsers; None for a version that retention has deleted."""
    match item.topic:
        case "job" if not parts.registry.has_job(item.job):
            return None  # it was removed since
        case "job":
            job = await parts.presenter.job(parts.registry.job(item.job))
            return JobStreamEvent(event="job", data=JobChange(job=item.job, **dict(job)))
        case "version":
            version = await _version(parts, item.job, item.data["number"])
            return None if version is None else VersionStreamEvent(event="version", data=version)
    data = {"job": item.job, **item.data}
    if "at" in data:
        data["at"] = iso(data["at"])
    if item.topic == "metrics":
        data["provisional"] = _provisional(parts.registry, item)
    if item.topic == "job_event":
        data["id"] = item.id
    return StreamEvent.model_validate({"event": item.topic, "data": data}).root


def _provisional(registry: JobRegistry, item: Item) -> ProvisionalAccuracy | None:
    """Return the progress of the version's evaluation by nodes."""
    record, metrics = registry.records.get(item.job), item.data["metrics"]
    return job_presenter.provisional(record.runner if record is not None else None, item.data["number"], metrics)


async def _version(parts: StreamParts, job: str, number: int) -> VersionClosed | None:
    mine = table.c.job == job
    first = select(table.c.closed_s).where(mine).order_by(table.c.number).limit(1)
    two = select(table).where(mine, table.c.number <= number).order_by(table.c.number.desc()).limit(2)
    async with parts.database.reader.connect() as connection:
        start = (await connection.execute(first)).scalar() or 0.0
        rows = (await connection.execute(two)).all()
    if not rows or rows[0].number != number:
        return None
    before, until = parts.byte_counts.spent(job, [rows[-1].number, number])
    runner = parts.registry.job(job).runner
    return VersionClosed(job=job, **dict(job_presenter.version(runner, rows[0], start, before, until)))
