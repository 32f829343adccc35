"""An event on its way to a job's hub, and who waits for what follows."""

from __future__ import annotations

import asyncio
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
