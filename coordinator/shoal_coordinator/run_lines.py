"""A run as JSON Lines: all that is known of a job, in the API's own shapes, each line with its `type`.

    job, version …, traffic …, report …, note …, failure …, end

What the job does meanwhile may or may not be in it. A file whose last line is not of the type "end" is broken off; that
line says how many there are of each other type.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel
from sqlalchemy import Column, Row, Table, select, tuple_

from shoal_coordinator import describe, report_queries, traffic_views, views
from shoal_coordinator.observe_views import Failure
from shoal_coordinator.tables import failures, feed, reports, traffic, versions
from shoal_coordinator.views import iso

if TYPE_CHECKING:
    from shoal_coordinator.service import Coordinator

What = Literal["job", "version", "traffic", "report", "note", "failure"]
WHAT: tuple[What, ...] = get_args(What)

PAGE = 500
"""Rows that are read at once: whatever the length of a run, no more of it is in memory."""

Rows = AsyncIterator[Sequence[Row[Any]]]


async def lines(coordinator: Coordinator, job: str, what: Sequence[What] = WHAT) -> AsyncIterator[bytes]:
    """The run, some lines at a time. Raises `Refused` (404) before the first where there is no such job."""
    counts: Counter[str] = Counter()
    for kind in WHAT:
        if kind in what:
            async for page in _READERS[kind](coordinator, job):
                counts[kind] += len(page)
                yield b"".join(_line(kind, one.model_dump(mode="json")) for one in page)
    yield _line("end", {"lines": {kind: counts[kind] for kind in what}})


def _line(kind: str, values: dict[str, Any]) -> bytes:
    text = json.dumps({"type": kind, **values}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace") + b"\n"


async def _job(coordinator: Coordinator, job: str) -> AsyncIterator[Sequence[BaseModel]]:
    yield [await describe.job(coordinator, coordinator.record(job))]


async def _versions(coordinator: Coordinator, job: str) -> AsyncIterator[Sequence[BaseModel]]:
    start, before = None, None
    driver = coordinator.record(job).driver
    async for rows in _pages(coordinator, versions, job, versions.c.number):
        start = rows[0].closed if start is None else start
        spent = coordinator.ledger.spent(job, [row.number for row in rows])
        each = zip(rows, [before or spent[0], *spent], spent, strict=False)
        yield [describe.version(driver, row, start, earlier, until) for row, earlier, until in each]
        before = spent[-1]


async def _traffic(coordinator: Coordinator, job: str) -> AsyncIterator[Sequence[BaseModel]]:
    await coordinator.books.write_counts()
    key = (traffic.c.version, traffic.c.node, traffic.c.kind, traffic.c.direction)
    async for rows in _pages(coordinator, traffic, job, *key):
        yield [
            traffic_views.TrafficRow.model_validate({**row._asdict(), "bytes": row.head_bytes + row.body_bytes})
            for row in rows
        ]


async def _reports(coordinator: Coordinator, job: str) -> AsyncIterator[Sequence[BaseModel]]:
    async for rows in _pages(coordinator, reports, job, reports.c.id):
        yield [report_queries.row_of(row) for row in rows]


async def _notes(coordinator: Coordinator, job: str) -> AsyncIterator[Sequence[BaseModel]]:
    async for rows in _pages(coordinator, feed, job, feed.c.id):
        yield [views.Note(id=row.id, at=iso(row.at), **row.data) for row in rows if row.topic == "note"]


async def _failures(coordinator: Coordinator, job: str) -> AsyncIterator[Sequence[BaseModel]]:
    async for rows in _pages(coordinator, failures, job, failures.c.id):
        yield [Failure.model_validate({**row._asdict(), "at": iso(row.at)}) for row in rows]


Reader = Callable[["Coordinator", str], AsyncIterator[Sequence[BaseModel]]]
_READERS: dict[What, Reader] = {
    "job": _job,
    "version": _versions,
    "traffic": _traffic,
    "report": _reports,
    "note": _notes,
    "failure": _failures,
}


async def _pages(coordinator: Coordinator, table: Table, job: str, *key: Column[Any]) -> Rows:
    """A table's rows of a job in the order of their key. No connection is held while somebody reads slowly."""
    query = select(table).where(table.c.job == job).order_by(*key).limit(PAGE)
    after: tuple[Any, ...] | None = None
    while True:
        page = query if after is None else query.where(tuple_(*key) > after)
        async with coordinator.database.reader.connect() as connection:
            rows = (await connection.execute(page)).all()
        if rows:
            yield rows
        if len(rows) < PAGE:
            return
        after = tuple(getattr(rows[-1], column.name) for column in key)
