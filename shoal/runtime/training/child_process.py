"""The training process as a child process: messages through pipes, its output into this process's log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import IO, Any

from shoal.core.errors import LearnerFailed
from shoal.runtime.training.ipc import LINE_BYTES_MAX
from shoal.runtime.training.learner_output import LearnerOutput

KILLED = -9
"""Exit code after SIGKILL, by which Linux ends a process if memory runs out."""
LACK_OF_MEMORY = "did memory run out? look at the system's log, and use a smaller batch_size or fewer processes"
DYING_S = 5.0
"""Seconds that a process that has closed its output may take to end."""


class ProcessEnded(LearnerFailed):
    """The training process has ended unexpectedly."""

    default_code = "learner.died"


def child_environment(threads: int) -> dict[str, str]:
    """Return the environment of a child with that many threads of torch; 0: its own choice."""
    path = os.pathsep.join(one or "." for one in sys.path)
    found = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    return {**found, "OMP_NUM_THREADS": str(threads)} if threads else found


class ChildProcess:
    """One process, `shoal.runtime.training.child`. `first`: its first message."""

    def __init__(
        self, first: Mapping[str, Any], environment: Mapping[str, str], log: Any, about: Mapping[str, str]
    ) -> None:
        self._log = log
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "shoal.runtime.training.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            process_group=0,  # a Ctrl-C at the terminal is for this process; and all of it can be killed at once
        )
        assert process.stdout is not None
        assert process.stderr is not None
        self._answers: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        receiving = (process.stdout, self._answers)
        threading.Thread(target=self._read, args=receiving, name="shoal-training-answers", daemon=True).start()
        self._output = LearnerOutput(process.stderr, log, about)
        self.send(first)

    @property
    def pid(self) -> int | None:
        """Return the process id, if it runs."""
        return self._process.pid if self.is_running else None

    @property
    def is_running(self) -> bool:
        """Return whether it has not ended."""
        return self._process.poll() is None

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. If the process has ended, `receive` reports that."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next message; None after that time without one. Raises `ProcessEnded`."""
        try:
            reply = self._answers.get(timeout=timeout_s)
        except Empty:
            if self.is_running:
                return None
            reply = None  # another process may hold its output open, but this one has ended
        if reply is None:
            raise self._ended()
        return reply

    def kill(self) -> None:
        """End the process, and those that it has started in its group."""
        process = self._process
        if process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                if sys.platform != "win32":
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        process.wait()

    def _ended(self) -> ProcessEnded:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(DYING_S)
        code = self._process.poll()
        self.kill()
        last = self._output.last_words()
        hints = [LACK_OF_MEMORY] if code == KILLED or not last else []
        hints += [f"its last words: {last}"] if last else []
        return ProcessEnded(f"the training process has ended {how_ended(code)}", hint="; ".join(hints))

    def _read(self, pipe: IO[bytes], answers: SimpleQueue[dict[str, Any] | None]) -> None:
        """Read messages, and None at the end; the body of a thread."""
        with pipe:
            while line := pipe.readline(LINE_BYTES_MAX):
                try:
                    answers.put(json.loads(line))
                except ValueError:  # cut short by its death, or longer than any answer
                    self._log.error("unreadable line of the training process", bytes=len(line))
                    break
        answers.put(None)


def how_ended(code: int | None) -> str:
    """Return an exit code in words; None: the process has closed its output only."""
    if code is None:
        return "its output, and does not end"
    if code >= 0:
        return f"with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"by signal {-code} ({name})"
