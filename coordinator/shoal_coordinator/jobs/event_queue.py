"""Events on their way to a job's hub, and who waits for what follows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from shoal.core.machine import Effect, Event


class Waiting:
    """Ends with the effects of the event, or with what kept it from happening. `body`: see `journal.Entry`."""

    __slots__ = ("body", "event", "future")

    def __init__(self, event: Event, body: bytes | None = None) -> None:
        self.event, self.body = event, body
        self.future: asyncio.Future[Sequence[Effect]] = asyncio.get_running_loop().create_future()

    def succeed(self, effects: Sequence[Effect]) -> None:
        if not self.future.done():
            self.future.set_result(effects)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # a timer's failure is nobody's: do not warn


class Line:
    """All that wait for the batch in hand to be over, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._came = asyncio.Event()
        self.ends = False
        """Whether nothing more will be put."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, waiting: Waiting) -> None:
        self._waiting.append(waiting)
        self._came.set()

    def end(self) -> None:
        """Whoever is still in line has its turn; nobody waits for others to come."""
        self.ends = True
        self._came.set()

    async def come(self) -> None:
        """Wait until there is somebody, or this is the end."""
        if not self._waiting and not self.ends:
            self._came.clear()
            await self._came.wait()

    def take(self, most: int) -> list[Waiting]:
        """The first of them."""
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def tell(self, error: Exception) -> None:
        """Nobody waits any longer: they hear this. Their events keep their places, and happen when it is their turn."""
        for waiting in self._waiting:
            waiting.fail(error)
