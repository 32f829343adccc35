"""The loop that feeds events to a state machine and carries out what follows.

    submit ─ queue ─ batch ─ feed: decide and save ─ apply: send and start ─ answer

Nothing of a batch is applied before `feed` has returned: what it saves is durable before anything is sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from math import inf
from typing import Any, Generic, TypeVar

from shoal.runtime.threads import in_thread

Event = TypeVar("Event")
Outcome = TypeVar("Outcome")
Answer = TypeVar("Answer")

Feed = Callable[[Sequence[Event]], Awaitable[Sequence[Outcome | Exception]]]
"""Feeds a batch and saves what must last; returns one outcome per event. An outcome that is an exception fails the
event's submitter alone; an exception that is raised ends `EventPump.run`."""


class _PendingEvent(Generic[Event, Answer]):
    """An event in the queue, and the future that its submitter awaits, if any."""

    __slots__ = ("_answer", "event")

    def __init__(self, event: Event, answer: asyncio.Future[Answer] | None = None) -> None:
        self.event, self._answer = event, answer

    def succeed(self, answer: Answer) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class EventPump(Generic[Event, Outcome, Answer]):
    """A pump of one state machine. It feeds at most `batch_max` events at a time, in their order.

    `apply` runs in the event loop and returns the answer for the submitter; `alarm_event` is fed at the time of
    `set_alarm`, measured by `clock`; an event that is not fed any more gets `answer_at_end`.
    """

    def __init__(
        self,
        feed: Feed[Event, Outcome],
        apply: Callable[[Event, Outcome], Answer],
        *,
        alarm_event: Event,
        answer_at_end: Answer,
        clock: Callable[[], float],
        batch_max: int = 1,
    ) -> None:
        self._feed, self._apply, self._clock, self._batch_max = feed, apply, clock, batch_max
        self._alarm_event, self._answer_at_end = alarm_event, answer_at_end
        self._queue: deque[_PendingEvent[Event, Answer]] = deque()
        self._changed = asyncio.Event()
        self._closed = False
        self._alarm: asyncio.TimerHandle | None = None
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, event: Event) -> asyncio.Future[Answer]:
        """Queue an event; return the future of its answer."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._put(_PendingEvent(event, answer))
        return answer

    def submit_nowait(self, event: Event) -> None:
        """Queue an event whose answer is not needed."""
        self._put(_PendingEvent(event))

    def submit_threadsafe(self, event: Event) -> None:
        """Queue an event from any thread, while the pump runs."""
        self.call_threadsafe(partial(self.submit_nowait, event))

    def call_threadsafe(self, call: Callable[[], None]) -> None:
        """Call a function in the event loop of the pump, from any thread, while the pump runs."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def set_alarm(self, at: float) -> None:
        """Feed the alarm event at this time instead of any earlier one; infinite: never."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if at < inf and not self._closed:
            after_s = max(0.0, at - self._clock())
            self._alarm = asyncio.get_running_loop().call_later(after_s, self.submit_nowait, self._alarm_event)

    def spawn(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine beside the machine until `run` ends. An error that it raises ends `run`."""
        assert self._group is not None
        task = self._group.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        """Accept no more events, and end `run` after those in the queue."""
        self._closed = True
        self._changed.set()

    def stop(self) -> None:
        """Accept no more events, and end `run` after the present batch."""
        self.close()
        while self._queue:
            self._queue.popleft().succeed(self._answer_at_end)

    async def run(self, first: Event) -> None:
        """Feed `first`, then the queue, until `close` or `stop`. Raises what a feed or a spawned coroutine raises, in a
        group."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                batch = [_PendingEvent[Event, Answer](first)]
                while batch:
                    await self._handle(batch)
                    batch = await self._next_batch()
            finally:
                self._end()

    def _put(self, pending: _PendingEvent[Event, Answer]) -> None:
        if self._closed:
            pending.succeed(self._answer_at_end)
            return
        self._queue.append(pending)
        self._changed.set()

    async def _next_batch(self) -> list[_PendingEvent[Event, Answer]]:
        while not self._queue and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        return [self._queue.popleft() for _ in range(min(self._batch_max, len(self._queue)))]

    async def _handle(self, batch: list[_PendingEvent[Event, Answer]]) -> None:
        try:
            outcomes = await self._feed([pending.event for pending in batch])
            for pending, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    pending.fail(outcome)
                else:
                    pending.succeed(self._apply(pending.event, outcome))
        finally:
            for pending in batch:
                pending.succeed(self._answer_at_end)  # no caller waits for ever, even after an error

    def _end(self) -> None:
        self.stop()
        self.set_alarm(inf)
        for task in self._tasks:
            task.cancel()


def feed_in_thread(
    feed: Callable[[Event], Outcome],
) -> Callable[[Sequence[Event]], Awaitable[Sequence[Outcome | Exception]]]:
    """Return a feed that passes each event of a batch to a blocking function, one after the other, in a thread."""

    async def feed_batch(events: Sequence[Event]) -> list[Outcome | Exception]:
        return [await in_thread(partial(feed, event)) for event in events]

    return feed_batch
