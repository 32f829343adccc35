"""The training process from outside: started when it is needed, asked one question at a time, killed.

Every call blocks, and is made in one thread at a time (a `Lane`); only `close` may be called from any. What the learner
prints and logs comes out in this process's log. A process that has died is started again at the next question.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

import structlog

from shoal.core.errors import Cancelled, LearnerFailed, ShoalError
from shoal.core.learner import Tick, no_tick
from shoal.runtime.store import FileBodies
from shoal.runtime.training.words import LINE_BYTES_MAX, error_read

LOOK_S = 0.2
"""How often it is looked whether the answer is still wanted, and whether the process lives."""
CANCEL_S = 10.0
"""Seconds that a cancelled training may take to notice; then its process is killed."""
DYING_S = 5.0
"""A process that has closed its output may take so long to end."""
LINE_CHARACTERS_MAX = 2000
LAST_WORDS = 3

_BREAKS = re.compile(rb"[\r\n]+")
_LEVELS = ("debug", "info", "warning", "error", "critical")
_CARRIED = ("logger", "exception", "why", "hint", "job", "order")


@dataclass(frozen=True)
class Setup:
    """Whose learner, and how it is to compute. `folder`: for bodies on their way, of this process's own."""

    learner: str
    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = ""
    precision: str = ""
    threads: int = 0
    level: str = "info"
    """What of the learner's log is written."""

    def said(self) -> dict[str, Any]:
        """As the process reads it."""
        wishes = {"device": self.device, "precision": self.precision, "threads": self.threads, "level": self.level}
        return {**wishes, "learner": self.learner, "options": dict(self.options), "folder": str(self.folder.absolute())}

    def environment(self) -> dict[str, str]:
        """What the process finds around it."""
        path = os.pathsep.join(one or "." for one in sys.path)
        found = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        return {**found, "OMP_NUM_THREADS": str(self.threads)} if self.threads else found


class Ended(LearnerFailed):
    """The training process has ended, though nobody told it to."""

    default_code = "learner.died"


class Training:
    """One child process. `starts`: how often there was a new one."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.bodies = FileBodies(setup.folder)
        self.bodies.sweep()
        self.bodies.keep_only(())
        self.starts, self.device = 0, ""
        self.looks: dict[str, Any] = {}
        """What the learner's model looks like; see `shoal.learn.looks`."""
        self.about: dict[str, str] = {}
        """What it is at, for the log."""
        self.dropped: deque[int] = deque()
        """Orders in hand of which nobody will ask for more; the process is told at the next question."""
        self.log: Any = structlog.get_logger("shoal.training")
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._last_words: deque[str] = deque(maxlen=LAST_WORDS)
        self._asked = 0
        self._closed = False
        self._door = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def open(self) -> None:
        """Have a process with the learner in it. Raises `ShoalError`: whatever is wrong with the learner."""
        if self.pid is not None:
            return
        self._start()
        try:
            said = self._answer(no_tick, 0)
            self.device, self.looks = str(said["device"]), said["looks"]
        except ShoalError:
            self._kill()  # without a learner it is of no use
            raise

    def ask(self, what: Mapping[str, Any], tick: Tick = no_tick) -> dict[str, Any]:
        """Ask, and wait for the answer. `tick` is called meanwhile, with how far it is, and may raise `Cancelled`.

        Raises `Ended` when the process dies of it, `Cancelled`, and what the learner's failure is.
        """
        self.open()
        if self.dropped:
            self._say({"drop": [self.dropped.popleft() for _ in range(len(self.dropped))]})
        self._asked += 1
        self._say({"n": self._asked, **what})
        return self._answer(tick, self._asked)

    def close(self) -> None:
        """Kill the process, whatever it does. It is not started again; who waits for an answer gets `Cancelled`."""
        with self._door:
            self._closed = True
        self._kill()

    # The process

    def _start(self) -> None:
        self._kill()
        with self._door:
            if self._closed:
                raise Cancelled("training has ended")
            self.starts += 1
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", "shoal.runtime.training.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.setup.environment(),
                process_group=0,  # a Ctrl-C at the terminal is for this process; and all of it can be killed at once
            )
        self._answers = SimpleQueue()
        self._last_words.clear()
        assert process.stdout is not None
        assert process.stderr is not None
        fields = {key: value for key, value in structlog.contextvars.get_contextvars().items() if key in _KEPT}
        for read, pipe in ((self._hear, process.stdout), (self._relay, process.stderr)):
            given = (pipe, self._answers if read == self._hear else self.log.bind(**fields))
            threading.Thread(target=read, args=given, name="shoal-training-pipe", daemon=True).start()
        self.log.debug("training process", pid=process.pid)
        self._say(self.setup.said())

    def _say(self, what: Mapping[str, Any]) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        with suppress(OSError, ValueError):  # it has ended, which who waits for its answer will see
            process.stdin.write(json.dumps(what).encode() + b"\n")
            process.stdin.flush()

    def _kill(self) -> None:
        with self._door:
            process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                if sys.platform != "win32":
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        process.wait()

    # What it says

    def _answer(self, tick: Tick, asked: int) -> dict[str, Any]:
        fraction, vain, until = 0.0, None, 0.0
        while True:
            said = self._line()
            if said is not None and "tick" in said:
                fraction = float(said["tick"])
            elif said is not None and vain is not None:
                raise vain
            elif said is not None and "error" in said:
                raise error_read(said["error"])
            elif said is not None:
                return said
            try:
                if vain is None:
                    tick(fraction)
            except Cancelled as error:
                vain, until = error, time.monotonic() + CANCEL_S
                self._say({"cancel": asked})
            if vain is not None and time.monotonic() > until:
                self.log.warning("the learner does not end its training: its process is killed")
                self._kill()
                raise vain

    def _line(self) -> dict[str, Any] | None:
        """What it says next; None when it has said nothing for a while. Raises `Ended`, `Cancelled`."""
        process = self._process
        try:
            said = self._answers.get(timeout=LOOK_S)
        except Empty:
            if process is not None and process.poll() is None:
                return None
            said = None  # somebody may hold its output open, but it says nothing any more
        if said is None:
            raise self._ended(process)
        return said

    def _ended(self, process: subprocess.Popen[bytes] | None) -> ShoalError:
        if self._closed or process is None:
            return Cancelled("training has ended")
        with suppress(subprocess.TimeoutExpired):
            process.wait(DYING_S)
        code = process.poll()
        self._kill()
        last = " / ".join(self._last_words)
        hint = f"its last words: {last}" if last else "out of memory? look at the system's log"
        return Ended(f"the training process has ended {_how(code)}", hint=hint)

    def _hear(self, pipe: IO[bytes], answers: SimpleQueue[dict[str, Any] | None]) -> None:
        """In a thread: its answers, and None at its end."""
        with pipe:
            while line := pipe.readline(LINE_BYTES_MAX):
                try:
                    answers.put(json.loads(line))
                except ValueError:  # cut short by its death, or longer than any answer
                    self.log.error("the training process says what cannot be read", bytes=len(line))
                    break
        answers.put(None)

    def _relay(self, pipe: IO[bytes], log: Any) -> None:
        """In a thread: what the learner prints and logs, line by line, into this process's log."""
        rest = b""
        with pipe:
            while piece := os.read(pipe.fileno(), 1 << 16):
                *lines, rest = _BREAKS.split(rest + piece)
                for line in lines:
                    self._relay_line(line, log)
                if len(rest) > LINE_CHARACTERS_MAX:
                    self._relay_line(rest, log)
                    rest = b""
        self._relay_line(rest, log)

    def _relay_line(self, line: bytes, log: Any) -> None:
        text = line.decode("utf-8", "replace").rstrip()[:LINE_CHARACTERS_MAX]
        if not text:
            return
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if isinstance(entry, dict) and entry.get("level") in _LEVELS and "event" in entry:
            carried = {name: entry[name] for name in _CARRIED if name in entry}
            getattr(log, entry["level"])(str(entry["event"]), **{**self.about, **carried})
            return
        self._last_words.append(text)
        log.info(text, source="learner", **self.about)


_KEPT = ("role", "node")


def _how(code: int | None) -> str:
    if code is None:
        return "its output, and does not end"
    if code >= 0:
        return f"with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"by signal {-code} ({name})"
