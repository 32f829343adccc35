"""Requests between coordinators of one database: over HTTP, forwarded and signed like those of `reverse_proxy`.

The leader asks followers on behalf of nodes and people; followers tell the leader what happened at them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fastapi import Response

from shoal.core.cluster.leader_lease import RemoteLeader
from shoal.validation import strict_json
from shoal_coordinator.cluster.reverse_proxy import Message, ReverseProxy, Scope, Unanswered
from shoal_coordinator.http.client_certificates import VOUCHED_KEY
from shoal_coordinator.storage.lease_store import clock

OPERATOR = "operator"
ASK_S = 5.0
"""Longest time for an answer: no poll waits longer for a coordinator that hangs."""
DOWN_S = 1.0
"""Seconds for which a follower that did not answer is not asked again."""


def node_identity(name: str) -> str:
    """Return the identity of a node in such requests."""
    return f"node:{name}"


@dataclass(frozen=True)
class RpcReply:
    """An answer. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Parse the answer. Raises `ValueError`, or `RecursionError`."""
        return strict_json.loads(self.body)


class Rpc:
    """Client for other coordinators. `leader`: the leader's address, if another one leads."""

    def __init__(self, forwarder: ReverseProxy, leader: Callable[[], RemoteLeader | None]) -> None:
        self._proxy, self.leader = forwarder, leader

    async def call(
        self,
        to: RemoteLeader,
        method: str,
        target: str,
        values: Any = None,
        *,
        who: str = OPERATOR,
        wait_s: float = ASK_S,
    ) -> RpcReply:
        """Ask, and have the whole answer; `values` are sent as JSON. Raises `Unanswered`."""
        body = b"" if values is None else values if isinstance(values, bytes) else json.dumps(values).encode()
        messages: list[Message] = []

        async def take(message: Message) -> None:
            messages.append(message)

        try:
            async with asyncio.timeout(wait_s):
                await self._proxy.forward(_scope(to, method, target, len(body), who), _receive(body), take, to)
        except TimeoutError:
            raise Unanswered from None
        if not messages or messages[-1].get("more_body", True):  # it broke off
            raise Unanswered
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in messages[0]["headers"]}
        return RpcReply(messages[0]["status"], headers, b"".join(message["body"] for message in messages[1:]))

    async def stream(self, to: RemoteLeader, target: str, *headers: tuple[bytes, bytes]) -> AsyncGenerator[bytes]:
        """Yield the pieces of an endless answer of 200, until it breaks. To be closed (`aclosing`)."""
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
                    await self._proxy.forward(scope, _receive(b""), take, to)
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


class FollowerCalls:
    """Requests of the leader to its followers. `live`: returns those that answer, by name.

    One that does not answer is not asked again for `DOWN_S` seconds, so that no poll waits for it twice.
    """

    def __init__(self, rpc: Rpc | None, live: Callable[[], dict[str, RemoteLeader]]) -> None:
        self._rpc, self._live = rpc, live
        self._down_until: dict[RemoteLeader, float] = {}

    async def call(
        self, to: RemoteLeader, method: str, target: str, values: Any = None, who: str = OPERATOR
    ) -> RpcReply | None:
        """Return the answer of a follower; None if there is none."""
        if self._rpc is None or self._down_until.get(to, 0.0) > clock():
            return None
        try:
            return await self._rpc.call(to, method, target, values, who=who)
        except Unanswered:
            self._down_until = {one: until for one, until in self._down_until.items() if until > clock()}
            self._down_until[to] = clock() + DOWN_S
            return None

    async def call_all(self, method: str, target: str, values: Any = None, who: str = OPERATOR) -> list[RpcReply]:
        """Ask all followers at once; return the answers."""
        found = await asyncio.gather(*(self.call(to, method, target, values, who) for to in self._live().values()))
        return [reply for reply in found if reply is not None]

    async def get_all(self, target: str) -> list[Any]:
        """Return what all followers answer there, as JSON values."""
        return [reply.json() for reply in await self.call_all("GET", target) if reply.status == 200]


def to_response(reply: RpcReply) -> Response:
    """Return a follower's answer as a response."""
    found = Response(reply.body, reply.status, media_type=reply.headers.get("content-type"))
    if "location" in reply.headers:
        found.headers["location"] = reply.headers["location"]
    return found


def _scope(to: RemoteLeader, method: str, target: str, length: int, who: str) -> Scope:
    path, _, query = target.partition("?")
    headers = [(b"host", urlsplit(to.address).netloc.encode()), (b"content-length", str(length).encode())]
    if length:
        headers.append((b"content-type", b"application/json"))
    place = {"method": method, "raw_path": path.encode(), "query_string": query.encode(), "scheme": "http"}
    return {**place, "headers": headers, VOUCHED_KEY: who}


def _receive(body: bytes) -> Any:
    """Return an ASGI receive function with this body, which never disconnects."""
    left = [body]

    async def receive() -> Message:
        if not left:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": left.pop(), "more_body": False}

    return receive
