"""Event bus for browsers. A slow reader is dropped, and catches up from the feed when it reconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

BEHIND_MAX = 2_000
"""Items that a reader may be behind."""

PING_S = 15.0


@dataclass(frozen=True)
class Item:
    """One server-sent event. `id` only when it can be replayed."""

    topic: str
    job: str
    data: dict[str, Any]
    id: int | None = None
    rendered: str = ""
    """The event's data as JSON, if another coordinator has rendered it."""


class Reader:
    """One open stream."""

    def __init__(self, job: str | None) -> None:
        self.job = job
        self._queue: asyncio.Queue[Item | None] = asyncio.Queue(BEHIND_MAX)
        self.dropped = False

    def offer(self, item: Item) -> None:
        if self.job is not None and item.job not in ("", self.job):  # items without a job concern all
            return
        try:
            self._queue.put_nowait(item)
        except asyncio.QueueFull:
            self.dropped = True

    async def items(self) -> AsyncIterator[Item | None]:
        """Yield items as they come; None after a time without any, to keep the connection alive."""
        while not self.dropped:
            try:
                item = await asyncio.wait_for(self._queue.get(), PING_S)
            except TimeoutError:
                yield None
                continue
            if item is None:
                return
            yield item

    def end(self) -> None:
        """End the stream, because the coordinator stops."""
        self.dropped = True
        if not self._queue.full():
            self._queue.put_nowait(None)


class EventBus:
    """All open streams."""

    def __init__(self) -> None:
        self._readers: set[Reader] = set()

    def open(self, job: str | None) -> Reader:
        reader = Reader(job)
        self._readers.add(reader)
        return reader

    def close(self, reader: Reader) -> None:
        self._readers.discard(reader)

    def publish(self, item: Item) -> None:
        for reader in self._readers:
            reader.offer(item)

    @property
    def has_readers(self) -> bool:
        return bool(self._readers)

    def end(self) -> None:
        for reader in self._readers:
            reader.end()
