"""Request bodies that are buffered in memory: JSON, and the frames of nodes.

Authentication comes first: a request without a valid credential is refused before its body is read, except where
credentials are issued (`STRANGERS`, at most `STRANGER_BYTES_MAX`). All buffered bodies share a budget of
`buffered_bodies_bytes_max` bytes, in which each node, all unauthenticated senders, and each address of theirs have a
share. Bytes count from their arrival: an announced length takes nothing from others. A body that outgrows the budget is
refused, and its bytes are free again. It must arrive within `body_grace_s` from an unauthenticated sender, and within
`buffered_body_timeout_s` from others. After `RELEASE_BYTES` of incomplete or refused bodies the process returns their
memory to the system.

Models and updates are streamed to disk (`shoal.runtime.http.server.body_receiver`) and are not buffered.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
from collections import Counter
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Send

from shoal.core.errors import NotAllowed
from shoal.memory import release_freed
from shoal.runtime.http.server.exchange import WITHIN_KEY
from shoal_coordinator.http import problems
from shoal_coordinator.http.request_limits import MODELS, STRANGERS, WRITING
from shoal_coordinator.settings import Settings

STRANGERS_BYTES_MAX = 16 * 2**20
"""Limit for all strangers' bodies together."""
ADDRESS_BYTES_MAX = 2 * 2**20
"""Limit for the bodies of strangers from one address together."""
NODE_BYTES_MAX = 8 * 2**20
"""Limit for the bodies of one node together."""

RELEASE_BYTES, RELEASE_S = 64 * 2**20, 5.0
"""Memory is released `RELEASE_S` seconds after `RELEASE_BYTES` of incomplete bodies."""

_ALL, _STRANGERS, PERSON = "", "strangers", "person"


class BodyBudget:
    """The bytes of bodies that are open now: of all, of all strangers, and of each sender."""

    def __init__(self, nbytes_max: int) -> None:
        self._max, self._taken = nbytes_max, Counter[str]()

    def take(self, sender: str, nbytes: int, held: int = 0) -> bool:
        """Reserve bytes for a body that holds `held`, if the budget has them. Each share has room for one body alone.

        `sender`: `PERSON`, "node NAME", or "address ADDRESS" of a stranger.
        """
        for account, share in self._shares(sender).items():
            taken = self._taken[account]
            if taken > held and taken + nbytes > share:
                return False
        self._taken.update(dict.fromkeys(self._shares(sender), nbytes))
        return True

    def give_back(self, sender: str, nbytes: int) -> None:
        """Release what `take` has reserved."""
        for account in self._shares(sender):
            self._taken[account] -= nbytes
            if not self._taken[account]:
                del self._taken[account]

    def _shares(self, sender: str) -> dict[str, int]:
        """Return the accounts in which a sender's bytes count, and the most that each may have."""
        if sender == PERSON:
            return {_ALL: self._max}
        if sender.startswith("node "):
            return {_ALL: self._max, sender: min(self._max // 2, NODE_BYTES_MAX)}
        strangers = min(self._max // 2, STRANGERS_BYTES_MAX)
        return {_ALL: self._max, _STRANGERS: strangers, sender: min(strangers // 4, ADDRESS_BYTES_MAX)}


def _network(host: str) -> str:
    """Return an IPv4 address, or the first 64 bits of an IPv6 one, because a site has all addresses behind them."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4 or address.ipv4_mapped is not None:
        return host
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))


class _CountedBody:
    """The body of a request, whose bytes count in a budget as they come, and the answer to it."""

    def __init__(self, receive: Receive, send: Send, budget: BodyBudget, sender: str) -> None:
        self._receive, self._send, self._budget, self._sender = receive, send, budget, sender
        self._nbytes, self._is_answered = 0, False
        self.is_whole = self.is_refused = False

    async def receive(self) -> Message:
        """Return the next message. A body that does not fit ends as if its sender had hung up."""
        message: Message = {"type": "http.disconnect"} if self.is_refused else await self._receive()
        nbytes = len(message.get("body", b""))
        if nbytes and not self._budget.take(self._sender, nbytes, self._nbytes):
            self.is_refused = not self._is_answered
            return {"type": "http.disconnect"}
        self._nbytes += nbytes
        if message["type"] == "http.request" and not message.get("more_body", False):
            self.is_whole = True
        return message

    async def send(self, message: Message) -> None:
        """Pass the answer on, unless the body was refused."""
        if not self.is_refused:
            self._is_answered = True
            await self._send(message)

    def release(self) -> None:
        """Give the bytes back to the budget."""
        self._budget.give_back(self._sender, self._nbytes)


async def _dropped(receive: Receive) -> Receive:
    """Receive a body that no route reads, and return what receives an empty one in its place.

    Left unread, it would lie uncounted in the connection for as long as a poll or a stream is open.
    """
    message = await receive()
    while message.get("more_body", False):
        message = await receive()
    first = [{**message, "body": b""}]

    async def receiving() -> Message:
        return first.pop() if first else await receive()

    return receiving


class BufferedBodies:
    """An ASGI middleware around the application `api` and its fast path `app`."""

    def __init__(
        self, app: ASGIApp, api: FastAPI, settings: Settings, identify: Callable[[Request], str | None]
    ) -> None:
        self._app, self._api, self._settings, self._identify = app, api, settings, identify
        self._budget = BodyBudget(settings.buffered_bodies_bytes_max)
        self._broken = 0

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        nbytes = _announced(scope) if scope["type"] == "http" else 0
        if not nbytes or MODELS.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        if scope["method"] not in WRITING:
            self._limit_time(scope, self._settings.body_grace_s)
            await self._app(scope, await _dropped(receive), send)
            return
        try:
            sender = self._sender(scope)
        except NotAllowed as error:
            self._note(nbytes)
            await problems.of(error, scope["path"])(scope, receive, send)
            return
        body = _CountedBody(receive, send, self._budget, sender)
        try:
            await self._count(body, sender, scope, send)
        finally:
            body.release()
            if not body.is_whole:
                self._note(nbytes)

    async def _count(self, body: _CountedBody, sender: str, scope: Any, send: Send) -> None:
        is_stranger = sender.startswith("address ")
        self._limit_time(scope, self._settings.body_grace_s if is_stranger else self._settings.buffered_body_timeout_s)
        await self._app(scope, body.receive, body.send)
        if body.is_refused:
            text = "the bodies of other requests take all the memory that they may"
            hint = "try again in a moment, or raise buffered_bodies_bytes_max of the coordinator"
            await problems.problem(503, text, "bodies.full", hint, scope["path"])(scope, body.receive, send)

    def _limit_time(self, scope: Any, seconds: float) -> None:
        within: Callable[[float], None] | None = scope.get(WITHIN_KEY)
        if within is not None:
            within(seconds)

    def _note(self, nbytes: int) -> None:
        before, self._broken = self._broken, self._broken + nbytes
        if before < RELEASE_BYTES <= self._broken:
            asyncio.get_running_loop().call_later(RELEASE_S, self._release)

    def _release(self) -> None:
        self._broken = 0
        gc.collect()  # a request that broke off is garbage that points at itself, with its body; see `memory.GARBAGE`
        asyncio.get_running_loop().run_in_executor(None, release_freed)

    def _sender(self, scope: Any) -> str:
        """Return whose share a body is counted in. Raises `NotAllowed` for an unauthenticated one."""
        address = f"address {_network((scope.get('client') or ('',))[0])}"
        if STRANGERS.fullmatch(scope["path"]):
            return address
        scope["app"] = self._api
        found = self._identify(Request(scope))
        if found is None and not self._is_answered(scope):
            return address  # refused before its body is read
        if found is None:
            raise NotAllowed("no credential", code="auth.missing", hint="send Authorization: Bearer …, or sign in")
        return found

    def _is_answered(self, scope: Any) -> bool:
        """Return whether the API has a route for the request, beside the one that gives every path the dashboard."""
        routes = (route for route in self._api.routes if getattr(route, "path", "") != problems.PAGE)
        return any(route.matches(scope)[0] is Match.FULL for route in routes)


def _announced(scope: Any) -> int:
    """Return the announced length of the body. `request_limits` has checked that it is a number."""
    return int(dict(scope["headers"]).get(b"content-length", b"0"))
