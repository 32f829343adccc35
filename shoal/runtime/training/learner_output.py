"""The standard error of a training process: copied to this process's log, and its last lines remembered."""

from __future__ import annotations

import json
import os
import re
import threading
from collections import deque
from collections.abc import Mapping
from typing import IO, Any

WAIT_S = 5.0
"""Seconds that reading may take when the process has ended. A process that it started may hold the pipe open."""
LINE_CHARACTERS_MAX = 2000
LAST_LINES = 3

_BREAKS = re.compile(rb"[\r\n]+")
LEVELS = ("debug", "info", "warning", "error", "critical")
_CARRIED = ("logger", "exception", "why", "hint", "job", "task")


class LearnerOutput:
    """The output of one process, read in a thread. `about`: the present task, which each log line names."""

    def __init__(self, pipe: IO[bytes], log: Any, about: Mapping[str, str]) -> None:
        self._pipe, self._log, self._about = pipe, log, about
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._reader = threading.Thread(target=self._read, name="shoal-training-output", daemon=True)
        self._reader.start()

    def last_words(self) -> str:
        """Return the last lines of a process that has ended, once they are read; log lines are not among them."""
        self._reader.join(WAIT_S)
        return " / ".join(self._last_lines)

    def _read(self) -> None:
        rest = b""
        with self._pipe as pipe:
            while piece := os.read(pipe.fileno(), 1 << 16):
                *lines, rest = _BREAKS.split(rest + piece)
                for line in lines:
                    self._copy(line)
                if len(rest) > LINE_CHARACTERS_MAX:
                    self._copy(rest)
                    rest = b""
        self._copy(rest)

    def _copy(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()[:LINE_CHARACTERS_MAX]
        if not text:
            return
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if isinstance(entry, dict) and entry.get("level") in LEVELS and "event" in entry:
            carried = {name: entry[name] for name in _CARRIED if name in entry}
            getattr(self._log, entry["level"])(str(entry["event"]), **{**self._about, **carried})
            return
        self._last_lines.append(text)
        self._log.info(text, source="learner", **self._about)
