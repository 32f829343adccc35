"""Signals that end a command: Ctrl-C, a service manager's SIGTERM, a terminal that was closed.

The first one raises `Interrupted`, once and wherever the command is, so that each `with` and `finally` on its way out
does its part. Another one ends the process at once, cleaned up all the same. Neither cuts through what is `held`: there
a signal waits. Python ignores an exception that is raised in a finalizer or in a callback of some extension modules;
then the signal is raised again. `coordinator` and `join` put handlers of their own in the place of these while they
serve.

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
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
RETRY_S = 0.05
"""Pause in seconds before a signal whose exception was ignored is raised again."""
ENDING = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


class Interrupted(KeyboardInterrupt):
    """The exception that a signal raises. It is not `KeyboardInterrupt`: Python remembers that one when it passes
    through an `exec`, such as that of a dataclass, and `python -m` then ends by SIGINT, whatever the exit code.
    """


class _SignalState:
    """The state of signal handling."""

    def __init__(self) -> None:
        self.received, self.waiting, self.holds = False, False, 0
        self.cleanups: list[Callable[[], None]] = []
        self.code: int | None = None
        self.on_other_ignored = sys.unraisablehook

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal of `ENDING`."""
        if self.holds:
            self.waiting = True
            return
        if self.code is not None or self.received:
            self.end()
        self.received = True
        raise Interrupted

    def on_ignored(self, ignored: sys.UnraisableHookArgs) -> None:
        """Raise a signal again whose exception Python has ignored. For `sys.unraisablehook`."""
        if not isinstance(ignored.exc_value, Interrupted):
            self.on_other_ignored(ignored)
            return
        self.received = False
        retry = threading.Timer(RETRY_S, os.kill, [os.getpid(), signal.SIGINT])
        retry.daemon = True
        retry.start()

    def end(self) -> NoReturn:
        """End the process at once."""
        try:
            self.clean_up()
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, RuntimeError):  # a broken pipe; closed; in the midst of a write
                    stream.flush()
        finally:
            os._exit(INTERRUPTED if self.code is None else self.code)

    def clean_up(self) -> None:
        """Call the registered functions, each once, with signals deferred."""
        self.holds += 1
        try:
            while self.cleanups:
                self.cleanups.pop()()
        finally:
            self.holds -= 1


_state = _SignalState()


def listen() -> None:
    """Install the handlers of this module."""
    atexit.register(_ignore_signals)  # registered first, so it runs last, before Python takes its handlers away
    atexit.register(_state.clean_up)
    sys.unraisablehook = _state.on_ignored
    for number in ENDING:
        signal.signal(number, _state.handle)


def _ignore_signals() -> None:
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def listening() -> Iterator[None]:
    """Install the handlers for a block."""
    global _state  # noqa: PLW0603 - a process has one set of handlers
    if signal.getsignal(signal.SIGINT) == _state.handle:
        yield
        return
    _state = _SignalState()
    previous = {number: signal.signal(number, _state.handle) for number in ENDING}
    sys.unraisablehook = _state.on_ignored
    try:
        yield
    finally:
        _state.clean_up()
        sys.unraisablehook = _state.on_other_ignored
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def held() -> Iterator[None]:
    """Defer signals until the end of the block."""
    _state.holds += 1
    try:
        yield
    finally:
        _state.holds -= 1
        if _state.waiting and not _state.holds:
            _state.waiting = False
            _state.handle(signal.SIGINT, None)


def at_end(cleanup: Callable[[], None]) -> None:
    """Register a function to call at the end of the process."""
    _state.cleanups.append(cleanup)


def done(cleanup: Callable[[], None]) -> None:
    """Call a registered function now."""
    with held():
        cleanup()
        _state.cleanups.remove(cleanup)


def decided(code: int) -> None:
    """Fix the exit code: later signals end the process with it."""
    _state.code = code


def leave(code: int) -> NoReturn:
    """Clean up and end this process."""
    decided(code)
    _state.clean_up()
    sys.exit(code)
