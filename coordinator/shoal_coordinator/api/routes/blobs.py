"""Models and updates by content hash: uploads that resume, downloads with ranges."""

from __future__ import annotations

import re
from collections.abc import Callable, MutableMapping
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from sqlalchemy import select

from shoal.core.errors import InvalidPayload, NotAllowed, Refused
from shoal.core.message import Order, Ref
from shoal.runtime.store import FileBodies, FileSource
from shoal_coordinator import views
from shoal_coordinator.access import (
    Coord,
    Operator,
    Reader,
    Speaker,
    anybody_may_read,
    hear,
    label,
    principal_of,
    speaker_of,
)
from shoal_coordinator.blobs.bodies import asked
from shoal_coordinator.driver import Driver
from shoal_coordinator.intake import pieces
from shoal_coordinator.problems import errors
from shoal_coordinator.tables import versions
from shoal_coordinator.uploads import Uploads

router = APIRouter(responses=errors(401, 403))

PIECE_BYTES = 512 * 1024
"""Read and sent at once: large enough to be fast, small enough for a thousand downloads."""

Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256 in hexadecimal")]
VersionNumber = Annotated[int, Path(ge=0, lt=2**63, description="0: the initial model")]
SAFETENSORS = "application/vnd.safetensors"
UPLOADED: dict[int | str, dict[str, Any]] = {
    201: {"model": views.Body, "description": "It is here now"},
    **errors(409, 416),
}
HERE: dict[int | str, dict[str, Any]] = {
    200: {"description": "It is here"},
    404: {
        "description": "It is not; of an upload that broke off, so many bytes are",
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
    """A body in large pieces, whole or in part; immutable, since its name is its hash. `done`: called at the end."""

    def __init__(self, source: FileSource, ref: Ref, request: Request, done: Callable[[], None] | None = None) -> None:
        self._source, self._start, self._stop, self._done = source, 0, ref.nbytes, done
        etag = f'"sha256:{ref.digest}"'
        headers = {"etag": etag, "accept-ranges": "bytes", "cache-control": "private, max-age=31536000, immutable"}
        status = 200
        if _has(request.headers.get("if-none-match", ""), etag):
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


def _has(known: str, etag: str) -> bool:
    """Whether one of the tags that the client knows is this one."""
    tags = [tag.strip().removeprefix("W/") for tag in known.split(",")]
    return etag in tags or tags == ["*"]


def _range(text: str, nbytes: int) -> tuple[int, int] | None:
    """[start, stop) of a single range; None for what is better answered with the whole. Raises for one outside."""
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


async def standing(driver: Driver, node: str) -> Order:
    """The order that stands for a node. Raises `Refused` when there is none: a body belongs to one."""
    await driver.settled()
    order = driver.order_of(node)
    if order is None:
        raise Refused(
            f"no order stands for {node}", code="order.none", hint="poll for an order; an upload belongs to one"
        )
    return order


def named_by(order: Order, digest: str) -> Ref:
    """The body of that digest. Raises `Refused` when the order names none such."""
    named = next((ref for ref in (order.body, order.base) if ref is not None and ref.digest == digest), None)
    if named is None:
        raise Refused(
            f"the order that stands for {order.node} does not name this body",
            code="order.superseded",
            hint="poll: an order that named it was superseded by the one that the next answer brings",
        )
    return named


def _extent(request: Request) -> tuple[int, int]:
    """(start, total) that the request's headers announce."""
    length = int(request.headers.get("content-length", "0"))
    text = request.headers.get("content-range")
    if text is None:
        return 0, length
    found = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", text)
    if found is None or int(found[2]) + 1 != int(found[3]) or int(found[1]) + length != int(found[3]):
        raise Refused(f"Content-Range {text[:60]!r}", code="upload.range", hint="send everything from an offset on")
    return int(found[1]), int(found[3])


@router.put("/jobs/{job}/bodies/{digest}", tags=["node"], responses=UPLOADED | errors(404, 426), openapi_extra=UPLOAD)
async def upload(
    job: str, digest: Digest, request: Request, response: Response, node: Speaker, coordinator: Coord
) -> views.Body:
    """Upload an update. Idempotent by hash; `Content-Range: bytes START-END/TOTAL` goes on where one broke off."""
    driver = coordinator.driver(job)
    order = await standing(driver, node)
    label(request, job, order.version, node, "body")
    hear(request, coordinator, node)
    start, total = _extent(request)
    if total < 1:
        raise InvalidPayload("an empty body", code="payload.short")
    if order.kind == "evaluate":
        raise InvalidPayload("metrics were asked for, no model", code="payload.unwanted", hint="send the report alone")
    known = await asked(driver.bodies, driver.bodies.size, digest)
    if known not in (None, total):
        raise InvalidPayload(f"the body of that digest has {known} bytes, not {total}", code="payload.length")
    driver.watches.begun(node, order.id)
    if known is None:
        response.status_code = 201
        expected = driver.expected(order.kind)
        with driver.pinned(digest):
            try:
                async with aclosing(pieces(request)) as body:
                    with coordinator.metrics.counting_refusals():
                        await driver.uploads.take(node, Ref(digest, total), start, expected, body)
            except InvalidPayload as error:
                doing = coordinator.presence.doing[job, node]
                if doing.fail(error.message):
                    await driver.remark("refusal", f"{node}: {error.message}{doing.untold()}", node)
                raise
    else:
        driver.uploads.shares(node, Ref(digest, total))
    coordinator.presence.heard(node)
    return views.Body(digest=digest, bytes=total)


@router.head("/jobs/{job}/bodies/{digest}", tags=["node"], responses=HERE | errors(409, 426), response_class=Response)
async def uploaded(job: str, digest: Digest, request: Request, node: Speaker, coordinator: Coord) -> Response:
    """Whether a body is here; if not, `Upload-Offset` says how much of this node's upload is."""
    label(request, job, coordinator.driver(job).hub.version, node, "body")
    bodies = coordinator.driver(job).bodies
    size = await asked(bodies, bodies.size, digest)
    if size is not None:
        return Response(status_code=200, headers={"content-length": str(size)})
    offset = bodies.offset(node, digest)
    return Response(status_code=404, headers={"upload-offset": str(offset)})


@router.get("/jobs/{job}/bodies/{digest}", tags=["node"], responses=DOWNLOAD | errors(409), response_class=Response)
async def download(job: str, digest: Digest, request: Request, coordinator: Coord) -> Response:
    """A body. Nodes get what their order names; people who may read get models. Nobody gets another node's update."""
    driver, bodies = coordinator.record(job).driver, coordinator.bodies_of(job)
    who = principal_of(request)
    if who is not None and who.role == "node":
        node = speaker_of(request, who.name)
        order = await standing(coordinator.driver(job), node)
        named = named_by(order, digest)
        label(request, job, order.version, node, "model")
        hear(request, coordinator, node)
        return await file_of(bodies, request, named, partial(driver.watches.got, node, order.id) if driver else None)
    if who is None and not anybody_may_read(request):
        raise NotAllowed("no credential", code="auth.missing", hint="send Authorization: Bearer …")
    label(request, job, -1, "", "export")
    model = driver.hub.model if driver is not None else None
    if model is not None and model.digest == digest:
        return await file_of(bodies, request, model)
    row = await coordinator.first_version(job, select(versions.c.nbytes).where(versions.c.digest == digest))
    if row is None:
        raise Refused("no model of this job has that hash", code="body.unknown", hint="see GET …/versions")
    return await file_of(bodies, request, Ref(digest, row.nbytes))


async def file_of(bodies: FileBodies, request: Request, ref: Ref, done: Callable[[], None] | None = None) -> Response:
    """The file of a model. Raises `Refused` (410) when it is here no longer."""
    if not await asked(bodies, bodies.has, ref.digest):
        raise Refused(
            "this model is no longer kept",
            code="model.gone",
            hint="raise models_kept of the coordinator; see GET …/versions",
        )
    return FileResponse(await asked(bodies, bodies.open, ref), ref, request, done)


@router.head("/jobs/{job}/models/{number}", include_in_schema=False)
@router.get("/jobs/{job}/models/{number}", tags=["jobs"], responses=DOWNLOAD, response_class=Response)
async def model(job: str, number: VersionNumber, request: Request, _: Reader, coordinator: Coord) -> Response:
    """The model of a version, as a safetensors file."""
    coordinator.record(job)
    row = await coordinator.version_row(job, number)
    label(request, job, -1, "", "export")
    return await file_of(coordinator.bodies_of(job), request, Ref(row.digest, row.nbytes))


@router.put("/bodies/{digest}", tags=["jobs"], responses=UPLOADED, openapi_extra=UPLOAD)
async def upload_model(
    digest: Digest, request: Request, response: Response, _: Operator, coordinator: Coord
) -> views.Body:
    """Upload an initial model, to be named as `start_model` of a new job."""
    label(request, kind="start")
    start, total = _extent(request)
    if not await asked(coordinator.starts, coordinator.starts.has, digest):
        response.status_code = 201
        uploads = Uploads(coordinator.starts, coordinator.settings)
        async with aclosing(pieces(request)) as body:
            await uploads.take("operator", Ref(digest, total), start, None, body)
    return views.Body(digest=digest, bytes=total)
