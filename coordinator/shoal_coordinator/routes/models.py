"""The models of a job's versions: which there are, and labels that name the one to use."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Row, select

from shoal.core.message import Ref
from shoal_coordinator import history, labels, views
from shoal_coordinator.access import Coord, Operator, Reader, label
from shoal_coordinator.job_record import Record
from shoal_coordinator.model_views import Label, ModelRow, Models, Promoted, Promotion
from shoal_coordinator.problems import errors
from shoal_coordinator.routes.bodies import DOWNLOAD, file_of
from shoal_coordinator.routes.control import described
from shoal_coordinator.tables import versions
from shoal_coordinator.views import iso

router = APIRouter(tags=["jobs"], responses=errors(401, 403, 404))

Why = Annotated[str, Query(max_length=1000, description="for the record")]


@router.get("/jobs/{job}/models")
async def models(
    job: str,
    request: Request,
    _: Reader,
    coordinator: Coord,
    before: Annotated[int | None, Query(ge=0, lt=2**63, description="only versions before this one")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    kept: Annotated[bool, Query(description="only those whose file is still here")] = False,
) -> Models:
    """Models of closed versions, newest first: size, hash, metrics, labels, and whether they are still kept."""
    label(request, kind="dashboard")
    record = coordinator.record(job)
    here = await asyncio.to_thread(lambda: set(coordinator.bodies_of(job).digests()))
    page = select(versions).where(versions.c.job == job).order_by(versions.c.number.desc()).limit(limit + 1)
    if before is not None:
        page = page.where(versions.c.number < before)
    async with coordinator.database.reader.connect() as connection:
        if kept:
            found = await connection.run_sync(history.models_among, job, here)
            newest = sorted((number for number in found if before is None or number < before), reverse=True)
            page = page.where(versions.c.number.in_(newest[: limit + 1]))
        rows = (await connection.execute(page)).all()
    more = rows[limit - 1].number if len(rows) > limit else None
    return Models(models=[_row(record, row, row.digest in here) for row in rows[:limit]], next=more)


def _row(record: Record, row: Row[Any], kept: bool) -> ModelRow:
    named = [(name, given) for name, given in sorted(record.labels.items()) if given["version"] == row.number]
    return ModelRow(
        version=row.number,
        digest=row.digest,
        bytes=row.nbytes,
        closed_at=iso(row.closed_at),
        metrics=row.metrics,
        kept=kept,
        labels=[Promoted(label=name, at=iso(given["at"]), why=given["why"]) for name, given in named],
    )


@router.put("/jobs/{job}/labels/{name}", responses=errors(409, 410))
async def promote(job: str, name: Label, body: Promotion, _: Operator, coordinator: Coord) -> views.Job:
    """Let a label name a version, instead of the one that it may have named. Its model is kept from now on."""
    await labels.promote(coordinator, job, name, body.version, body.why)
    return await described(coordinator, job)


@router.delete("/jobs/{job}/labels/{name}")
async def withdraw(job: str, name: Label, _: Operator, coordinator: Coord, why: Why = "") -> views.Job:
    """Let a label name nothing more."""
    await labels.withdraw(coordinator, job, name, why)
    return await described(coordinator, job)


@router.get("/jobs/{job}/labels/{name}/model", responses=DOWNLOAD, response_class=Response)
async def labelled(job: str, name: Label, request: Request, _: Reader, coordinator: Coord) -> Response:
    """The model that a label names now, as a safetensors file; `Shoal-Version` says of which version it is.

    With `If-None-Match` it is sent again only when the label names another.
    """
    number = labels.named(coordinator, job, name)
    row = await coordinator.version_row(job, number)
    label(request, job, -1, "", "export")
    answer = await file_of(coordinator.bodies_of(job), request, Ref(row.digest, row.nbytes))
    answer.headers["cache-control"] = "private, no-cache"  # the file of a hash never changes; what a label names does
    answer.headers["shoal-version"] = str(number)
    return answer
