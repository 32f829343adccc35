"""Request bodies that are held in memory until they are whole: JSON, and the frames of nodes.

    identify    a sender without a valid credential is refused before a byte of the body is read
    budget      all such bodies together take at most `held_bodies_bytes_max`; so one sender cannot take all of it,
                a node has a share of its own, and all strangers together have another
    deadline    the whole body must come within `body_grace_s` from a stranger, and within `held_body_s` from others

    give back   after `RELEASE_BYTES` of bodies that broke off or were refused, their memory is returned to the system

Strangers may send a body where they get a credential, `STRANGERS`: at most `STRANGER_BYTES_MAX`. Models and updates go
to the disk as they come (`shoal_coordinator.intake`) and are none of this.
"""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.routing import Match

from shoal.core.errors import NotAllowed
from shoal_coordinator import problems
from shoal_coordinator.access import principal_of
from shoal_coordinator.guard import MODELS, STRANGERS, WRITING, App, Message, Receive, Send
from shoal_coordinator.memory import release_freed
from shoal_coordinator.protocol import WITHIN_KEY
from shoal_coordinator.settings import Settings

STRANGERS_BYTES_MAX = 16 * 2**20
"""Of all strangers' bodies together."""
NODE_BYTES_MAX = 8 * 2**20
"""Of the bodies of one node together."""

RELEASE_BYTES, RELEASE_S = 64 * 2**20, 5.0
"""After that many bytes of bodies that did not come as a whole, memory is released, so many seconds later."""

_STRANGER, _PERSON = "", "person"


class Budget:
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
    if sender == _PERSON:
        return nbytes_max
    return min(nbytes_max // 2, STRANGERS_BYTES_MAX if sender == _STRANGER else NODE_BYTES_MAX)


class _Body:
    """The body of a request, and whether all of it was received."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self.is_whole = receive, False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self.is_whole = True
        return message


class HeldBodies:
    """An ASGI middleware around the application `api` and its fast path `app`."""

    def __init__(self, app: App, api: FastAPI, settings: Settings) -> None:
        self._app, self._api, self._settings = app, api, settings
        self._budget = Budget(settings.held_bodies_bytes_max)
        self._broken = 0

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        nbytes = _announced(scope) if scope["type"] == "http" else 0
        if not nbytes or MODELS.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        body = _Body(receive)
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
            hint = "try again in a moment, or raise held_bodies_bytes_max of the coordinator"
            for message in problems.raw(503, text, "bodies.full", hint, scope["path"]):
                await send(message)
            return
        within: Callable[[float], None] | None = scope.get(WITHIN_KEY)
        if within is not None:
            within(self._settings.held_body_s if sender else self._settings.body_grace_s)
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
        """Return whose share a body is taken from. Raises `NotAllowed` for one that nobody waits for."""
        if scope["method"] not in WRITING or STRANGERS.fullmatch(scope["path"]):
            return _STRANGER
        scope["app"] = self._api
        found = principal_of(Request(scope))
        if found is None and not self._is_answered(scope):
            return _STRANGER  # who is told so before anybody reads the body
        if found is None:
            raise NotAllowed("no credential", code="auth.missing", hint="send Authorization: Bearer …, or sign in")
        return f"node {found.name}" if found.role == "node" else _PERSON

    def _is_answered(self, scope: Any) -> bool:
        """Return whether the API has a route for the request, beside the one that gives every path the dashboard."""
        routes = (route for route in self._api.routes if getattr(route, "path", "") != problems.PAGE)
        return any(route.matches(scope)[0] is Match.FULL for route in routes)


def _announced(scope: Any) -> int:
    """Return the length of the body that a request announces. The guard has seen that it is a number."""
    return int(dict(scope["headers"]).get(b"content-length", b"0"))
