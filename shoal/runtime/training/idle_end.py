"""The end of a process that has had nothing to do for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class IdleEnd:
    """A timer that calls `end` when no request was made for `idle_s` seconds, and again until that returns True.

    `end` runs in a thread, never during a request. 0 seconds: it is not called.
    """

    def __init__(self, idle_s: float, end: Callable[[], bool]) -> None:
        self._idle_s, self._end = idle_s, end
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count as busy while the block runs. One thread at a time."""
        with self._lock:
            self.stop()
            try:
                yield
            finally:
                self._begin()

    def stop(self) -> None:
        """Stop the timer until the next request."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _begin(self) -> None:
        if self._idle_s:
            self._timer = threading.Timer(self._idle_s, self._expire)
            self._timer.daemon = True
            self._timer.start()

    def _expire(self) -> None:
        with self._lock:
            if threading.current_thread() is self._timer and not self._end():
                self._begin()
