"""Errors as RFC 9457 problems: what went wrong (`detail`), for programs (`code`), and what to do (`hint`)."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match

from shoal.core.errors import InvalidJob, InvalidPayload, NotAllowed, Refused, ShoalError, StorageFailed
from shoal.mistakes import said
from shoal_coordinator.repeats import brief

log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"
_SCHEMA = {"$ref": "#/components/schemas/Problem"}
_SAYS = "What went wrong, and what to do"


class Problem(BaseModel):
    """The body of every answer of 400 and above."""

    type: str = Field("about:blank", examples=["about:blank"])
    title: str = Field(examples=["Unprocessable Content"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["fc1.weight[3] is not finite"])
    code: str = Field(examples=["payload.not-finite"])
    hint: str = Field("", examples=["the training diverged: lower the learning rate, or clip"])
    instance: str = Field("", examples=["/api/v1/jobs/digits/reports"])


def errors(*statuses: int | str) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`: the problems that it may answer with, beside those of `EVERYWHERE`."""
    return {status: {"model": Problem, "description": _SAYS} for status in statuses}


EVERYWHERE = errors(400, 411, 413, 415, 421, 422, 431, "5XX")
"""What the guard, the checks of parameters and bodies, and the disk may answer to any request."""

_STATUS: dict[str, int] = {
    "auth.missing": 401,
    "auth.refused": 401,
    "token.invalid": 401,
    "token.kind": 401,
    "node.removed": 401,
    "auth.certificate": 403,
    "auth.forbidden": 403,
    "relay.sender": 409,
    "job.unknown": 404,
    "node.unknown": 404,
    "model.unknown": 404,
    "label.unknown": 404,
    "round.unknown": 404,
    "body.unknown": 404,
    "alert.unknown": 404,
    "token.unknown": 404,
    "path.unknown": 404,
    "model.gone": 410,
    "papers.none": 404,
    "job.exists": 409,
    "job.ended": 409,
    "job.over": 410,
    "node.exists": 409,
    "order.foreign": 409,
    "order.none": 409,
    "order.superseded": 409,
    "body.missing": 409,
    "body.length-required": 411,
    "body.too-large": 413,
    "payload.too-large": 413,
    "body.encoding": 415,
    "upload.range": 416,
    "node.reserved": 422,
    "protocol.unknown": 426,
    "storage.full": 507,
}
_CLASSES: tuple[tuple[type[ShoalError], int], ...] = (
    (InvalidPayload, 422),
    (InvalidJob, 422),
    (NotAllowed, 401),
    (Refused, 409),
    (StorageFailed, 503),
)
_HINTS = (
    ("payload.", "send the model that the order carried, with the same names, types and shapes"),
    ("head.", "the other side's protocol is a foreign one: install the same release of shoal on both sides"),
    ("storage.", "look at the coordinator's log"),
    ("", "see /docs"),
)
"""What to do about an error that does not say it, by the beginning of its code."""
TEXT_CODE, TEXT_HINT = "text.invalid", "send UTF-8 without NUL characters and without halves of characters"
"""For texts that cannot be stored and shown everywhere."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
PAGE = "/{path:path}"
"""The route that answers every path with the dashboard's page."""
RETRY_AFTER_S = {503: 2, 507: 10}


def status_of(error: ShoalError) -> int:
    """The HTTP status that says whose fault it is."""
    if isinstance(error, NotAllowed) and error.code.startswith("trust."):
        return 409  # the word that was carried is refused, not who carries it: his credential is good
    return _STATUS.get(error.code) or next((status for kind, status in _CLASSES if isinstance(error, kind)), 500)


def problem(status: int, detail: str, code: str, hint: str = "", instance: str = "") -> Response:
    """A problem as a response."""
    title = HTTPStatus(status).phrase
    body = Problem(title=title, status=status, detail=detail, code=code, hint=hint, instance=instance)
    headers = {"retry-after": str(RETRY_AFTER_S[status])} if status in RETRY_AFTER_S else {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(body.model_dump_json(), status, headers, MEDIA_TYPE)


def of(error: ShoalError, path: str) -> Response:
    """An error as a response."""
    hint = error.hint or next(hint for prefix, hint in _HINTS if error.code.startswith(prefix))
    return problem(status_of(error), error.message, error.code, hint, path)


def unreadable(error: Exception, path: str) -> Response:
    """The database does not answer."""
    log.error("the database does not answer", path=path, error=brief(error))
    hint = "ask again in a moment; else look at the coordinator's log"
    return problem(503, "the database does not answer", "storage.unreachable", hint, path)


def unexpected(error: Exception, path: str) -> Response:
    """A fault of our own."""
    text = f"the coordinator has met a bug: {type(error).__name__}"
    return problem(500, text, "internal", "look at the coordinator's log", path)


def allowed(request: Request) -> list[str]:
    """The methods that the API answers at that path; none where there is only the dashboard's page."""
    routes = [route for route in request.app.routes if getattr(route, "path", "") != PAGE]
    scopes = {method: {**request.scope, "method": method} for method in METHODS}
    return [name for name, scope in scopes.items() if any(r.matches(scope)[0] is Match.FULL for r in routes)]


def install(app: FastAPI) -> None:
    """Turn every exception that a route may raise into a problem."""

    async def shoal_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ShoalError)
        return of(error, request.url.path)

    async def no_database(request: Request, error: Exception) -> Response:
        return unreadable(error, request.url.path)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        hint = TEXT_HINT if error.status_code == 422 else "see /docs"
        code = {404: "path.unknown", 405: "method.unknown", 422: TEXT_CODE}.get(
            error.status_code, f"http.{error.status_code}"
        )
        answer = problem(error.status_code, str(error.detail), code, hint, request.url.path)
        if error.status_code == 405:  # the router names the methods of the first route alone
            answer.headers["allow"] = ", ".join(allowed(request)) or (error.headers or {}).get("allow", "")
        return answer

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first: dict[str, Any] = dict(error.errors()[0])
        where = ".".join(str(part) for part in first["loc"]).encode(errors="replace").decode()
        return problem(422, f"{where}: {said(first)}", "request.invalid", "see /docs", request.url.path)

    async def gone(request: Request, _: Exception) -> Response:
        return problem(400, "the connection broke", "request.broken", "send it again", request.url.path)

    async def bug(request: Request, error: Exception) -> Response:
        return unexpected(error, request.url.path)

    app.openapi = partial(_document, app)  # type: ignore[method-assign]

    app.add_exception_handler(Exception, bug)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(ShoalError, shoal_error)
    app.add_exception_handler(OperationalError, no_database)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, invalid)


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with each problem as a reference to one description of them all.

    FastAPI writes it out for each route and status, and gives it the media type of the route's own answer.
    """
    found = FastAPI.openapi(app)
    found["components"]["responses"] = {"Problem": {"description": _SAYS, "content": {MEDIA_TYPE: {"schema": _SCHEMA}}}}
    for operation in [operation for path in found["paths"].values() for operation in path.values()]:
        for status, answer in operation["responses"].items():
            if any(content.get("schema") == _SCHEMA for content in answer.get("content", {}).values()):
                operation["responses"][status] = {"$ref": "#/components/responses/Problem"}
    return found


def raw(status: int, detail: str, code: str, hint: str, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A problem as the two ASGI messages of a response that closes the connection."""
    answer = problem(status, detail, code, hint, path)
    headers = [*answer.raw_headers, (b"connection", b"close")]
    start = {"type": "http.response.start", "status": status, "headers": headers}
    return start, {"type": "http.response.body", "body": answer.body}


def bare(status: int, detail: str, code: str, hint: str) -> bytes:
    """A problem as all the bytes of a response, for a connection on which no request could be read."""
    answer = problem(status, detail, code, hint, "/")
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()]
    lines += [b": ".join(header) for header in (*answer.raw_headers, (b"connection", b"close"))]
    return b"\r\n".join([*lines, b"", bytes(answer.body)])
