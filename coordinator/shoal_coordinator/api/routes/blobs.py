"""Upload and download of blobs by content hash, with resumption and ranges."""

from __future__ import annotations

import re
from collections.abc import Callable, MutableMapping
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

from fastapi import Path, Request, Response
from sqlalchemy import select

from shoal.core.errors import InvalidPayload, NotAllowed, Refused
from shoal.core.protocol.message import BlobRef, Task
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import FileSource
from shoal.runtime.http.server.body_receiver import pieces
from shoal_coordinator.api.authentication import Operator, Reader, Speaker, anybody_may_read, principal_of, speaker_of
from shoal_coordinator.api.dependencies import AppMetrics, AppSettings, Blobs, NodePresence, Registry, VersionRows
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.http.problems import errors
from shoal_coordinator.jobs.job_runner import JobRunner
from shoal_coordinator.node_protocol.byte_labels import label, mark_alive
from shoal_coordinator.schemas.traffic import BlobView
from shoal_coordinator.storage.blobs.remote_blobs import call_blobs
from shoal_coordinator.storage.tables import versions
from shoal_coordinator.updates.base_uploads import BaseUploads
from shoal_coordinator.updates.uploads import Uploads

router = api_router(responses=errors(401, 403))

_OPERATOR = "operator"
"""The owner of interrupted uploads of operators."""
PIECE_BYTES = 512 * 1024
"""Read and sent at once: large enough to be fast, small enough for a thousand downloads."""

Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256 in hexadecimal")]
VersionNumber = Annotated[int, Path(ge=0, lt=2**63, description="0: the initial model")]
SAFETENSORS = "application/vnd.safetensors"
UPLOADED: dict[int | str, dict[str, Any]] = {
    201: {"model": BlobView, "description": "It is here now"},
    **errors(409, 416),
}
STORED: dict[int | str, dict[str, Any]] = {
    200: {"description": "It is here"},
    404: {
        "description": "Not stored; `upload-offset`: bytes received of an interrupted upload",
        "headers": {"upload-offset": {"schema": {"type": "integer", "minimum": 0}}},
    },
}
UPLOAD: dict[str, Any] = {
    "requestBody": {"required": True, "content": {SAFETENSORS: {"schema": {"type": "string", "format": "binary"}}}}
}
DOWNLOAD: dict[int | str, dict[str, Any]] = {
    200: {"description": "A safetensors file", "content": {SAFETENSORS: {}}},
    206: {"description": "A part of it", "content": {SAFETENSORS: {}}},
    304: {"description": "You have it"},
    **errors(404, 410, 416),
}


class FileResponse(Response):
    """A blob, whole or in part, sent in large pieces. Blobs are immutable. `done` is called at the end."""

    def __init__(
        self, source: FileSource, ref: BlobRef, request: Request, done: Callable[[], None] | None = None
    ) -> None:
        self._source, self._start, self._stop, self._done = source, 0, ref.nbytes, done
        etag = f'"sha256:{ref.digest}"'
        headers = {"etag": etag, "accept-ranges": "bytes", "cache-control": "private, max-age=31536000, immutable"}
        status = 200
        if _names_tag(request.headers.get("if-none-match", ""), etag):
            status, self._stop = 304, 0
        elif request.headers.get("if-range", etag) == etag:
            part = _range(request.headers.get("range", ""), ref.nbytes)
            if part is not None:
                status, (self._start, self._stop) = 206, part
                headers["content-range"] = f"bytes {self._start}-{self._stop - 1}/{ref.nbytes}"
        super().__init__(None, status, headers, SAFETENSORS)
        if status != 304:
            self.headers["content-length"] = str(self._stop - self._start)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if scope["method"] == "HEAD" or self.status_code == 304:
            await send({"type": "http.response.body", "body": b""})
            return
        for place in range(self._start, self._stop, PIECE_BYTES):
            end = min(place + PIECE_BYTES, self._stop)
            await send({"type": "http.response.body", "body": self._source[place:end], "more_body": end < self._stop})
        if self._done is not None:
            self._done()


def _names_tag(known: str, etag: str) -> bool:
    """Return whether an If-None-Match header names this tag."""
    tags = [tag.strip().removeprefix("W/") for tag in known.split(",")]
    return etag in tags or tags == ["*"]


def _range(text: str, nbytes: int) -> tuple[int, int] | None:
    """Parse a Range header to [start, stop); None: send the whole file. Raises `Refused` for a range outside it."""
    found = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", text)
    if found is None or not (found[1] or found[2]):
        return None
    first, last = (int(part) if part else None for part in found.groups())
    if first is None:
        start, stop = nbytes - min(last or 0, nbytes), nbytes
    else:
        start, stop = first, nbytes if last is None else min(last + 1, nbytes)
        if last is not None and last < first:
            return None
    if start >= stop:
        raise Refused(f"a file of {nbytes} bytes has no part {text}", code="upload.range", hint="ask with HEAD first")
    return start, stop


async def current_task(runner: JobRunner, node: str) -> Task:
    """Return the node's current task. Raises `Refused` when there is none."""
    await runner.gate.wait_consistent()
    task = runner.task_of(node)
    if task is None:
        raise Refused(f"{node} has no task", code="task.none", hint="poll for a task; an upload belongs to one")
    return task


def task_blob(task: Task, digest: str) -> BlobRef:
    """Return the task's blob with that digest. Raises `Refused` when the task names no such blob."""
    blob = next((ref for ref in (task.blob, task.reference) if ref is not None and ref.digest == digest), None)
    if blob is None:
        raise Refused(
            f"the task that stands for {task.node} does not name this body",
            code="task.superseded",
            hint="poll again: a newer task has replaced the one that named it",
        )
    return blob


def _extent(request: Request) -> tuple[int, int]:
    """Return (start, total) from the request's headers."""
    length = int(request.headers.get("content-length", "0"))
    text = request.headers.get("content-range")
    if text is None:
        return 0, length
    found = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", text)
    if found is None or int(found[2]) + 1 != int(found[3]) or int(found[1]) + length != int(found[3]):
        raise Refused(f"Content-Range {text[:60]!r}", code="upload.range", hint="send everything from an offset on")
    return int(found[1]), int(found[3])


@router.put("/jobs/{job}/blobs/{digest}", tags=["node"], responses=UPLOADED | errors(404, 426), openapi_extra=UPLOAD)
async def upload_update(
    job: str,
    digest: Digest,
    request: Request,
    response: Response,
    node: Speaker,
    registry: Registry,
    presence: NodePresence,
    metrics: AppMetrics,
) -> BlobView:
    """Upload an update. Idempotent by hash; `Content-Range: bytes START-END/TOTAL` resumes an interrupted upload."""
    runner = registry.runner(job)
    task = await current_task(runner, node)
    label(request, job, task.version, node, "blob")
    mark_alive(request, presence, node)
    start, total = _extent(request)
    if total < 1:
        raise InvalidPayload("an empty body", code="payload.short")
    if task.kind == "gossip" and not task.recall:  # the report of the task before: its acknowledgement says so
        raise Refused(f"{node} carries on with its peers", code="task.none", hint="report: that task was superseded")
    if task.kind == "evaluate":
        raise InvalidPayload("the task asks for metrics only", code="payload.unwanted", hint="send the report alone")
    known = await call_blobs(runner.blobs, runner.blobs.size, digest)
    if known not in (None, total):
        raise InvalidPayload(f"the body of that digest has {known} bytes, not {total}", code="payload.length")
    runner.task_timers.begun(node, task.id)
    if known is None:
        response.status_code = 201
        expected = runner.layouts.expected(task.kind)
        with runner.blob_use.pinned(digest):
            try:
                async with aclosing(pieces(request)) as body:
                    with metrics.counting_refusals():
                        await runner.uploads.receive(node, BlobRef(digest, total), start, expected, body)
            except InvalidPayload as error:
                activity = presence.activity[job, node]
                if activity.record_failure(error.message):
                    await runner.feed.record_event(
                        "refusal", f"{node}: {error.message}{activity.suppressed_text()}", node
                    )
                raise
    else:
        runner.uploads.share(node, BlobRef(digest, total))
    presence.mark_alive(node)
    return BlobView(digest=digest, bytes=total)


@router.head("/jobs/{job}/blobs/{digest}", tags=["node"], responses=STORED | errors(409, 426), response_class=Response)
async def check_blob(job: str, digest: Digest, request: Request, node: Speaker, registry: Registry) -> Response:
    """Check whether a blob is stored. If not, `Upload-Offset` is the number of bytes received from this node."""
    label(request, job, registry.runner(job).hub.progress.version, node, "blob")
    return await _stored(registry.runner(job).blobs, node, digest)


async def _stored(blobs: FileBlobs, owner: str, digest: str) -> Response:
    """Return the length of a blob, or what is kept of its interrupted upload."""
    size = await call_blobs(blobs, blobs.size, digest)
    if size is not None:
        return Response(status_code=200, headers={"content-length": str(size)})
    offset = blobs.partials.offset(owner, digest)
    return Response(status_code=404, headers={"upload-offset": str(offset)})


@router.get("/jobs/{job}/blobs/{digest}", tags=["node"], responses=DOWNLOAD | errors(409), response_class=Response)
async def download_blob(
    job: str,
    digest: Digest,
    request: Request,
    registry: Registry,
    job_blobs: Blobs,
    presence: NodePresence,
    version_reader: VersionRows,
) -> Response:
    """Download a blob. Nodes get the blobs of their task; readers get models, never updates; both the base model."""
    runner, blobs, base = registry.job(job).runner, job_blobs.of(job), registry.job(job).start.base_of(digest)
    who = principal_of(request)
    if who is not None and who.role == "node":
        node = speaker_of(request, who.name)
        if base is not None:
            label(request, job, -1, node, "base")
            mark_alive(request, presence, node)
            return await file_of(blobs, request, base)
        task = await current_task(registry.runner(job), node)
        blob = task_blob(task, digest)
        label(request, job, task.version, node, "model")
        mark_alive(request, presence, node)
        return await file_of(blobs, request, blob, partial(runner.task_timers.got, node, task.id) if runner else None)
    if who is None and not anybody_may_read(request):
        raise NotAllowed("no credential", code="auth.missing", hint="send Authorization: Bearer …")
    label(request, job, -1, "", "export")
    model = base or (runner.hub.store.model if runner is not None else None)
    if model is not None and model.digest == digest:
        return await file_of(blobs, request, model)
    row = await version_reader.first_version(job, select(versions.c.nbytes).where(versions.c.digest == digest))
    if row is None:
        raise Refused("no model of this job has that hash", code="blob.unknown", hint="see GET …/versions")
    return await file_of(blobs, request, BlobRef(digest, row.nbytes))


async def file_of(blobs: FileBlobs, request: Request, ref: BlobRef, done: Callable[[], None] | None = None) -> Response:
    """Return the file of a model. Raises `Refused` (410) when retention has deleted it."""
    if not await call_blobs(blobs, blobs.has, ref.digest):
        raise Refused(
            "this model is no longer kept",
            code="model.gone",
            hint="set checkpoint_every in the job, or raise models_kept of the coordinator; see GET …/models",
        )
    return FileResponse(await call_blobs(blobs, blobs.open, ref), ref, request, done)


@router.head("/jobs/{job}/models/{number}", include_in_schema=False)
@router.get("/jobs/{job}/models/{number}", tags=["jobs"], responses=DOWNLOAD, response_class=Response)
async def download_model(
    job: str,
    number: VersionNumber,
    request: Request,
    _: Reader,
    registry: Registry,
    job_blobs: Blobs,
    version_reader: VersionRows,
) -> Response:
    """Download the model of a version as a safetensors file."""
    registry.job(job)
    row = await version_reader.version_row(job, number)
    label(request, job, -1, "", "export")
    return await file_of(job_blobs.of(job), request, BlobRef(row.digest, row.nbytes))


@router.put("/blobs/{digest}", tags=["jobs"], responses=UPLOADED, openapi_extra=UPLOAD)
async def upload_model(
    digest: Digest, request: Request, response: Response, _: Operator, job_blobs: Blobs, settings: AppSettings
) -> BlobView:
    """Upload an initial model for the field `start_model` of a new job."""
    label(request, kind="start")
    return await _keep_start(job_blobs.starts, Uploads(job_blobs.starts, settings), digest, request, response)


async def _keep_start(
    starts: FileBlobs, uploads: Uploads, digest: str, request: Request, response: Response
) -> BlobView:
    """Receive a blob for a new job, unless it is here."""
    start, total = _extent(request)
    if not await call_blobs(starts, starts.has, digest):
        response.status_code = 201
        async with aclosing(pieces(request)) as body:
            await uploads.receive(_OPERATOR, BlobRef(digest, total), start, None, body)
    return BlobView(digest=digest, bytes=total)


@router.put("/bases/{digest}", tags=["jobs"], responses=UPLOADED, openapi_extra=UPLOAD)
async def upload_base(
    digest: Digest, request: Request, response: Response, _: Operator, job_blobs: Blobs, settings: AppSettings
) -> BlobView:
    """Upload a base model for the field `base_model` of a new job, as an update is: whole, or from an offset on."""
    label(request, kind="start")
    return await _keep_start(job_blobs.starts, BaseUploads(job_blobs.starts, settings), digest, request, response)


@router.head("/bases/{digest}", tags=["jobs"], responses=STORED, response_class=Response)
async def check_base(digest: Digest, request: Request, _: Operator, job_blobs: Blobs) -> Response:
    """Check whether a base model is stored. If not, `Upload-Offset` is the number of bytes received."""
    label(request, kind="start")
    return await _stored(job_blobs.starts, _OPERATOR, digest)
