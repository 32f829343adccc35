"""Control of the training process: it starts when needed, gets one request at a time, and can be killed.

Calls block, and are made in one thread at a time (a `SerialExecutor`); only `close` is thread-safe. The learner's
output and log lines appear in this process's log. A process that has died is started again at the next request.
"""

from __future__ import annotations

import json
import os
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

from shoal.core.algorithm.learner import Progress, no_progress
from shoal.core.errors import Cancelled, LearnerFailed, ShoalError
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.training.ipc import LINE_BYTES_MAX, error_from
from shoal.runtime.training.learner_output import LearnerOutput

POLL_S = 0.2
"""Interval in seconds of checks that the answer is still wanted and the process alive."""
CANCEL_S = 10.0
"""Seconds that a cancelled training may take to notice; then its process is killed."""
DYING_S = 5.0
"""Seconds that a process that has closed its output may take to end."""


@dataclass(frozen=True)
class TrainingSetup:
    """Learner and compute settings. `folder`: exclusive folder for blobs in transit."""

    learner: str
    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = ""
    precision: str = ""
    threads: int = 0
    base: str = ""
    """File of a base model that replaces the learner's own; empty: none does."""
    level: str = "info"
    """Lowest level of the learner's log that is written."""

    def values(self) -> dict[str, Any]:
        """Return the setup as JSON values."""
        given = {"device": self.device, "precision": self.precision, "threads": self.threads, "level": self.level}
        return {
            **given,
            "learner": self.learner,
            "options": dict(self.options),
            "folder": str(self.folder.absolute()),
            "base": self.base,
        }

    def environment(self) -> dict[str, str]:
        """Return the environment of the process."""
        path = os.pathsep.join(one or "." for one in sys.path)
        found = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        return {**found, "OMP_NUM_THREADS": str(self.threads)} if self.threads else found


class ProcessEnded(LearnerFailed):
    """The training process has ended unexpectedly."""

    default_code = "learner.died"


class TrainingProcess:
    """One child process. `starts`: how often there was a new one."""

    def __init__(self, setup: TrainingSetup) -> None:
        self.setup = setup
        self.blobs = FileBlobs(setup.folder)
        self.blobs.sweep()
        self.blobs.keep_only(())
        self.starts, self.device = 0, ""
        self.card: str | None = ""
        """The learner's NVIDIA card, as `shoal.runtime.training.cards` says."""
        self.model_form: dict[str, Any] = {}
        """Layout of the learner's model; see `shoal.learn.model_form`."""
        self.about: dict[str, str] = {}
        """Present task, for the log."""
        self.dropped: deque[int] = deque()
        """Tasks that were given up; the process is informed with the next request."""
        self.log: Any = structlog.get_logger("shoal.training")
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._output: LearnerOutput | None = None
        self._asked = 0
        self._closed = False
        self._start_lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Return the process id, if it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def open(self) -> None:
        """Have a process with the learner in it. Raises `ShoalError`: whatever is wrong with the learner."""
        if self.pid is not None:
            return
        self._start()
        try:
            reply = self._answer(no_progress, 0)
            self.device, self.card, self.model_form = str(reply["device"]), reply["card"], reply["model_form"]
        except ShoalError:
            self._kill()  # without a learner it is of no use
            raise

    def ask(self, what: Mapping[str, Any], progress: Progress = no_progress) -> dict[str, Any]:
        """Ask, and wait for the answer. `progress` is called meanwhile, with how far it is, and may raise `Cancelled`.

        Raises `ProcessEnded` when the process dies of it, `Cancelled`, and what the learner's failure is.
        """
        self.open()
        if self.dropped:
            self._send({"drop": [self.dropped.popleft() for _ in range(len(self.dropped))]})
        self._asked += 1
        self._send({"n": self._asked, **what})
        return self._answer(progress, self._asked)

    def use(self, setup: TrainingSetup) -> None:
        """Use another setup from the next request on."""
        self._kill()
        self.setup = setup

    def close(self) -> None:
        """Kill the process for good. A caller that waits for an answer gets `Cancelled`."""
        with self._start_lock:
            self._closed = True
        self._kill()

    # The process

    def _start(self) -> None:
        self._kill()
        with self._start_lock:
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
        assert process.stdout is not None
        assert process.stderr is not None
        fields = {key: value for key, value in structlog.contextvars.get_contextvars().items() if key in _KEPT}
        receiving = (process.stdout, self._answers)
        threading.Thread(target=self._receive, args=receiving, name="shoal-training-answers", daemon=True).start()
        self._output = LearnerOutput(process.stderr, self.log.bind(**fields), self.about)
        self.log.debug("training process", pid=process.pid)
        self._send(self.setup.values())

    def _send(self, what: Mapping[str, Any]) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        with suppress(OSError, ValueError):  # it has ended; the wait for its answer reports that
            process.stdin.write(json.dumps(what).encode() + b"\n")
            process.stdin.flush()

    def _kill(self) -> None:
        with self._start_lock:
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

    # Answers of the process

    def _answer(self, progress: Progress, asked: int) -> dict[str, Any]:
        fraction, cancel_error, until = 0.0, None, 0.0
        while True:
            reply = self._line()
            if reply is not None and "progress" in reply:
                fraction = float(reply["progress"])
            elif reply is not None and cancel_error is not None:
                raise cancel_error
            elif reply is not None and "error" in reply:
                raise error_from(reply["error"])
            elif reply is not None:
                return reply
            try:
                if cancel_error is None:
                    progress(fraction)
            except Cancelled as error:
                cancel_error, until = error, time.monotonic() + CANCEL_S
                self._send({"cancel": asked})
            if cancel_error is not None and time.monotonic() > until:
                self.log.warning("the learner does not end its training: its process is killed")
                self._kill()
                raise cancel_error

    def _line(self) -> dict[str, Any] | None:
        """Return the next message; None after a while without one. Raises `ProcessEnded`."""
        process = self._process
        try:
            reply = self._answers.get(timeout=POLL_S)
        except Empty:
            if process is not None and process.poll() is None:
                return None
            reply = None  # another process may hold its output open, but this one has ended
        if reply is None:
            raise self._process_ended(process)
        return reply

    def _process_ended(self, process: subprocess.Popen[bytes] | None) -> ShoalError:
        if self._closed or process is None:
            return Cancelled("training has ended")
        with suppress(subprocess.TimeoutExpired):
            process.wait(DYING_S)
        code = process.poll()
        self._kill()
        last = self._output.last_words() if self._output is not None else ""
        hint = f"its last words: {last}" if last else "out of memory? look at the system's log"
        return ProcessEnded(f"the training process has ended {_how(code)}", hint=hint)

    def _receive(self, pipe: IO[bytes], answers: SimpleQueue[dict[str, Any] | None]) -> None:
        """Read messages, and None at the end; the body of a thread."""
        with pipe:
            while line := pipe.readline(LINE_BYTES_MAX):
                try:
                    answers.put(json.loads(line))
                except ValueError:  # cut short by its death, or longer than any answer
                    self.log.error("unreadable line of the training process", bytes=len(line))
                    break
        answers.put(None)


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
