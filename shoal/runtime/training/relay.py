"""The training process on a machine of a batch scheduler: `shoal trainer FOLDER`.

It starts the learner's process (`child`) as its own child, and passes messages, output and log lines between that and
the node (`command_process`). It ends with the child, and when the node is silent or does not want it any more.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from shoal.core.errors import Refused, ShoalError, StorageFailed
from shoal.runtime.durable_files import storing
from shoal.runtime.training.child_process import ChildProcess, ProcessEnded, child_environment
from shoal.runtime.training.folder_channel import NODE, POLL_S, TRAINER, FolderChannel
from shoal.runtime.training.ipc import PATHS
from shoal.runtime.training.learner_output import LEVELS
from shoal.runtime.training.message_log import file_path

FIRST_TIMEOUT_S = 60.0
"""Seconds of silence after which a node is lost that has not told its limit yet."""
PROGRESS_S = 1.0
"""Shortest time in seconds between two progress messages: each is written to the shared folder."""

StartChild = Callable[[Mapping[str, Any], Mapping[str, str], Any, Mapping[str, str]], ChildProcess]


class _NodeLog:
    """A log whose lines are sent to the node."""

    def __init__(self, channel: FolderChannel) -> None:
        self._channel = channel

    def __getattr__(self, level: str) -> Callable[..., None]:
        if level not in LEVELS:
            raise AttributeError(level)

        def send(event: str, **fields: Any) -> None:
            with suppress(StorageFailed):  # the other messages report that
                self._channel.send({"log": {"level": level, "event": event, **fields}}, sync=False)

        return send


class Relay:
    """One start of the training process. `folder`: made by the node for it."""

    def __init__(self, folder: Path, start: StartChild = ChildProcess) -> None:
        self._root, self._start = folder.absolute().parent, start
        _take(folder)
        self._messages: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._lost = ""
        self._fraction, self._fraction_at = -1.0, 0.0
        ends = (TRAINER, NODE)
        self._channel = FolderChannel(folder, ends, FIRST_TIMEOUT_S, self._messages.put, self._lose, heard=True)

    def run(self) -> str:
        """Pass messages until the node does not want the process any more; return how that is known.

        Raises `ProcessEnded` when the child ends, `StorageFailed` when its answer cannot be written.
        """
        child: ChildProcess | None = None
        try:
            while not self._lost:
                child = self._pass_requests(child)
                if child is not None:
                    self._pass_reply(child.receive(POLL_S))
            return self._lost
        except ProcessEnded as error:
            self._say_ended(error.message, error.hint)
            raise
        except KeyboardInterrupt:
            self._say_ended("the training process was told to end by a signal", "look at its job")
            raise
        finally:
            if child is not None:
                child.kill()
            self._channel.close()

    def _pass_requests(self, child: ChildProcess | None) -> ChildProcess | None:
        """Pass what has come from the node; the first message starts the child."""
        try:
            message = self._messages.get(timeout=0.0 if child else POLL_S)
        except Empty:
            return child
        located = {key: str(self._root / value) if key in PATHS and value else value for key, value in message.items()}
        if child is not None:
            child.send(located)
            return child
        self._channel.timeout_s = float(located.pop("timeout_s"))
        log = _NodeLog(self._channel)
        log.info("the training process has started", host=platform.node(), folder=str(Path.cwd()))
        return self._start(located, child_environment(int(located["threads"])), log, {})

    def _pass_reply(self, reply: Mapping[str, Any] | None) -> None:
        """Pass an answer at once, and the latest progress now and then."""
        if reply is not None and "progress" in reply:
            self._fraction = float(reply["progress"])
        elif reply is not None:
            self._fraction = -1.0
            self._channel.send(reply)
        if self._fraction >= 0.0 and time.monotonic() - self._fraction_at >= PROGRESS_S:
            self._channel.send({"progress": self._fraction})
            self._fraction, self._fraction_at = -1.0, time.monotonic()

    def _lose(self, why: str) -> None:
        self._lost = why

    def _say_ended(self, why: str, hint: str) -> None:
        with suppress(ShoalError):
            self._channel.send({"ended": why, "hint": hint})


def _take(folder: Path) -> None:
    """Take a start for this process. Raises `Refused` if it is not wanted, or not any more."""
    if not file_path(folder, NODE, 0).is_file():
        text = f"no training process is wanted in {folder}"
        hint = "the node has given up this start, or the folder has another path on this machine"
        raise Refused(text, code="trainer.unwanted", hint=hint)
    try:
        with storing(folder):
            os.close(os.open(folder / "taken", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except StorageFailed as error:
        if isinstance(error.__cause__, FileExistsError):
            text = f"another training process works with {folder}"
            raise Refused(text, code="trainer.taken", hint="let one task of the job run this command") from None
        raise
