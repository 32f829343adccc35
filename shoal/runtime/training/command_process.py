"""The training process elsewhere: a command of a batch scheduler asks for it, a shared folder carries its messages.

A command that ends with exit code 0 has queued the process (`sbatch`, `kubectl`), which may start at any time; one that
goes on (`srun`, `docker run`) is stopped at the end. On the other machine `relay` has the other end.

    FOLDER/DIGEST           blobs in transit
    FOLDER/start-ID/        one start of the process; removed when the node gives it up
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from shoal.runtime.durable_files import make_folder, storing
from shoal.runtime.training.child_process import ProcessEnded
from shoal.runtime.training.folder_channel import NODE, TRAINER, FolderChannel
from shoal.runtime.training.ipc import PATHS
from shoal.runtime.training.learner_output import LAST_LINES, LEVELS
from shoal.runtime.training.message_log import file_path

START = "start-"
STOP_S = 5.0
"""Seconds that a command may take to end after SIGTERM."""
CANCEL_COMMAND_S = 15.0
"""Seconds that the command may take that cancels the job."""
WAITING_LOG_S = 60.0
"""Seconds between two log lines about a process that has not started yet."""
OUTPUT_BYTES_MAX = 1000


@dataclass(frozen=True)
class TrainerCommand:
    """Shell commands that start a training process elsewhere and withdraw it. `{folder}` and `{name}` in them are the
    folder of the start and its last part, `{output}` in `cancel` is the output of `start`.

    `timeout_s`: seconds of silence after which either side takes the other for lost.
    """

    start: str
    cancel: str = ""
    timeout_s: float = 60.0


class CommandProcess:
    """One start of a training process. `first`: its first message. `folder`: that of the blobs, which is shared."""

    pid = None

    def __init__(
        self, first: Mapping[str, Any], folder: Path, command: TrainerCommand, log: Any, about: Mapping[str, str]
    ) -> None:
        self._command, self._log, self._about = command, log, about
        for earlier in folder.glob(f"{START}*"):
            shutil.rmtree(earlier, ignore_errors=True)
        self._root, self._folder = folder.absolute(), folder.absolute() / f"{START}{secrets.token_hex(6)}"
        make_folder(self._folder)
        self._answers: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._error: ProcessEnded | None = None
        self._kill_lock = threading.Lock()
        with storing(self._folder):
            file_path(self._folder, TRAINER, 0).touch(0o600)
        self._channel = FolderChannel(
            self._folder, (NODE, TRAINER), command.timeout_s, self._take, self._lose, heard=False
        )
        self._asked_at = self._noted_at = time.monotonic()
        try:
            self.send({**first, "timeout_s": command.timeout_s})
            self._process = self._run()
        except BaseException:
            self._channel.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        log.info("the training process was asked for", start=self._folder.name)

    @property
    def is_running(self) -> bool:
        """Return whether the process is awaited, or has been heard of lately."""
        self._check_command()
        return self._error is None

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, with paths as the other machine can read them. Raises `StorageFailed`."""
        self._channel.send({key: self._shared(value) if key in PATHS else value for key, value in message.items()})

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next message; None after that time without one. Raises `ProcessEnded`."""
        try:
            reply = self._answers.get(timeout=timeout_s)
        except Empty:
            self._check_command()
            self._note_waiting()
            reply = None
        if reply is None and self._error is not None:
            raise self._error
        return reply

    def kill(self) -> None:
        """End the process: it sees that its folder has gone. The command is stopped, and its job withdrawn."""
        with self._kill_lock:
            if not self._folder.exists():
                return
            self._error = self._error or ProcessEnded("the training process was ended")
            self._answers.put(None)
            self._channel.close()
            if not self._has_failed:
                self._withdraw()
            self._stop_command()
            shutil.rmtree(self._folder, ignore_errors=True)

    # The command

    def _run(self) -> subprocess.Popen[bytes]:
        with self._output_file("out").open("wb") as out, self._output_file("err").open("wb") as err:
            return subprocess.Popen(
                ["/bin/sh", "-c", self._filled(self._command.start)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self._environment(),
                process_group=0,  # a Ctrl-C at the terminal is for the node
            )

    def _withdraw(self) -> None:
        if not self._command.cancel:
            return
        output = self._tail("out", OUTPUT_BYTES_MAX).strip()
        text = self._filled(self._command.cancel).replace("{output}", shlex.quote(output))
        call = ["/bin/sh", "-c", text]
        try:
            done = subprocess.run(
                call, env=self._environment(), capture_output=True, timeout=CANCEL_COMMAND_S, check=False
            )
            why = done.stderr.decode("utf-8", "replace").strip()[:OUTPUT_BYTES_MAX] if done.returncode else ""
        except subprocess.TimeoutExpired as error:
            why = str(error)
        if why:
            self._log.warning("the command that withdraws the training process has failed", command=text, why=why)

    def _stop_command(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:
                return
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)

    @property
    def _has_failed(self) -> bool:
        return bool(self._process.poll())

    def _check_command(self) -> None:
        if self._has_failed and self._error is None:
            lines = (self._tail("err") or self._tail("out")).split("\n")
            last = " / ".join(line.strip() for line in lines if line.strip()).strip()
            text = f"the command for the training process has ended with exit code {self._process.returncode}"
            hint = f"its last words: {last}" if last else "run trainer_command in a shell"
            self._end(ProcessEnded(text, code="trainer.command", hint=hint))

    def _filled(self, text: str) -> str:
        return text.replace("{folder}", shlex.quote(str(self._folder))).replace("{name}", self._folder.name)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "SHOAL_TRAINER_FOLDER": str(self._folder), "SHOAL_TRAINER_NAME": self._folder.name}

    def _output_file(self, name: str) -> Path:
        return self._folder / f"command.{name}"

    def _tail(self, name: str, nbytes: int = 4096) -> str:
        data = b""
        with suppress(OSError):
            data = self._output_file(name).read_bytes()[-nbytes:]
        return "\n".join(data.decode("utf-8", "replace").strip().split("\n")[-LAST_LINES:])

    # Messages

    def _shared(self, path: str) -> str:
        """Return a file's path in the shared folder; a file from elsewhere is copied there."""
        place = Path(path)
        if path and not place.is_relative_to(self._root):
            place = self._folder / place.name
            with storing(place), suppress(FileExistsError):
                shutil.copyfile(path, place)
        return str(place.relative_to(self._root)) if path else ""

    def _take(self, message: dict[str, Any]) -> None:
        if "log" in message:
            line = dict(message["log"])
            level, event = line.pop("level"), line.pop("event")
            if level in LEVELS:
                getattr(self._log, level)(str(event), **{**self._about, **line})
        elif "ended" in message:
            self._end(ProcessEnded(str(message["ended"]), hint=str(message["hint"])))
        else:
            self._answers.put(message)

    def _lose(self, why: str) -> None:
        hint = "look at its job, and whether both see trainer_dir; trainer_timeout_s is the limit of silence"
        self._end(ProcessEnded(f"the training process is lost: {why}", hint=hint))

    def _end(self, error: ProcessEnded) -> None:
        if self._error is None:
            self._error = error
            self._log.info("the training process is not there any more", why=error.message, hint=error.hint)
        self._answers.put(None)

    def _note_waiting(self) -> None:
        now = time.monotonic()
        if not self._channel.heard and now - self._noted_at >= WAITING_LOG_S:
            self._noted_at = now
            self._log.info(
                "waiting for the training process to start",
                seconds=round(now - self._asked_at),
                output=self._tail("out", OUTPUT_BYTES_MAX),
            )
