"""One end of the messages between a node and its training process through a shared folder.

Each end has a sequence of messages (`message_log`), and repeats an empty one as a sign of life. Clocks and the times of
files are not compared. The node makes the folder for one start of the process and removes it at the end: an end that
does not find it is not wanted any more.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.core.errors import StorageFailed
from shoal.runtime.training.message_log import MessageLogReader, MessageLogWriter

NODE, TRAINER = "node", "trainer"
"""The names of the two sequences."""
POLL_S = 0.1
"""Interval in seconds of looks for messages."""
SIGNS = 10
"""Signs of life in the time after which an end counts as lost."""
CLOSE_S = 5.0
"""Seconds that a look may take to end: a file server may not answer."""
GONE = {errno.ENOENT, errno.ESTALE}


class FolderChannel:
    """Messages of one end. `take` receives each message and `lose` the reason why there will be none, in a thread.

    Args:
        timeout_s: seconds of silence after which the other end is lost.
        heard: whether the other end was there at the beginning, so that its silence counts from there on.
    """

    def __init__(
        self,
        folder: Path,
        names: tuple[str, str],
        timeout_s: float,
        take: Callable[[dict[str, Any]], None],
        lose: Callable[[str], None],
        *,
        heard: bool,
    ) -> None:
        self.timeout_s = timeout_s
        self._take, self._lose = take, lose
        self._writer, self._reader = MessageLogWriter(folder, names[0]), MessageLogReader(folder, names[1])
        self._heard_at = time.monotonic() if heard else None
        self._sent_at = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-training-channel", daemon=True)
        self._thread.start()

    @property
    def heard(self) -> bool:
        """Return whether the other end has sent anything."""
        return self._heard_at is not None

    def send(self, message: Mapping[str, Any], *, sync: bool = True) -> None:
        """Send a message; unless `sync` is set, with the next one. Raises `StorageFailed`."""
        self._writer.append(message, sync=sync)
        if sync:
            self._sent_at = time.monotonic()

    def close(self) -> None:
        """Stop. The other end finds silence, or that the folder has gone."""
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)
        self._writer.close()

    def _run(self) -> None:
        why = ""
        while not why and not self._closed.wait(POLL_S):
            why = self._look()
        if why:
            self._lose(why)

    def _look(self) -> str:
        """Take messages and give a sign of life; return why there will be no more, or ""."""
        found: list[dict[str, Any]] = []
        try:
            found = self._reader.read()
        except OSError as error:  # others may pass, within the limit of silence
            if error.errno in GONE:
                return "its folder is gone"
        except ValueError as error:
            return str(error)
        now = time.monotonic()
        if found:
            self._heard_at = now
        for message in filter(None, found):
            self._take(message)
        if now - self._sent_at >= self.timeout_s / SIGNS:
            with suppress(StorageFailed):  # a full disk: silence is all that the other end can be told
                self.send({})
        if self._heard_at is not None and now - self._heard_at > self.timeout_s:
            return f"it has been silent for {now - self._heard_at:.0f} s"
        return ""
