"""The one stream that a browser tab holds open."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy import select

from shoal import __version__
from shoal_coordinator import describe
from shoal_coordinator.access import Coord, label
from shoal_coordinator.access import Reader as Reads
from shoal_coordinator.measure_views import Provisional
from shoal_coordinator.news import (
    Event,
    Greeting,
    HelloEvent,
    JobEvent,
    JobNews,
    Nothing,
    PingEvent,
    StreamEvent,
    VersionEvent,
    VersionNews,
)
from shoal_coordinator.problems import errors
from shoal_coordinator.service import Coordinator
from shoal_coordinator.stream import Item, Reader
from shoal_coordinator.tables import feed
from shoal_coordinator.tables import versions as table
from shoal_coordinator.views import iso

router = APIRouter(tags=["stream"])

REPLAY_PAGE = 1000
RETRY_MS = 1000


async def _known(
    coordinator: Coord, job: Annotated[str | None, Query(description="only this job")] = None
) -> str | None:
    """A job that is here: asked before the stream begins, when an answer of 404 is still possible."""
    if job is not None and not coordinator.deputies.owns(job):
        return coordinator.record(job).spec.name
    return job


@router.get(
    "/stream", response_class=EventSourceResponse, responses={200: {"model": StreamEvent}, **errors(401, 403, 404)}
)
async def stream(
    request: Request,
    _: Reads,
    coordinator: Coord,
    job: Annotated[str | None, Depends(_known)],
    last_event_id: Annotated[int | None, Header(ge=0, lt=2**63)] = None,
) -> AsyncIterable[ServerSentEvent]:
    """What happens, as it happens: note, version, metrics, job, nodes, traffic, peers, failure, logs, alert. The
    first three have ids; a stream that is opened with `Last-Event-ID` begins with what was missed."""
    label(request, kind="dashboard")  # who watches a job is none of its costs
    reader = coordinator.broadcast.open(job)
    try:
        with coordinator.deputies.following(reader, last_event_id):
            yield _sent(HelloEvent(data=_greeting(coordinator)), retry=RETRY_MS)
            async for event in _events(coordinator, reader, last_event_id):
                yield event
    finally:
        coordinator.broadcast.close(reader)


async def _events(coordinator: Coordinator, reader: Reader, after: int | None) -> AsyncIterable[ServerSentEvent]:
    seen = after or 0
    if after is not None:
        async for item in _missed(coordinator, reader.job, after):
            seen = item.id or seen
            if (event := await _event(coordinator, item)) is not None:
                yield _sent(event, item.id)
    async for live in reader.items():
        if live is None:
            yield _sent(PingEvent(data=Nothing()))  # scripts do not see comments
        elif live.told:
            yield ServerSentEvent(raw_data=live.told, event=live.topic, id=str(live.id) if live.id else None)
        elif (live.id is None or live.id > seen) and (event := await _event(coordinator, live)) is not None:
            yield _sent(event, live.id)


def _greeting(coordinator: Coordinator) -> Greeting:
    return Greeting(server_time=iso(time.time()), version=__version__, boot=iso(coordinator.started_at))


def _sent(event: Event, number: int | None = None, retry: int | None = None) -> ServerSentEvent:
    text = event.data.model_dump_json()
    return ServerSentEvent(raw_data=text, event=event.event, id=None if number is None else str(number), retry=retry)


async def _missed(coordinator: Coordinator, job: str | None, after: int) -> AsyncIterable[Item]:
    """What the feed holds after that id, page by page: it may be much."""
    query = select(feed).order_by(feed.c.id).limit(REPLAY_PAGE)
    if job is not None:
        query = query.where(feed.c.job == job)
    elif coordinator.owner:
        query = query.where(feed.c.job.in_(list(coordinator.records)))
    elif coordinator.deputies.jobs:  # their owners tell of them
        query = query.where(feed.c.job.not_in(list(coordinator.deputies.jobs)))
    while True:
        async with coordinator.database.reader.connect() as connection:
            rows = (await connection.execute(query.where(feed.c.id > after))).all()
        for row in rows:
            yield Item(row.topic, row.job, {"at": row.at, **row.data}, row.id)
        if len(rows) < REPLAY_PAGE:
            return
        after = rows[-1].id


async def _event(coordinator: Coordinator, item: Item) -> Event | None:
    """The item as browsers want it; None for a version that is not kept any more."""
    match item.topic:
        case "job" if not coordinator.knows(item.job):
            return None  # it was removed since
        case "job":
            job = await describe.job(coordinator, coordinator.record(item.job))
            return JobEvent(data=JobNews(job=item.job, **dict(job)))
        case "version":
            version = await _version(coordinator, item.job, item.data["number"])
            return None if version is None else VersionEvent(data=version)
    data = {"job": item.job, **item.data}
    if "at" in data:
        data["at"] = iso(data["at"])
    if item.topic == "metrics":
        data["provisional"] = _provisional(coordinator, item)
    if item.topic == "note":
        data["id"] = item.id
    return StreamEvent.model_validate({"event": item.topic, "data": data}).root


def _provisional(coordinator: Coordinator, item: Item) -> Provisional | None:
    """How many have measured the version that the item has metrics of; nodes' own say, the held-out data's does not."""
    record, metrics = coordinator.records.get(item.job), item.data["metrics"]
    return describe.provisional(record.driver if record is not None else None, item.data["number"], metrics)


async def _version(coordinator: Coordinator, job: str, number: int) -> VersionNews | None:
    mine = table.c.job == job
    first = select(table.c.closed).where(mine).order_by(table.c.number).limit(1)
    two = select(table).where(mine, table.c.number <= number).order_by(table.c.number.desc()).limit(2)
    async with coordinator.database.reader.connect() as connection:
        start = (await connection.execute(first)).scalar() or 0.0
        rows = (await connection.execute(two)).all()
    if not rows or rows[0].number != number:
        return None
    before, until = coordinator.ledger.spent(job, [rows[-1].number, number])
    driver = coordinator.record(job).driver
    return VersionNews(job=job, **dict(describe.version(driver, rows[0], start, before, until)))
