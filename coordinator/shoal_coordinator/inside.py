"""What coordinators of one database ask each other: over HTTP, on the way on which requests are passed on, and signed
like these (`forwarding`).

The lead asks deputies on behalf of nodes and people whom it knows; deputies tell the lead what has happened at them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from shoal import strict_json
from shoal.core.tenure import Elsewhere
from shoal_coordinator.forwarding import VOUCHED_KEY, Forwarder, Message, Scope, Unanswered

OPERATOR = "operator"
ASK_S = 5.0
"""Longest time for an answer: nobody's poll waits for longer on a coordinator that hangs."""


def node(name: str) -> str:
    """As whom a node asks."""
    return f"node:{name}"


@dataclass(frozen=True)
class Reply:
    """An answer. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Its values. Raises `ValueError`, or `RecursionError`."""
        return strict_json.loads(self.body)


class Inside:
    """Asks others. `lead`: where the lead answers, if another one is it."""

    def __init__(self, forwarder: Forwarder, lead: Callable[[], Elsewhere | None]) -> None:
        self._forwarder, self.lead = forwarder, lead

    async def ask(
        self,
        to: Elsewhere,
        method: str,
        target: str,
        values: Any = None,
        *,
        who: str = OPERATOR,
        wait_s: float = ASK_S,
    ) -> Reply:
        """Ask, and have the whole answer; `values` are sent as JSON. Raises `Unanswered`."""
        body = b"" if values is None else values if isinstance(values, bytes) else json.dumps(values).encode()
        told: list[Message] = []

        async def take(message: Message) -> None:
            told.append(message)

        try:
            async with asyncio.timeout(wait_s):
                await self._forwarder.forward(_scope(to, method, target, len(body), who), _says(body), take, to)
        except TimeoutError:
            raise Unanswered from None
        if not told or told[-1].get("more_body", True):  # it broke off
            raise Unanswered
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in told[0]["headers"]}
        return Reply(told[0]["status"], headers, b"".join(message["body"] for message in told[1:]))

    async def stream(self, to: Elsewhere, target: str, *headers: tuple[bytes, bytes]) -> AsyncGenerator[bytes]:
        """The pieces of an answer of 200 that does not end by itself, until it breaks. To be closed (`aclosing`)."""
        pieces: asyncio.Queue[bytes | None] = asyncio.Queue(64)

        async def take(message: Message) -> None:
            if message["type"] == "http.response.body":
                await pieces.put(message["body"])
            elif message["status"] != 200:
                raise Unanswered

        async def listen() -> None:
            scope = _scope(to, "GET", target, 0, OPERATOR)
            scope["headers"] += headers
            try:
                with suppress(Unanswered):
                    await self._forwarder.forward(scope, _says(b""), take, to)
            finally:
                with suppress(asyncio.QueueFull):
                    pieces.put_nowait(None)

        listening = asyncio.create_task(listen())
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


def _scope(to: Elsewhere, method: str, target: str, length: int, who: str) -> Scope:
    path, _, query = target.partition("?")
    headers = [(b"host", urlsplit(to.address).netloc.encode()), (b"content-length", str(length).encode())]
    if length:
        headers.append((b"content-type", b"application/json"))
    place = {"method": method, "raw_path": path.encode(), "query_string": query.encode(), "scheme": "http"}
    return {**place, "headers": headers, VOUCHED_KEY: who}


def _says(body: bytes) -> Any:
    """What whoever asks has to say; it never hangs up."""
    left = [body]

    async def receive() -> Message:
        if not left:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": left.pop(), "more_body": False}

    return receive
