"""The outermost layer: limits of a request, decided by its head before authentication.

It reads no body. A body must announce its length; one that is too long for its path, or compressed, is refused at once
and the connection closed. `shoal.runtime.http.server.metered_protocol` has the deadlines of the socket.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.core.errors import Refused
from shoal.runtime.http.server.body_limits import RequestBody, check_body
from shoal.runtime.http.server.connection_limit import CODE, HINT
from shoal.runtime.http.server.exchange import SCOPE_KEY
from shoal.runtime.http.server.problem_documents import closing_messages
from shoal.wire.codec import FRAME_BYTES_MAX, PROTOCOLS
from shoal_coordinator.http import problems
from shoal_coordinator.http.client_certificates import PASSED_ON_KEY
from shoal_coordinator.settings import Settings

MODELS = re.compile(r"/api/v1/(jobs/[^/]+/blobs|blobs|bases)/[0-9a-f]{64}")
"""Paths of models and updates."""
_BASES = "/api/v1/bases/"
STRANGERS = re.compile(r"/api/v1/(enrol|session|jobs/[^/]+/re-enrol)")
"""Paths that accept a body without a credential, because they issue one."""
WRITING = ("POST", "PUT", "PATCH", "DELETE")
"""The methods of the API's routes that may have a body; that of another is received and dropped."""
_FRAMES = re.compile(r"/api/v1/jobs/[^/]+/(reports|failures|relay)")
_SPLIT = re.compile(r"/api/v1/split/[^/]+")
_PEERING = re.compile(r"/api/v1/jobs/[^/]+/peer-status")
STRANGER_BYTES_MAX = 16 * 1024
"""Limit for bodies that need no credential, or are dropped."""
PEERING_BYTES_MAX = 256 * 1024
INTERNAL_BYTES_MAX = 2**20
"""Limit for bodies between coordinators; the settings do not change it."""
_CSP = b"default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
_DOCS = ("/docs", "/redoc")
REFUSED = (401, 403)
HEADERS = [
    (b"shoal-protocol", str(PROTOCOLS[-1]).encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"content-security-policy", _CSP),
]


class RequestLimits:
    """An ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, settings: Settings, pause_s: Callable[[], float]) -> None:
        self.app, self.settings, self._pause_s = app, settings, pause_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused = refusal(scope, self.settings)
        if refused is not None:
            sending = with_headers(send, scope["path"], self._pause_s)
            for message in closing_messages(refused):
                await sending(message)
            return
        body = RequestBody(scope, receive)
        await self.app(scope, body.receive, with_headers(send, scope["path"], self._pause_s, body))


def refusal(scope: Scope, settings: Settings) -> Response | None:
    """Return the answer to a request that goes no further."""
    exchange = scope.get(SCOPE_KEY)
    if exchange is not None and exchange.crowded:
        return problems.problem(503, exchange.crowded, CODE, HINT, scope["path"])
    if not names_known_host(scope, settings):
        hint = "use one of its own names or its address, or add this name to the coordinator's setting hosts"
        text = "this coordinator is not known by the host of the request"
        return problems.problem(421, text, "host.unknown", hint, scope["path"])
    try:
        limit = _limit(scope["method"], scope["path"], settings)
        names = {settings.body_bytes_max: "body_bytes_max", settings.base_bytes_max: "base_bytes_max"}
        hint = f"raise {names[limit]} of the coordinator" if limit in names else "send less"
        check_body(scope, limit, hint)
    except Refused as error:
        return problems.of(error, scope["path"])
    return None


def names_known_host(scope: Scope, settings: Settings) -> bool:
    """Return whether a request is meant for this coordinator.

    One without a host comes from no browser; one that another coordinator forwards was checked there.
    """
    if PASSED_ON_KEY in scope:
        return True
    named = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    return all(map(settings.known_hosts.knows, named))


def _limit(method: str, path: str, settings: Settings) -> int:
    if method not in WRITING or STRANGERS.fullmatch(path):
        return STRANGER_BYTES_MAX
    if MODELS.fullmatch(path) or _SPLIT.fullmatch(path):
        return settings.base_bytes_max if path.startswith(_BASES) else settings.body_bytes_max
    if _FRAMES.fullmatch(path):
        return FRAME_BYTES_MAX
    if path.startswith("/internal/"):
        return INTERNAL_BYTES_MAX
    if _PEERING.fullmatch(path):
        return min(PEERING_BYTES_MAX, settings.json_bytes_max)
    return settings.json_bytes_max


def with_headers(
    send: Send, path: str, pause_s: Callable[[], float] | None = None, body: RequestBody | None = None
) -> Send:
    """Add security headers, and spread `Retry-After` by `pause_s`, so that not all clients come again at once.

    The API's own documentation loads its script from elsewhere. After a refused credential with an unread `body` the
    connection is closed: else all of it would have to be read. A known sender may send to the end of its body.
    """
    headers = HEADERS[:-1] if path.startswith(_DOCS) else HEADERS

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            status = message["status"]
            message["headers"] = [*message["headers"], *headers]
            if pause_s is not None and status in problems.RETRY_AFTER_S:
                message["headers"] = _spread(message["headers"], pause_s())
            if status in REFUSED and body is not None and body.is_unread:
                message["headers"].append((b"connection", b"close"))
        await send(message)

    return sending


def _spread(headers: list[tuple[bytes, bytes]], pause_s: float) -> list[tuple[bytes, bytes]]:
    """Return the headers with `pause_s` added to `Retry-After`."""
    return [
        (name, str(int(value) + math.ceil(pause_s)).encode() if name == b"retry-after" else value)
        for name, value in headers
    ]
