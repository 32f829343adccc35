"""The one stream that a browser tab holds open."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy import select

from coordinator import describe
from coordinator.access import Coord, Reader, label
from coordinator.service import Coordinator
from coordinator.stream import Item
from coordinator.tables import feed
from coordinator.tables import versions as table
from coordinator.views import iso
from shoal import __version__
from shoal.core.errors import Refused

router = APIRouter(tags=["stream"])

REPLAY_PAGE = 1000
RETRY_MS = 1000


def _known(coordinator: Coord, job: Annotated[str | None, Query(description="only this job")] = None) -> str | None:
    """A job that is here: asked before the stream begins, when an answer of 404 is still possible."""
    return coordinator.record(job).spec.name if job is not None else None


@router.get("/stream", response_class=EventSourceResponse)
async def stream(
    request: Request,
    _: Reader,
    coordinator: Coord,
    job: Annotated[str | None, Depends(_known)],
    last_event_id: Annotated[int | None, Header(ge=0, lt=2**63)] = None,
) -> AsyncIterable[ServerSentEvent]:
    """What happens, as it happens: note, version, metrics, job, nodes, traffic. Notes, versions and metrics have ids;
    a stream that is opened with `Last-Event-ID` begins with what was missed."""
    label(request, kind="dashboard")  # who watches a job is none of its costs
    reader = coordinator.broadcast.open(job)
    try:
        hello = {"server_time": iso(time.time()), "version": __version__, "boot": iso(coordinator.started_at)}
        yield ServerSentEvent(data=hello, event="hello", retry=RETRY_MS)
        seen = last_event_id or 0
        if last_event_id is not None:
            async for item in _missed(coordinator, job, last_event_id):
                seen = item.id or seen
                yield await _event(coordinator, item)
        async for live in reader.items():
            if live is None:
                yield ServerSentEvent(data={}, event="ping")  # scripts do not see comments
            elif live.id is None or live.id > seen:
                yield await _event(coordinator, live)
    finally:
        coordinator.broadcast.close(reader)


async def _missed(coordinator: Coordinator, job: str | None, after: int) -> AsyncIterable[Item]:
    """What the feed holds after that id, page by page: it may be much."""
    query = select(feed).order_by(feed.c.id).limit(REPLAY_PAGE)
    if job is not None:
        query = query.where(feed.c.job == job)
    while True:
        async with coordinator.database.reader.connect() as connection:
            rows = (await connection.execute(query.where(feed.c.id > after))).all()
        for row in rows:
            yield Item(row.topic, row.job, {"at": row.at, **row.data}, row.id)
        if len(rows) < REPLAY_PAGE:
            return
        after = rows[-1].id


async def _event(coordinator: Coordinator, item: Item) -> ServerSentEvent:
    data = await _data(coordinator, item)
    number = None if item.id is None else str(item.id)
    return ServerSentEvent(data=data, event=item.topic, id=number)


async def _data(coordinator: Coordinator, item: Item) -> dict[str, Any]:
    """The item as browsers want it."""
    if item.topic == "job":
        return {
            "job": item.job,
            **(await describe.job(coordinator, coordinator.record(item.job))).model_dump(mode="json"),
        }
    if item.topic == "version":
        return {"job": item.job, **await _version(coordinator, item.job, item.data["number"])}
    data = {"job": item.job, **item.data}
    if "at" in data:
        data["at"] = iso(data["at"])
    return data | ({"id": item.id} if item.topic == "note" else {})


async def _version(coordinator: Coordinator, job: str, number: int) -> dict[str, Any]:
    first = select(table.c.closed).where(table.c.job == job).order_by(table.c.number).limit(1)
    async with coordinator.database.reader.connect() as connection:
        start = (await connection.execute(first)).scalar() or 0.0
    try:
        row = await coordinator.version_row(job, number)
    except Refused:
        return {"number": number}
    total = describe.spent(coordinator, job, -1, number)
    return describe.version(coordinator, row, start, total).model_dump(mode="json")
