"""Limits of a request's body, decided by its headers: no compression, an announced length, a number of bytes."""

from __future__ import annotations

from starlette.types import Message, Receive, Scope

from shoal.core.errors import Refused

STATUS = {
    "body.length": 400,
    "path.unknown": 404,
    "body.length-required": 411,
    "body.too-large": 413,
    "body.encoding": 415,
    "host.unknown": 421,
}
"""The HTTP status of codes that every server uses."""


def check_body(scope: Scope, bytes_max: int, hint: str) -> None:
    """Raise `Refused` unless a request's body may be read. `hint`: the advice for a body that is too large."""
    headers = dict(scope["headers"])
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise Refused("compressed bodies are not accepted", code="body.encoding", hint="send the body as it is")
    if b"transfer-encoding" in headers:
        hint = "send a Content-Length header"
        raise Refused("the body's length must be announced", code="body.length-required", hint=hint)
    try:
        length = int(headers.get(b"content-length", b"0"))
    except ValueError:
        hint = "send the body's length in bytes"
        raise Refused("Content-Length is not a number", code="body.length", hint=hint) from None
    if not 0 <= length <= bytes_max:
        raise Refused(f"a body of {length} bytes; at most {bytes_max} here", code="body.too-large", hint=hint)


class RequestBody:
    """The body of a request on its way to an application."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        headers = dict(scope["headers"])
        self.is_unread = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        """True if part of the body has not been received yet."""

    async def receive(self) -> Message:
        """Receive the next message."""
        message = await self._receive()
        self.is_unread = self.is_unread and message.get("more_body", False)
        return message
