"""The outermost layer: what a request may be at all, decided before authentication and before anything is parsed.

It reads no body. A body must announce its length; one that is too long for its path, or compressed, is answered at once
and the connection closed. (Receipt deadlines, which must see the socket, are in `shoal_coordinator.protocol`.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from shoal.wire import HEAD_BYTES_MAX, INLINE_BYTES_MAX, PROTOCOLS
from shoal_coordinator import problems
from shoal_coordinator.connection_limit import HINT
from shoal_coordinator.forwarding import PASSED_ON_KEY
from shoal_coordinator.protocol import SCOPE_KEY
from shoal_coordinator.settings import Settings
from shoal_coordinator.steering import Steering

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

MODELS = re.compile(r"/api/v1/(jobs/[^/]+/bodies|bodies)/[0-9a-f]{64}")
"""Where models and updates are sent to."""
STRANGERS = re.compile(r"/api/v1/(enrol|session|jobs/[^/]+/readmission)")
"""Where a body is taken from senders without a credential: to get one."""
WRITING = ("POST", "PUT", "DELETE")
"""The methods of the API's routes that may have a body; nobody reads one of another request."""
_FRAMES = re.compile(r"/api/v1/jobs/[^/]+/(reports|failures|relay)")
_PEERING = re.compile(r"/api/v1/jobs/[^/]+/peering")
STRANGER_BYTES_MAX = 16 * 1024
"""Where no credential is needed, and where nobody reads a body."""
PEERING_BYTES_MAX = 256 * 1024
INSIDE_BYTES_MAX = 2**20
"""Of what coordinators tell each other, whatever people may send."""
_CSP = b"default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
_DOCS = ("/docs", "/redoc")
REFUSED = (401, 403)
HEADERS = [
    (b"shoal-protocol", str(PROTOCOLS[-1]).encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"content-security-policy", _CSP),
]


class Guard:
    """An ASGI middleware around the whole application."""

    def __init__(self, app: App, settings: Settings, steering: Steering) -> None:
        self.app, self.settings, self.steering = app, settings, steering

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused = refusal(scope, self.settings)
        if refused is not None:
            sending = with_headers(send, scope["path"], self.steering)
            for message in problems.raw(*refused, scope["path"]):
                await sending(message)
            return
        body = _Body(scope, receive)
        await self.app(scope, body.receive, with_headers(send, scope["path"], self.steering, body))


def refusal(scope: MutableMapping[str, Any], settings: Settings) -> tuple[int, str, str, str] | None:
    """(status, detail, code, hint) of the answer to a request that goes no further."""
    exchange = scope.get(SCOPE_KEY)
    if exchange is not None and exchange.crowded:
        return 503, exchange.crowded, "connections.full", HINT
    if not names_known_host(scope, settings):
        hint = "use one of its own names or its address, or add this name to the coordinator's setting hosts"
        return 421, "this coordinator is not known by the host of the request", "host.unknown", hint
    return _refused_body(scope, settings)


def _refused_body(scope: MutableMapping[str, Any], settings: Settings) -> tuple[int, str, str, str] | None:
    headers = dict(scope["headers"])
    if headers.get(b"content-encoding", b"identity") != b"identity":
        return 415, "compressed bodies are not accepted", "body.encoding", "send the body as it is"
    if b"transfer-encoding" in headers:
        return 411, "the body's length must be announced", "body.length-required", "send a Content-Length header"
    try:
        length = int(headers.get(b"content-length", b"0"))
    except ValueError:
        return 400, "Content-Length is no number", "body.length", "send the body's length in bytes"
    limit = _limit(scope["method"], scope["path"], settings)
    if not 0 <= length <= limit:
        hint = "raise body_bytes_max of the coordinator" if limit == settings.body_bytes_max else "send less"
        return 413, f"a body of {length} bytes; at most {limit} here", "body.too-large", hint
    return None


def names_known_host(scope: MutableMapping[str, Any], settings: Settings) -> bool:
    """Return whether a request is meant for this coordinator. One that names no host comes from no browser; one that
    another coordinator has passed on was looked at there."""
    if PASSED_ON_KEY in scope:
        return True
    named = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    return all(map(settings.known_hosts.knows, named))


def _limit(method: str, path: str, settings: Settings) -> int:
    if method not in WRITING or STRANGERS.fullmatch(path):
        return STRANGER_BYTES_MAX
    if MODELS.fullmatch(path):
        return settings.body_bytes_max
    if _FRAMES.fullmatch(path):
        return 4 + HEAD_BYTES_MAX + INLINE_BYTES_MAX
    if path.startswith("/inside/"):
        return INSIDE_BYTES_MAX
    if _PEERING.fullmatch(path):
        return min(PEERING_BYTES_MAX, settings.json_bytes_max)
    return settings.json_bytes_max


class _Body:
    """What a request sends, and whether all of it was read."""

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive) -> None:
        self._scope, self._receive = scope, receive
        self._more = True

    async def receive(self) -> Message:
        message = await self._receive()
        self._more = message.get("more_body", False)
        return message

    @property
    def unread(self) -> bool:
        announced = (name == b"content-length" and value != b"0" for name, value in self._scope["headers"])
        return self._more and any(announced)


def with_headers(send: Send, path: str, steering: Steering | None = None, body: _Body | None = None) -> Send:
    """Add the headers that make a browser careful; and who is to come again is told when, so that not all come at once.

    The API's own documentation loads its script from elsewhere. The connection is closed on whoever may not send what
    he is sending: else all of it would have to be read. Whom we know may send to the end of his `body` and then reads
    why it was refused.
    """
    headers = HEADERS[:-1] if path.startswith(_DOCS) else HEADERS

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            status = message["status"]
            message["headers"] = [*message["headers"], *headers]
            if steering is not None and status in problems.RETRY_AFTER_S:
                message["headers"] = _spread(message["headers"], steering.pause_s())
            if status in REFUSED and body is not None and body.unread:
                message["headers"].append((b"connection", b"close"))
        await send(message)

    return sending


def _spread(headers: list[tuple[bytes, bytes]], pause_s: float) -> list[tuple[bytes, bytes]]:
    """With so much more in a `Retry-After` that stands there."""
    return [
        (name, str(int(value) + math.ceil(pause_s)).encode() if name == b"retry-after" else value)
        for name, value in headers
    ]
