"""Bounded buffer of a process's log lines for other readers; dropped lines are counted.

Credentials are removed before a line is stored. A line's age is measured by this process's clock, so that readers need
no synchronized clock.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.runtime.observability.logs import redact, redacted
from shoal.validation.strict_json import sanitize

LINES_MAX = 5000
TEXT_CHARACTERS_MAX = 4000
FIELDS_BYTES_MAX = 2000

_PLACED = ("at", "level", "event", "role", "node", "job", "round", "exception")


@dataclass(frozen=True)
class LogRecord:
    """One line. `number` counts from the start of the process; `born` is on `time.monotonic`."""

    number: int
    born: float
    level: int
    text: str
    job: str = ""
    round: int | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Return the approximate length as JSON."""
        return len(json.dumps(self.text)) + len(json.dumps(self.fields)) + 100


class LogBuffer(logging.Handler):
    """The newest lines of this process. `without`: names of loggers that are not kept."""

    def __init__(self, level: int, *, without: tuple[str, ...] = (), lines_max: int = LINES_MAX) -> None:
        super().__init__(level)
        self._without, self._most = without, lines_max
        self._kept: deque[LogRecord] = deque()
        self._guard = threading.Lock()
        self._count = self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record; never waits, never raises."""
        if record.name.startswith(self._without or ("\0",)):
            return
        try:
            values = _values(record)
        except Exception:  # noqa: BLE001 - as in every handler: logging must not raise
            self.handleError(record)
            return
        with self._guard:
            self._count += 1
            if len(self._kept) >= self._most:
                self._kept.popleft()
                self._dropped += 1
            self._kept.append(LogRecord(self._count, time.monotonic(), record.levelno, **values))

    def take(self, most: int, bytes_max: int = sys.maxsize) -> tuple[list[LogRecord], int]:
        """Remove and return the oldest lines, and the number of lines dropped before them."""
        with self._guard:
            taken: list[LogRecord] = []
            while self._kept and len(taken) < most and bytes_max > 0:
                taken.append(self._kept.popleft())
                bytes_max -= taken[-1].nbytes
            dropped, self._dropped = self._dropped, 0
        return taken, dropped

    def lose(self, count: int) -> None:
        """Count lines that could not be delivered."""
        with self._guard:
            self._dropped += count

    def __len__(self) -> int:
        return len(self._kept)


def _values(record: logging.LogRecord) -> dict[str, Any]:
    """Return the values of a record, from structlog or another library."""
    if isinstance(record.msg, Mapping):
        fields = dict(record.msg)
    else:
        fields = dict(redacted(None, "", {"event": record.getMessage(), "logger": record.name}))
        if record.exc_info:
            fields["exception"] = redact(logging.Formatter().formatException(record.exc_info))
    text = "\n".join(str(fields[name]) for name in ("event", "exception") if fields.get(name))
    rest = {str(k): v for k, v in fields.items() if k not in _PLACED and not str(k).startswith("_")}
    number = fields.get("round")
    found = {
        "text": text[:TEXT_CHARACTERS_MAX],
        "job": str(fields.get("job") or ""),
        "round": number if isinstance(number, int) else None,
        "fields": _small(rest),
    }
    return {name: sanitize(value) for name, value in found.items()}  # a name of a file may be in another encoding


def _small(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the values that JSON can hold, as many as fit."""
    kept: dict[str, Any] = {}
    room = FIELDS_BYTES_MAX
    for name, value in fields.items():
        plain = value if isinstance(value, bool | int | None) else str(value)[:500]
        room -= len(json.dumps({name: plain}))
        if room < 0:
            break
        kept[name] = plain
    return kept
