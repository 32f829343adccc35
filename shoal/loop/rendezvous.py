"""The meeting of two threads: one offers calls and waits for the answers, the user's thread answers them in its loop.

The user's model belongs to the user's thread: the other one passes trees. A call whose task was withdrawn is cancelled;
the user's thread may still work on it, and its answer is ignored.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import CancelledError, Future, InvalidStateError
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from shoal.core.algorithm.learner import Progress, TrainConfig
from shoal.core.errors import Cancelled, ShoalError
from shoal.core.model.tree import Tree

WAIT_S = 0.05
"""Seconds between two looks whether a task was withdrawn."""


@dataclass(eq=False)
class LoopCall:
    """A call that the user's thread answers. `config` None: evaluate the model. `kept`: tensors that stay on a node."""

    node: str
    index: int
    model: Tree
    config: TrainConfig | None = None
    kept: Any = None
    fraction: float = 0.0
    _future: Future[Any] = field(default_factory=Future)

    @property
    def is_answered(self) -> bool:
        """Return whether there is an answer, or none is wanted any more."""
        return self._future.done()

    @property
    def is_cancelled(self) -> bool:
        """Return whether the answer is not wanted any more."""
        return self._future.cancelled()

    def answer(self, value: Any) -> None:
        """Answer the call, unless it was cancelled."""
        with contextlib.suppress(InvalidStateError):
            self._future.set_result(value)

    def fail(self, error: ShoalError) -> None:
        """Let the call raise an error, unless it has an answer."""
        with contextlib.suppress(InvalidStateError):
            self._future.set_exception(error)

    def cancel(self) -> bool:
        """Withdraw the call; return False if it has an answer."""
        return self._future.cancel()

    def wait(self, progress: Progress) -> Any:
        """Wait for the answer. Raises what `progress` raises, and `Cancelled` when the loop was left."""
        while True:
            try:
                return self._future.result(WAIT_S)
            except CancelledError:
                raise Cancelled("the training loop was left") from None
            except TimeoutError:
                self._report_progress(progress)

    def _report_progress(self, progress: Progress) -> None:
        try:
            progress(self.fraction)
        except BaseException:
            self.cancel()
            raise


class Rendezvous:
    """The calls on their way to the user's thread. `submit` belongs to the other thread, `take` and `close` to the
    user's."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[LoopCall | None] = SimpleQueue()
        self._current: LoopCall | None = None
        self._is_closed = False

    def submit(self, call: LoopCall, progress: Progress) -> Any:
        """Offer a call and wait for its answer."""
        self._calls.put(call)
        if self._is_closed:
            call.cancel()
        return call.wait(progress)

    def end(self) -> None:
        """Let the user's thread know that there are no more calls."""
        self._calls.put(None)

    @property
    def current(self) -> LoopCall | None:
        """Return the call that the user's thread took last, if it has no answer yet."""
        call = self._current
        return None if call is None or call.is_answered else call

    def take(self) -> LoopCall | None:
        """Wait for the next call; None after the last one."""
        self._current = self._calls.get()
        return self._current

    def close(self) -> bool:
        """Cancel the open calls, and all that come; return whether there were any."""
        self._is_closed = True
        cancelled = self.current is not None and self.current.cancel()
        with contextlib.suppress(Empty):
            while True:
                if (call := self._calls.get_nowait()) is not None:
                    cancelled |= call.cancel()
        return cancelled
