"""Which coordinator answers, for nodes that may do without it: `Shoal-Life: JOB=TERM.LIFE`, with commas between jobs.

The life is a number drawn at the start of the process, and journaled with it (`Boot`). Two coordinators, one of them a
copy of the other, may come to be of one term; nodes hear the one that they heard first (`shoal.core.failover.Grant`).
So every answer that a node may act on says it, refusals too. (What is carried for others, `relay`, names it in what is
signed.) Strangers are told nothing.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping, Sequence

from shoal_coordinator.driver import Driver
from shoal_coordinator.guard import App, Message, Receive, Send
from shoal_coordinator.service import Coordinator

HEADER = b"shoal-life"
_ALL = "/api/v1/work"
_ONE = re.compile(r"/api/v1/jobs/([^/]+)/(?:reports|failures|status|knock|join|papers|manifest|peering|bodies/[^/]+)")


class Lives:
    """An ASGI middleware around the application."""

    def __init__(self, app: App, coordinator: Coordinator) -> None:
        self._app, self._coordinator = app, coordinator

    async def __call__(self, scope: MutableMapping[str, object], receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] != 401:
                told = named(self._of(str(scope["path"])))
                message["headers"] = [*message["headers"], *([(HEADER, told)] if told else [])]
            await send(message)

        await self._app(scope, receive, sending if scope["type"] == "http" else send)

    def _of(self, path: str) -> Sequence[Driver]:
        """The jobs that an answer there is about."""
        if path == _ALL:
            return self._coordinator.running()
        found = _ONE.fullmatch(path)
        record = self._coordinator.records.get(found[1]) if found is not None else None
        return [record.driver] if record is not None and record.driver is not None else []


def named(drivers: Sequence[Driver]) -> bytes:
    """The header's text for these jobs; empty if nodes can do without none of them."""
    lives = [f"{one.name}={one.term}.{one.life}" for one in drivers if one.spec.gossip.allowed and one.life]
    return ", ".join(lives).encode()
