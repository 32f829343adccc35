"""Events on their way to a job's hub, and who waits for what follows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from shoal.core.protocol.machine import Effect, HubEvent


class PendingEvent:
    """An event whose submitter waits for its effects, or its error. `blob`: the payload of `journal.JournalEntry`."""

    __slots__ = ("body", "event", "future")

    def __init__(self, event: HubEvent, body: bytes | None = None) -> None:
        self.event, self.body = event, body
        self.future: asyncio.Future[Sequence[Effect]] = asyncio.get_running_loop().create_future()

    def succeed(self, effects: Sequence[Effect]) -> None:
        if not self.future.done():
            self.future.set_result(effects)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # no caller waits for a timer: do not warn


class EventQueue:
    """Queue of events that wait for the present batch, in their order."""

    def __init__(self) -> None:
        self._waiting: deque[PendingEvent] = deque()
        self._changed = asyncio.Event()
        self.is_closed = False
        """True if no more events may be put."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, waiting: PendingEvent) -> None:
        self._waiting.append(waiting)
        self._changed.set()

    def close(self) -> None:
        """Close the queue: present events are handled, no others come."""
        self.is_closed = True
        self._changed.set()

    async def wait(self) -> None:
        """Wait until there is an event, or the queue is closed."""
        if not self._waiting and not self.is_closed:
            self._changed.clear()
            await self._changed.wait()

    def take(self, most: int) -> list[PendingEvent]:
        """Return the first events."""
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def fail_all(self, error: Exception) -> None:
        """Fail all waiters. Their events keep their places, and happen in their turn."""
        for waiting in self._waiting:
            waiting.fail(error)
