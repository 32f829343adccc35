"""Compress the JSON answers that browsers ask for.

Only answers to GET are compressed, only JSON, and only for requests that name gzip in `Accept-Encoding`. Nodes and our
own command line ask for `identity`, so their bytes stay as they are. The event stream has another media type: it is
passed on piece by piece.

Compression over TLS leaks a secret when an answer contains the secret and a text that an attacker chooses, and the
attacker can make a browser ask for it many times (BREACH). Here no answer to a browser's GET contains a secret: tokens
are given out by POST, credentials are in headers, which are not compressed, and the addresses of stored models, which
are signed, are asked for by nodes. The session cookie is `SameSite=Strict`, so that a request which another site causes
has no session.
"""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BYTES_MIN = 1024
"""Shorter answers fit into one packet as they are."""
THREAD_BYTES = 32 * 1024
"""Longer answers are compressed in a thread: at this level gzip takes about 15 ms for a megabyte of JSON."""
LEVEL = 5
_JSON = re.compile(r"application/(problem\+)?json\b")
_REFUSED = re.compile(r";\s*q=0(\.0*)?\s*$")


def accepts(headers: Mapping[str, str], encoding: str) -> bool:
    """Return whether a request's `Accept-Encoding` names `encoding`, with a quality that is not zero."""
    named = (part.strip() for part in headers.get("accept-encoding", "").lower().split(","))
    return any(part.partition(";")[0].strip() == encoding and not _REFUSED.search(part) for part in named)


class Compression:
    """An ASGI middleware around the application."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":
            send = _Compressing(send, accepts(Headers(scope=scope), "gzip")).send
        await self.app(scope, receive, send)


class _Compressing:
    """One answer. Its head waits for its first piece; an answer that gets compressed has only one."""

    def __init__(self, send: Send, wanted: bool) -> None:
        self._send, self._wanted = send, wanted
        self._head: Message | None = None

    async def send(self, message: Message) -> None:
        """Pass on the head and the body, compressed where that helps."""
        if message["type"] == "http.response.start" and _is_json(message):
            self._head = message
            return
        head, self._head = self._head, None
        if head is not None:
            headers = MutableHeaders(raw=list(head["headers"]))
            headers.add_vary_header("Accept-Encoding")
            body = message.get("body", b"")
            if self._wanted and not message.get("more_body", False) and len(body) >= BYTES_MIN:
                message = {**message, "body": await _compressed(body)}
                headers["Content-Encoding"] = "gzip"
                headers["Content-Length"] = str(len(message["body"]))
            await self._send({**head, "headers": headers.raw})
        await self._send(message)


def _is_json(head: Message) -> bool:
    headers = Headers(raw=head["headers"])
    return bool(_JSON.match(headers.get("content-type", ""))) and "content-encoding" not in headers


async def _compressed(body: bytes) -> bytes:
    if len(body) < THREAD_BYTES:
        return gzip.compress(body, LEVEL, mtime=0)
    return await asyncio.to_thread(gzip.compress, body, LEVEL, mtime=0)
