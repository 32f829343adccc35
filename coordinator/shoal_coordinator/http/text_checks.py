"""No text that cannot be stored and shown everywhere gets in, by any route: neither half a character nor a NUL.

It looks at whole requests, so that no route and no model can forget it. Heads of frames, signed documents and messages
of peers come through `shoal.validation.strict_json`, which refuses the same.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.validation.strict_json import text_flaw
from shoal_coordinator.http import problems
from shoal_coordinator.http.problems import TEXT_CODE, TEXT_HINT


class TextChecks:
    """An ASGI middleware inside `RequestLimits`. It checks a JSON body when all of it has arrived."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if text_flaw(scope["path"]) or b"%00" in scope["query_string"]:
            await problems.problem(422, "an address with a NUL character", TEXT_CODE, TEXT_HINT)(scope, receive, send)
            return
        kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        await self.app(scope, _Looking(receive).receive if b"json" in kind.lower() else receive, send)


class _Looking:
    """A request's JSON, as it comes."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._body = bytearray()

    async def receive(self) -> Message:
        """Return the next piece. Raises `HTTPException` with the last one, if the body has a fault."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._body += message.get("body", b"")
            if not message.get("more_body", False) and (wrong := _flaw(bytes(self._body))):
                raise HTTPException(422, wrong)
        return message


def _flaw(body: bytes) -> str:
    """Return the fault of a text in a JSON body; empty if there is none or it is not JSON, which is checked
    elsewhere."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return "a body that is not UTF-8"
    if "\0" in text:  # in JSON it is not a character at all, and to others a sign of UTF-16
        return "a body with a NUL character"
    if "\\u" not in text:
        return ""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return text_flaw(found)
