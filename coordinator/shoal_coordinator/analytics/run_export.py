"""A run as JSON Lines: all that is known of a job, in the API's own shapes, each line with its `type`.

    job, version …, traffic …, report …, job_event …, failure …, end

What the job does meanwhile may or may not be in it. A file whose last line is not of the type "end" is broken off; that
line says how many there are of each other type.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Literal, Protocol, get_args

from pydantic import BaseModel
from sqlalchemy import Column, Row, Table, select, tuple_

from shoal_coordinator.analytics import report_queries
from shoal_coordinator.jobs.job_registry import JobRegistry
from shoal_coordinator.presenters import job_presenter
from shoal_coordinator.presenters.job_presenter import JobPresenter
from shoal_coordinator.schemas.jobs import JobEventView
from shoal_coordinator.schemas.observability import FailureView
from shoal_coordinator.schemas.traffic import TrafficRow
from shoal_coordinator.schemas.values import iso
from shoal_coordinator.storage.tables import failures, job_events, reports, traffic, versions
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry.traffic import TrafficCounter

What = Literal["job", "version", "traffic", "report", "job_event", "failure"]
WHAT: tuple[What, ...] = get_args(What)

PAGE = 500
"""Rows that are read at once: whatever the length of a run, no more of it is in memory."""

Rows = AsyncIterator[Sequence[Row[Any]]]


def _line(kind: str, values: dict[str, Any]) -> bytes:
    text = json.dumps({"type": kind, **values}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace") + b"\n"


class CountsWriter(Protocol):
    """The writer of byte counts."""

    async def write_counts(self) -> None:
        """Write the counts so far."""


class RunExport:
    """A job's run as JSON lines."""

    def __init__(
        self,
        database: Database,
        registry: JobRegistry,
        presenter: JobPresenter,
        traffic: TrafficCounter,
        writer: CountsWriter,
    ) -> None:
        self._database, self._registry, self._presenter = database, registry, presenter
        self._traffic, self._writer = traffic, writer

    async def lines(self, job: str, what: Sequence[What] = WHAT) -> AsyncIterator[bytes]:
        """Yield the run, some lines at a time. Raises `Refused` (404) before the first line for an unknown job."""
        counts: Counter[str] = Counter()
        for kind in WHAT:
            if kind in what:
                async for page in self._reader(kind)(job):
                    counts[kind] += len(page)
                    yield b"".join(_line(kind, one.model_dump(mode="json")) for one in page)
        yield _line("end", {"lines": {kind: counts[kind] for kind in what}})

    async def _job(self, job: str) -> AsyncIterator[Sequence[BaseModel]]:
        yield [await self._presenter.job(self._registry.job(job))]

    async def _versions(self, job: str) -> AsyncIterator[Sequence[BaseModel]]:
        start, before = None, None
        runner = self._registry.job(job).runner
        async for rows in self._pages(versions, job, versions.c.number):
            start = rows[0].closed_s if start is None else start
            spent = self._traffic.spent(job, [row.number for row in rows])
            each = zip(rows, [before or spent[0], *spent], spent, strict=False)
            yield [job_presenter.version(runner, row, start, earlier, until) for row, earlier, until in each]
            before = spent[-1]

    async def _traffic_rows(self, job: str) -> AsyncIterator[Sequence[BaseModel]]:
        await self._writer.write_counts()
        key = (traffic.c.version, traffic.c.node, traffic.c.kind, traffic.c.direction)
        async for rows in self._pages(traffic, job, *key):
            yield [
                TrafficRow.model_validate({**row._asdict(), "bytes": row.head_bytes + row.body_bytes}) for row in rows
            ]

    async def _reports(self, job: str) -> AsyncIterator[Sequence[BaseModel]]:
        async for rows in self._pages(reports, job, reports.c.id):
            yield [report_queries.report_row(row) for row in rows]

    async def _job_events(self, job: str) -> AsyncIterator[Sequence[BaseModel]]:
        async for rows in self._pages(job_events, job, job_events.c.id):
            yield [JobEventView(id=row.id, at=iso(row.at), **row.data) for row in rows if row.topic == "job_event"]

    async def _failures(self, job: str) -> AsyncIterator[Sequence[BaseModel]]:
        async for rows in self._pages(failures, job, failures.c.id):
            yield [FailureView.model_validate({**row._asdict(), "at": iso(row.at)}) for row in rows]

    async def _pages(self, table: Table, job: str, *key: Column[Any]) -> Rows:
        """Yield a job's rows of a table in key order, without holding a connection between pages."""
        query = select(table).where(table.c.job == job).order_by(*key).limit(PAGE)
        after: tuple[Any, ...] | None = None
        while True:
            page = query if after is None else query.where(tuple_(*key) > after)
            async with self._database.reader.connect() as connection:
                rows = (await connection.execute(page)).all()
            if rows:
                yield rows
            if len(rows) < PAGE:
                return
            after = tuple(getattr(rows[-1], column.name) for column in key)

    def _reader(self, kind: What) -> Callable[[str], AsyncIterator[Sequence[BaseModel]]]:
        readers: dict[What, Callable[[str], AsyncIterator[Sequence[BaseModel]]]] = {
            "job": self._job,
            "version": self._versions,
            "traffic": self._traffic_rows,
            "report": self._reports,
            "job_event": self._job_events,
            "failure": self._failures,
        }
        return readers[kind]
