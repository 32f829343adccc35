"""The HTTP server of predictions.

    POST /predict   {"inputs": [[…], …]} or {"inputs": {"name": [[…], …]}}, optionally "dtype": the answer is
                    {"outputs": …, "job": …, "version": …}
    GET  /model     the job and version that answers
    GET  /health    200 while a model is loaded

With an access token, the first two ask for it as a bearer token, before the body is read. Refusals are problem
documents (RFC 9457).
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.core.errors import InvalidPayload, LearnerFailed, NotAllowed, Refused, ShoalError
from shoal.runtime.http.server import connection_limit
from shoal.runtime.http.server.allowed_hosts import KnownHosts, is_loopback, names_of
from shoal.runtime.http.server.body_limits import STATUS, RequestBody, check_body
from shoal.runtime.http.server.exchange import SCOPE_KEY
from shoal.runtime.http.server.metered_protocol import ServerConnections
from shoal.runtime.http.server.problem_documents import problem
from shoal.runtime.http.server.receive_timeouts import ReceiveTimeouts
from shoal.runtime.http.server.serving import serve
from shoal.runtime.threads import in_thread
from shoal.serving.served_model import HINT, ServedModel
from shoal.validation.strict_json import loads

BODY_BYTES_MAX = 4 * 2**20
"""Longest request; its numbers take some ten times as much memory while they are read."""
OPEN_MAX = 4
"""Requests whose bodies are read and answered at a time; others wait."""
CONNECTIONS_MAX, GRACE_S = 256, 10
OWN_STATUS = {"exits.version": 409, "exits.level": 409, "exits.busy": 503}
TIMEOUTS = ReceiveTimeouts(10, 20, 500)


def create_app(served: ServedModel) -> Starlette:
    """Return the application without its limits."""
    turns = asyncio.Semaphore(OPEN_MAX)

    async def predict(request: Request) -> Response:
        """Answer from the model."""
        async with turns:
            inputs, dtype = inputs_of(await request.body())
            outputs, version = await in_thread(partial(served.answer, inputs, dtype))
        return JSONResponse({"outputs": outputs, **asdict(version)})

    async def model(_: Request) -> Response:
        """Return which version answers."""
        assert served.version is not None
        return JSONResponse(asdict(served.version))

    return application([Route("/predict", predict, methods=["POST"]), Route("/model", model)])


def application(routes: Sequence[Route]) -> Starlette:
    """Return an application with these routes and `/health`, which answers errors by problem documents."""

    async def health(_: Request) -> Response:
        """Return that requests are answered."""
        return JSONResponse({"status": "ok"})

    return Starlette(routes=[*routes, Route("/health", health)], exception_handlers={ShoalError: _answer_error})


async def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ShoalError)
    if isinstance(error, LearnerFailed) and error.__cause__ is not None:
        structlog.get_logger("serve").warning("a prediction failed", why=error.message, exc_info=error.__cause__)
        error.hint = "check the shape and the dtype of the inputs; the log of the server has the traceback"
    return _problem(error)


def _problem(error: ShoalError) -> Response:
    status = 401 if isinstance(error, NotAllowed) else {**STATUS, **OWN_STATUS}.get(error.code, 422)
    return problem(status, error.message, error.code, error.hint)


def inputs_of(body: bytes) -> tuple[Any, str]:
    """Return the inputs and the dtype in a request. Raises `InvalidPayload`."""
    try:
        given = loads(body)
        return given["inputs"], str(given.get("dtype", "float32"))
    except (ValueError, RecursionError, KeyError, TypeError):
        text = "the body is not a JSON object with inputs"
        raise InvalidPayload(text, code="predict.inputs", hint=HINT) from None


class PredictionLimits:
    """An ASGI middleware that checks requests by their headers: host, access token, length of the body."""

    def __init__(self, app: ASGIApp, host: str, token: str) -> None:
        self._app, self._token = app, token
        self._hosts = KnownHosts(names_of(host), addresses=not is_loopback(host))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = RequestBody(scope, receive)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and body.is_unread:
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        if crowded := scope[SCOPE_KEY].crowded:
            await problem(503, crowded, connection_limit.CODE, connection_limit.HINT, retry_after_s=2)(
                scope, receive, sending
            )
            return
        try:
            self._check(scope)
        except ShoalError as error:
            await _problem(error)(scope, receive, sending)
            return
        await self._app(scope, body.receive, sending)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._hosts.knows(host):
            hint = "use its address, or the name that it listens on"
            raise Refused(f"this server is not known as {host[:100]!r}", code="host.unknown", hint=hint)
        given = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        if self._token and scope["path"] != "/health" and not hmac.compare_digest(given, self._token.encode()):
            raise NotAllowed("this server asks for its access token", hint="send it as Authorization: Bearer TOKEN")
        check_body(scope, BODY_BYTES_MAX, "send fewer examples at a time")


@asynccontextmanager
async def serve_predictions(app: ASGIApp, sock: socket.socket, host: str, token: str) -> AsyncIterator[None]:
    """Answer requests while the block runs. `token`: the access token; empty: none is asked for."""
    limited = PredictionLimits(app, host, token)
    async with serve(limited, ServerConnections(TIMEOUTS, CONNECTIONS_MAX), sock, grace_s=GRACE_S):
        yield
