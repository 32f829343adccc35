"""Blocking calls beside the event loop, in daemon threads: one that hangs never keeps the process from ending.

`in_thread` gives each call a thread to itself (links, small files): one that has made its call and waits for another,
or else a new one, so that no call ever waits for its turn. A `SerialExecutor` is one thread that lives on and makes
its calls one after the other (training), so that what libraries keep per thread, such as OpenMP's pools, is made once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")

IDLE_S = 10.0
"""Seconds that a thread waits for another call before it ends."""


class _Call:
    """A call on its way through a thread, and the future that its caller awaits."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[object] = self._loop.create_future()
        self._call, self._context = call, copy_context()

    def run(self) -> None:
        """Make the call in a thread, and pass its outcome to the loop.

        An error holds the frames that it came through. None of them may hold the call, whose future holds the error:
        what a failed step has on a GPU would stay there.
        """
        try:
            result = self._context.run(self._call)
        except BaseException as error:  # noqa: BLE001 - it is the caller's, who awaits it
            self._deliver(self._fail, error)
        else:
            self._deliver(self._succeed, result)
        finally:
            del self

    def run_if_awaited(self) -> None:
        """Make the call if it is still awaited."""
        if not self.future.cancelled():
            self.run()
        del self  # as in `run`

    def _deliver(self, settle: Callable[[T], None], value: T) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: no caller is left
            self._loop.call_soon_threadsafe(settle, value)

    def _succeed(self, result: object) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, StopIteration | asyncio.CancelledError):  # a future takes these for something else
            error = RuntimeError(f"{type(error).__name__} came out of a thread")
        if not self.future.done():
            self.future.set_exception(error)


_idle: list[SimpleQueue[_Call]] = []
"""Mailboxes of waiting threads. A caller that takes one out sends it a call. (Both operations are atomic.)"""
os.register_at_fork(after_in_child=_idle.clear)  # threads do not come along


async def in_thread(call: Callable[[], T]) -> T:
    """Make a blocking call in a thread that does nothing else meanwhile, and await it. Cancelling stops the waiting,
    not the call."""
    made = _Call(call)
    try:
        mailbox = _idle.pop()
    except IndexError:
        mailbox = SimpleQueue()
        threading.Thread(target=_make_calls, args=(mailbox,), name="shoal-call", daemon=True).start()
    mailbox.put(made)
    try:
        return await made.future  # type: ignore[return-value]  # the future is typed for any call
    finally:
        del made  # see `_Call.run`


def _make_calls(mailbox: SimpleQueue[_Call]) -> None:
    """Make queued calls until none arrives for a while; the body of a thread."""
    while True:
        try:
            mailbox.get(timeout=IDLE_S).run()
        except Empty:
            with contextlib.suppress(ValueError):  # another thread has just taken it out: a call is coming
                _idle.remove(mailbox)
                return
        else:
            _idle.append(mailbox)


class SerialExecutor:
    """One daemon thread for blocking calls, made in the order in which they were asked for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._asked = self._made = 0  # each is counted by one thread alone

    async def run(self, call: Callable[[], T]) -> T:
        """Await a call's turn and its result. Cancelling stops the waiting; a call that was made is made to its end."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        made = _Call(call)
        self._asked += 1
        self._queue.put(made.run_if_awaited)
        try:
            return await made.future  # type: ignore[return-value]  # the future is typed for any call
        finally:
            del made  # see `_Call.run`

    @property
    def busy(self) -> bool:
        """Return whether a call runs or is queued."""
        return self._asked > self._made

    async def wait_idle(self, patience_s: float) -> bool:
        """Wait until all calls have been made, or `patience_s` have passed; return whether they have."""
        if not self.busy:
            return True
        try:
            await asyncio.wait_for(self.run(_nothing), patience_s)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Let the thread end when it has made the calls that wait."""
        self._queue.put(self._end)

    def _work(self) -> None:
        while not self._is_closed:
            self._queue.get()()
            self._made += 1

    def _end(self) -> None:
        self._is_closed = True


def _nothing() -> None:
    """Do nothing: the last call of an executor."""
