"""Problem documents of the coordinator: the status and default hint of each error, and FastAPI's exception handlers."""

from __future__ import annotations

from functools import partial
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match

from shoal.core.errors import InvalidJob, InvalidPayload, NotAllowed, Refused, ShoalError, StorageFailed
from shoal.runtime.http.server import problem_documents
from shoal.runtime.http.server.body_limits import STATUS
from shoal.runtime.http.server.problem_documents import MEDIA_TYPE, Problem, closing_messages
from shoal.validation.config_errors import error_text
from shoal_coordinator.storage.repeated_errors import brief

log = structlog.get_logger()

_SCHEMA = {"$ref": "#/components/schemas/Problem"}
_SAYS = "Problem: the error and a hint"


def errors(*statuses: int | str) -> dict[int | str, dict[str, Any]]:
    """Return a route's `responses`: its problems, in addition to those of `EVERYWHERE`.

    As schemas: FastAPI would make a validator of a model for each route and status, a thousand in all.
    """
    return {status: {"description": _SAYS, "content": {MEDIA_TYPE: {"schema": _SCHEMA}}} for status in statuses}


EVERYWHERE = errors(400, 411, 413, 415, 421, 422, 431, "5XX")
"""Problems with which limits, parameters, bodies and the disk may answer any request."""

_STATUS: dict[str, int] = {
    **STATUS,
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
    "blob.unknown": 404,
    "alert.unknown": 404,
    "token.unknown": 404,
    "model.gone": 410,
    "trust.none": 404,
    "job.exists": 409,
    "job.ended": 409,
    "job.over": 410,
    "node.exists": 409,
    "task.foreign": 409,
    "task.none": 409,
    "task.superseded": 409,
    "blob.missing": 409,
    "payload.too-large": 413,
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
    ("payload.", "send the model that the task carried, with the same names, types and shapes"),
    ("head.", "the other side's protocol is a foreign one: install the same release of shoal on both sides"),
    ("storage.", "look at the coordinator's log"),
    ("", "see /docs"),
)
"""Default hints, by the beginning of an error's code."""
TEXT_CODE, TEXT_HINT = "text.invalid", "send UTF-8 without NUL characters and without halves of characters"
"""For texts that cannot be stored and shown everywhere."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
PAGE = "/{path:path}"
"""The route that answers every path with the dashboard's page."""
RETRY_AFTER_S = {503: 2, 507: 10}


def status_of(error: ShoalError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, NotAllowed) and error.code.startswith("trust."):
        return 409  # the relayed message is refused, not the relay, whose credential is valid
    return _STATUS.get(error.code) or next((status for kind, status in _CLASSES if isinstance(error, kind)), 500)


def problem(status: int, detail: str, code: str, hint: str = "", instance: str = "") -> Response:
    """Return a problem as a response."""
    return problem_documents.problem(status, detail, code, hint, instance, retry_after_s=RETRY_AFTER_S.get(status, 0))


def of(error: ShoalError, path: str) -> Response:
    """Return an error as a response."""
    hint = error.hint or next(hint for prefix, hint in _HINTS if error.code.startswith(prefix))
    return problem(status_of(error), error.message, error.code, hint, path)


def unreadable(error: Exception, path: str) -> Response:
    """Return the response for a database that does not answer."""
    log.error("the database does not answer", path=path, error=brief(error))
    hint = "ask again in a moment; else look at the coordinator's log"
    return problem(503, "the database does not answer", "storage.unreachable", hint, path)


def unexpected(error: Exception, path: str) -> Response:
    """Return the response for a bug."""
    text = f"the coordinator has met a bug: {type(error).__name__}"
    return problem(500, text, "internal", "look at the coordinator's log", path)


def allowed(request: Request) -> list[str]:
    """Return the methods that the API answers at that path; [] if there is only the dashboard's page."""
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
        return problem(422, f"{where}: {error_text(first)}", "request.invalid", "see /docs", request.url.path)

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
    """Return the OpenAPI document, with each problem as a reference to one description of them all.

    FastAPI writes it out for each route and status.
    """
    found = FastAPI.openapi(app)
    found["components"]["schemas"]["Problem"] = Problem.model_json_schema()
    found["components"]["responses"] = {"Problem": {"description": _SAYS, "content": {MEDIA_TYPE: {"schema": _SCHEMA}}}}
    for operation in [operation for path in found["paths"].values() for operation in path.values()]:
        for status, answer in operation["responses"].items():
            if any(content.get("schema") == _SCHEMA for content in answer.get("content", {}).values()):
                operation["responses"][status] = {"$ref": "#/components/responses/Problem"}
    return found


def raw(status: int, detail: str, code: str, hint: str, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a problem as the two ASGI messages of a response that closes the connection."""
    return closing_messages(problem(status, detail, code, hint, path))
