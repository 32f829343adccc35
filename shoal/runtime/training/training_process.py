"""Control of the training process: it starts when needed, gets one request at a time, and can be killed.

Calls block, and are made in one thread at a time (a `SerialExecutor`); only `close` is thread-safe. The learner's
output and log lines appear in this process's log. A process that has died is started again at the next request;
under torchrun, this process ends then.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast
from weakref import WeakSet

import structlog

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.algorithm.capability import capability_refusal
from shoal.core.algorithm.learner import Progress, no_progress
from shoal.core.errors import Cancelled, ShoalError
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.training.cards import LearnerDevices
from shoal.runtime.training.child_process import ChildProcess, ProcessEnded, child_environment
from shoal.runtime.training.command_process import CommandProcess, TrainerCommand
from shoal.runtime.training.idle_end import IdleEnd
from shoal.runtime.training.ipc import error_from
from shoal.runtime.training.site.group import exit_now

POLL_S = 0.2
"""Interval in seconds of checks that the answer is still wanted and the process alive."""
CANCEL_S = 10.0
"""Seconds that a cancelled training may take to notice; then its process is killed."""


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
    processes: int = 1
    """Ranks that train together (`shoal.runtime.training.site`); 0: those that torchrun has started."""
    level: str = "info"
    """Lowest level of the learner's log that is written."""

    def values(self) -> dict[str, Any]:
        """Return the setup as JSON values."""
        given = {"device": self.device, "precision": self.precision, "threads": self.threads, "level": self.level}
        given["processes"] = self.processes
        return {
            **given,
            "learner": self.learner,
            "options": dict(self.options),
            "folder": str(self.folder.absolute()),
            "base": self.base,
        }


class RunningTraining(Protocol):
    """A training process that was started once."""

    @property
    def pid(self) -> int | None:
        """Return the process id; None if it has ended or runs on another machine."""
        ...

    @property
    def is_running(self) -> bool:
        """Return whether it may still answer."""
        ...

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. If the process has ended, `receive` reports that."""
        ...

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next message; None after that time without one. Raises `ProcessEnded`."""
        ...

    def kill(self) -> None:
        """End the process at once. Any thread may call."""
        ...


StartTraining = Callable[[TrainingSetup, Any, Mapping[str, str]], RunningTraining]
"""Starts a training process, with its log and the task that each line of it names."""


def start_child(setup: TrainingSetup, log: Any, about: Mapping[str, str]) -> RunningTraining:
    """Start a child process of this one."""
    return ChildProcess(setup.values(), child_environment(setup.threads), log, about)


def start_by_command(
    command: TrainerCommand, setup: TrainingSetup, log: Any, about: Mapping[str, str]
) -> RunningTraining:
    """Have a command start a process, which may run on another machine."""
    return CommandProcess(setup.values(), setup.folder, command, log, about)


class TrainingProcess:
    """One process at a time. `starts`: how often there was a new one. `idle_s`: seconds without a task after which the
    process ends, until the next request; 0: it stays."""

    def __init__(self, setup: TrainingSetup, start: StartTraining = start_child, idle_s: float = 0.0) -> None:
        self.setup = setup
        self.blobs = FileBlobs(setup.folder)
        self.blobs.sweep()
        self.blobs.keep_only(())
        self.starts = 0
        self.about: dict[str, str] = {}
        """Present task, for the log."""
        self.dropped: deque[int] = deque()
        """Tasks that were given up; the process is informed with the next request."""
        self.tasks: WeakSet[Any] = WeakSet()
        """Tasks in hand. The process has their state, and does not end when it is idle between two pieces."""
        self.log: Any = structlog.get_logger("shoal.training")
        self._start_new, self._running = start, cast("RunningTraining | None", None)
        self._learner: dict[str, Any] = {}
        self._loaded = 0  # the start whose process has loaded the learner
        self._asked = 0
        self._closed = False
        self._start_lock = threading.Lock()
        self._idle = IdleEnd(idle_s, self._end_idle)

    @property
    def compute(self) -> LearnerDevices:
        """Return the learner's devices once it is loaded; none before."""
        return LearnerDevices.parse(self._learner["compute"]) if self._learner else LearnerDevices()

    def check(self, algorithm: Algorithm) -> None:
        """Raise `InvalidJob` if the loaded learner declares that it cannot do the algorithm's work."""
        if (error := capability_refusal(algorithm, self._learner["lacks"].get)) is not None:
            raise error

    @property
    def model_form(self) -> dict[str, Any]:
        """Return the layout of the learner's model; see `shoal.learn.model_form`."""
        return cast("dict[str, Any]", self._learner.get("model_form", {}))

    @property
    def pid(self) -> int | None:
        """Return the process id, if it runs on this machine."""
        running = self._running
        return running.pid if running is not None else None

    def open(self, progress: Progress = no_progress) -> None:
        """Have a process with the learner in it. Raises `ShoalError`: whatever is wrong with the learner.

        After a `Cancelled` of `progress` the process goes on loading, for the next request.
        """
        with self._idle.request():
            self._open(progress)

    def ask(self, what: Mapping[str, Any], progress: Progress = no_progress) -> dict[str, Any]:
        """Ask, and wait for the answer. `progress` is called meanwhile, with how far it is, and may raise `Cancelled`.

        Raises `ProcessEnded` when the process dies of it, `Cancelled`, and what the learner's failure is.
        """
        with self._idle.request():
            self._open(progress)
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
        self._idle.stop()
        self._kill()

    # The process

    def _open(self, progress: Progress) -> None:
        if self._running is None or not self._running.is_running:
            self._start()
        if self._loaded == self.starts:
            return
        try:
            self._learner = self._answer(progress, 0)
        except Cancelled:
            raise
        except ShoalError:
            self._kill()  # without a learner it is of no use
            raise
        self._loaded = self.starts

    def _start(self) -> None:
        self._kill()
        if self.starts and not self.setup.processes:
            self.log.error("the training process has ended, and with it the group: torchrun starts all ranks again")
            exit_now()
        fields = {key: value for key, value in structlog.contextvars.get_contextvars().items() if key in _KEPT}
        with self._start_lock:
            if self._closed:
                raise Cancelled("training has ended")
            self.starts += 1
            self._running = running = self._start_new(self.setup, self.log.bind(**fields), self.about)
        self.log.debug("training process", pid=running.pid)

    def _send(self, what: Mapping[str, Any]) -> None:
        running = self._running
        if running is not None:
            running.send(what)

    def _kill(self) -> None:
        with self._start_lock:
            running, self._running = self._running, None
        if running is not None:
            running.kill()

    def _end_idle(self) -> bool:
        """End the process if no task is in hand; return whether it has ended."""
        if self._running is None:
            return True
        if self.tasks:
            return False
        self.log.info("the training process has no task: it ends until the next one")
        self._kill()
        return True

    # Answers of the process

    def _answer(self, progress: Progress, asked: int) -> dict[str, Any]:
        """Wait for an answer. `asked`: the request; 0: the loading of the learner, which is not cancelled."""
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
                if not asked:
                    raise
                cancel_error, until = error, time.monotonic() + CANCEL_S
                self._send({"cancel": asked})
            if cancel_error is not None and time.monotonic() > until:
                self.log.warning("the learner does not end its training: its process is killed")
                self._kill()
                raise cancel_error

    def _line(self) -> dict[str, Any] | None:
        """Return the next message; None after a while without one. Raises `ProcessEnded`."""
        running = self._running
        try:
            if running is not None:
                return running.receive(POLL_S)
        except ProcessEnded:
            if not self._closed:
                self._kill()
                raise
        raise Cancelled("training has ended")


_KEPT = ("role", "node")
