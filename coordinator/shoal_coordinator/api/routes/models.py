"""The models of a job's versions, and labels that name the one to use."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response
from sqlalchemy import Row, select

from shoal.core.protocol.message import BlobRef
from shoal.jobs.spec import is_checkpoint
from shoal_coordinator.api.authentication import DashboardReader, Operator, Reader
from shoal_coordinator.api.dependencies import Blobs, Db, Labels, Presenter, Registry, VersionRows
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.api.routes.blobs import DOWNLOAD, file_of
from shoal_coordinator.api.routes.control import described
from shoal_coordinator.http.problems import errors
from shoal_coordinator.jobs.job_registry import JobRecord
from shoal_coordinator.models import version_history
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.schemas.jobs import JobView
from shoal_coordinator.schemas.models import Label, LabelView, ModelList, ModelRow, PromotionRequest
from shoal_coordinator.schemas.values import iso
from shoal_coordinator.storage.tables import versions

router = api_router(tags=["jobs"], responses=errors(401, 403, 404))

Why = Annotated[str, Query(max_length=1000, description="for the record")]


@dataclass
class ModelPage:
    """Query parameters of a page of models."""

    before: Annotated[int | None, Query(ge=0, lt=2**63, description="only versions before this one")] = None
    limit: Annotated[int, Query(ge=1, le=1000)] = 50
    kept: Annotated[bool, Query(description="only those whose file is still here")] = False


@router.get("/jobs/{job}/models")
async def list_models(
    job: str,
    _: DashboardReader,
    registry: Registry,
    job_blobs: Blobs,
    database: Db,
    wanted: Annotated[ModelPage, Depends()],
) -> ModelList:
    """List the models of closed versions, newest first."""
    before, limit = wanted.before, wanted.limit
    record = registry.job(job)
    here = await asyncio.to_thread(lambda: set(job_blobs.of(job).digests()))
    page = select(versions).where(versions.c.job == job).order_by(versions.c.number.desc()).limit(limit + 1)
    if before is not None:
        page = page.where(versions.c.number < before)
    async with database.reader.connect() as connection:
        if wanted.kept:
            found = await connection.run_sync(version_history.models_among, job, here)
            newest = sorted((number for number in found if before is None or number < before), reverse=True)
            page = page.where(versions.c.number.in_(newest[: limit + 1]))
        rows = (await connection.execute(page)).all()
    more = rows[limit - 1].number if len(rows) > limit else None
    return ModelList(models=[_row(record, row, row.digest in here) for row in rows[:limit]], next=more)


def _row(record: JobRecord, row: Row[Any], kept: bool) -> ModelRow:
    named = [(name, given) for name, given in sorted(record.labels.items()) if given["version"] == row.number]
    return ModelRow(
        version=row.number,
        digest=row.digest,
        bytes=row.nbytes,
        closed_at=iso(row.closed_at),
        metrics=row.metrics,
        kept=kept,
        checkpoint=is_checkpoint(row.number, record.spec.checkpoint_every),
        labels=[LabelView(label=name, at=iso(given["at"]), why=given["why"]) for name, given in named],
    )


@router.put("/jobs/{job}/labels/{name}", responses=errors(409, 410))
async def set_label(
    job: str, name: Label, body: PromotionRequest, _: Operator, registry: Registry, presenter: Presenter, labels: Labels
) -> JobView:
    """Set a label on a version. The version's model is kept while it has a label."""
    await labels.promote(job, name, body.version, body.why)
    return await described(registry, presenter, job)


@router.delete("/jobs/{job}/labels/{name}")
async def remove_label(
    job: str, name: Label, _: Operator, registry: Registry, presenter: Presenter, labels: Labels, why: Why = ""
) -> JobView:
    """Delete a label."""
    await labels.demote(job, name, why)
    return await described(registry, presenter, job)


@router.get("/jobs/{job}/labels/{name}/model", responses=DOWNLOAD, response_class=Response)
async def download_labeled_model(
    job: str, name: Label, request: Request, _: Reader, job_blobs: Blobs, version_reader: VersionRows, labels: Labels
) -> Response:
    """Download the labeled model as a safetensors file; `Shoal-Version` is its version.

    With `If-None-Match` it is sent again only when the label names another.
    """
    number = labels.version_of(job, name)
    row = await version_reader.version_row(job, number)
    label(request, job, -1, "", "export")
    answer = await file_of(job_blobs.of(job), request, BlobRef(row.digest, row.nbytes))
    answer.headers["cache-control"] = "private, no-cache"  # a label may get another version
    answer.headers["shoal-version"] = str(number)
    return answer
