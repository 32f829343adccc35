"""Events of followers for the browsers of the leader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from urllib.parse import urlencode

from shoal.core.cluster.leader_lease import RemoteLeader
from shoal.runtime.http.sse import ServerEvent, parse
from shoal_coordinator.cluster.rpc import Rpc
from shoal_coordinator.telemetry.event_bus import Item, Reader

RETRY_S = 1.0
"""Seconds after a broken stream until it is opened again."""


class EventRelay:
    """Streams from followers to the readers that are open here. `route`: returns the owner of a job."""

    def __init__(self, rpc: Rpc | None, route: Callable[[str], RemoteLeader | None]) -> None:
        self._rpc, self._route = rpc, route
        self._tasks: dict[Reader, list[asyncio.Task[None]]] = {}
        self.followers: set[RemoteLeader] = set()

    def update_followers(self, live: set[RemoteLeader]) -> None:
        """Read from followers that are new. Readers that read from one that is gone end, and their browsers return."""
        for reader in list(self._tasks):
            for follower in live - self.followers:
                self._follow(reader, follower)
            if self.followers - live:
                reader.end()
        self.followers = live

    @contextmanager
    def following(self, reader: Reader, after: int | None) -> Iterator[None]:
        """Pass events of followers to a reader while the block runs. `after`: from the event of that id on."""
        self._tasks[reader] = []
        for follower in self.followers:
            self._follow(reader, follower, after)
        try:
            yield
        finally:
            for task in self._tasks.pop(reader):
                task.cancel()

    def _follow(self, reader: Reader, follower: RemoteLeader, after: int | None = None) -> None:
        if reader.job is None or self._route(reader.job) == follower:
            self._tasks[reader].append(asyncio.create_task(self._relay_events(reader, follower, after)))

    async def _relay_events(self, reader: Reader, follower: RemoteLeader, after: int | None) -> None:
        assert self._rpc is not None
        is_reconnected = False
        target = "/api/v1/stream" + (f"?{urlencode({'job': reader.job})}" if reader.job is not None else "")
        headers = [(b"last-event-id", str(after).encode())] if after is not None else []
        while True:
            async with aclosing(self._rpc.stream(follower, target, *headers)) as pieces:
                async for event in _events(pieces):
                    if event.name == "hello" and is_reconnected:
                        reader.end()  # the browser returns, and receives the events that it has missed
                    elif event.name not in ("hello", "ping"):
                        number = int(event.id) if event.id else None
                        reader.offer(Item(event.name, event.data["job"], {}, number, json.dumps(event.data)))
                    is_reconnected = True
            await asyncio.sleep(RETRY_S)


async def _events(pieces: AsyncIterable[bytes]) -> AsyncIterator[ServerEvent]:
    rest = b""
    async for piece in pieces:
        *blocks, rest = (rest + piece).split(b"\n\n")
        for event in parse([block + b"\n\n" for block in blocks]):
            yield event
