"""Signals that end a command: Ctrl-C, a service manager's SIGTERM, a terminal that was closed.

The first one raises `Interrupted`, once and wherever the command is, so that each `with` and `finally` on its way out
does its part. Another one ends the process at once, cleaned up all the same. Neither cuts through what is `held`: there
a signal waits. `coordinator` and `join` put handlers of their own in the place of these while they serve.

    listen       the first thing that a process does
    held         around what must be whole: a process and the note that it was started, the cleaning up
    at_end       what must be cleaned up, however this ends
    leave        the last thing: from here on the exit code stands
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
ENDING = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


class Interrupted(KeyboardInterrupt):
    """A signal has come. Not `KeyboardInterrupt` itself: Python remembers that one when it passes through an `exec`, as
    that of a dataclass, and `python -m` then ends by SIGINT, whatever exit code was asked for."""


class _Ears:
    """What has been heard so far."""

    def __init__(self) -> None:
        self.heard, self.waiting, self.holds = False, False, 0
        self.cleanups: list[Callable[[], None]] = []
        self.code: int | None = None

    def hear(self, _number: int, _frame: FrameType | None) -> None:
        """Python's handler of all `ENDING`."""
        if self.holds:
            self.waiting = True
            return
        if self.code is not None or self.heard:
            self.end()
        self.heard = True
        raise Interrupted

    def end(self) -> NoReturn:
        """Now."""
        try:
            self.clean_up()
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, RuntimeError):  # a broken pipe; closed; in the midst of a write
                    stream.flush()
        finally:
            os._exit(INTERRUPTED if self.code is None else self.code)

    def clean_up(self) -> None:
        """Do what is left to do, each once and uncut."""
        self.holds += 1
        try:
            while self.cleanups:
                self.cleanups.pop()()
        finally:
            self.holds -= 1


_ears = _Ears()


def listen() -> None:
    """From here on signals end this process as it is said above."""
    atexit.register(_be_deaf)  # the first to be registered is the last to run, before Python takes its handlers away
    atexit.register(_ears.clean_up)
    for number in ENDING:
        signal.signal(number, _ears.hear)


def _be_deaf() -> None:
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def listening() -> Iterator[None]:
    """The same for a block, where no `listen` has been called."""
    global _ears  # noqa: PLW0603 - a process has one set of handlers
    if signal.getsignal(signal.SIGINT) == _ears.hear:
        yield
        return
    _ears = _Ears()
    previous = {number: signal.signal(number, _ears.hear) for number in ENDING}
    try:
        yield
    finally:
        _ears.clean_up()
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def held() -> Iterator[None]:
    """Let signals wait until the end of the block."""
    _ears.holds += 1
    try:
        yield
    finally:
        _ears.holds -= 1
        if _ears.waiting and not _ears.holds:
            _ears.waiting = False
            _ears.hear(signal.SIGINT, None)


def at_end(cleanup: Callable[[], None]) -> None:
    """Have something done at the end of the process, unless it was `done` before."""
    _ears.cleanups.append(cleanup)


def done(cleanup: Callable[[], None]) -> None:
    """Do now what was to be done at the end."""
    with held():
        cleanup()
        _ears.cleanups.remove(cleanup)


def decided(code: int) -> None:
    """The exit code stands: a signal does not change it any more, but ends at once what is still waited for."""
    _ears.code = code


def leave(code: int) -> NoReturn:
    """Clean up, and end this process in good order."""
    decided(code)
    _ears.clean_up()
    sys.exit(code)
