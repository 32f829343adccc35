"""Request bodies that are buffered in memory: JSON, and the frames of nodes.

Authentication comes first: a request without a valid credential is refused before its body is read, except where
credentials are issued (`STRANGERS`, at most `STRANGER_BYTES_MAX`). All buffered bodies share a budget of
`buffered_bodies_bytes_max` bytes, in which each node and all unauthenticated senders have a share. A body must arrive
within `body_grace_s` from an unauthenticated sender, and within `buffered_body_timeout_s` from others. After
`RELEASE_BYTES` of incomplete or refused bodies the process returns their memory to the system.

Models and updates are streamed to disk (`shoal.runtime.http.server.body_receiver`) and are not buffered.
"""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Send

from shoal.core.errors import NotAllowed
from shoal.runtime.http.server.exchange import WITHIN_KEY
from shoal.runtime.memory import release_freed
from shoal_coordinator.http import problems
from shoal_coordinator.http.request_limits import MODELS, STRANGERS, WRITING
from shoal_coordinator.settings import Settings

STRANGERS_BYTES_MAX = 16 * 2**20
"""Of all strangers' bodies together."""
NODE_BYTES_MAX = 8 * 2**20
"""Of the bodies of one node together."""

RELEASE_BYTES, RELEASE_S = 64 * 2**20, 5.0
"""After that many bytes of bodies that did not come as a whole, memory is released, so many seconds later."""

_STRANGER, PERSON = "", "person"


class BodyBudget:
    """The bytes of bodies that are open now: of all, and of each sender."""

    def __init__(self, nbytes_max: int) -> None:
        self._max, self._all = nbytes_max, 0
        self._of: defaultdict[str, int] = defaultdict(int)

    def take(self, sender: str, nbytes: int) -> bool:
        """Reserve bytes, if the budget has them. A sender whose only body this is has room, whatever its share."""
        if self._all and self._all + nbytes > self._max:
            return False
        if self._of[sender] and self._of[sender] + nbytes > _share(sender, self._max):
            return False
        self._all += nbytes
        self._of[sender] += nbytes
        return True

    def give_back(self, sender: str, nbytes: int) -> None:
        """Release what `take` has reserved."""
        self._all -= nbytes
        self._of[sender] -= nbytes
        if not self._of[sender]:
            del self._of[sender]


def _share(sender: str, nbytes_max: int) -> int:
    if sender == PERSON:
        return nbytes_max
    return min(nbytes_max // 2, STRANGERS_BYTES_MAX if sender == _STRANGER else NODE_BYTES_MAX)


class _TrackedBody:
    """The body of a request, and whether all of it was received."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self.is_whole = receive, False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self.is_whole = True
        return message


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
        body = _TrackedBody(receive)
        try:
            await self._hold(nbytes, scope, body.receive, send)
        finally:
            if not body.is_whole:
                self._note(nbytes)

    async def _hold(self, nbytes: int, scope: Any, receive: Receive, send: Send) -> None:
        try:
            sender = self._sender(scope)
        except NotAllowed as error:
            await problems.of(error, scope["path"])(scope, receive, send)
            return
        if not self._budget.take(sender, nbytes):
            text = "the bodies of other requests take all the memory that they may"
            hint = "try again in a moment, or raise buffered_bodies_bytes_max of the coordinator"
            for message in problems.raw(503, text, "bodies.full", hint, scope["path"]):
                await send(message)
            return
        within: Callable[[float], None] | None = scope.get(WITHIN_KEY)
        if within is not None:
            within(self._settings.buffered_body_timeout_s if sender else self._settings.body_grace_s)
        try:
            await self._app(scope, receive, send)
        finally:
            self._budget.give_back(sender, nbytes)

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
        if scope["method"] not in WRITING or STRANGERS.fullmatch(scope["path"]):
            return _STRANGER
        scope["app"] = self._api
        found = self._identify(Request(scope))
        if found is None and not self._is_answered(scope):
            return _STRANGER  # refused before its body is read
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
