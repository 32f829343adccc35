"""What a process logs, kept for a moment so that it can be shown elsewhere: bounded, and what does not fit is counted.

Credentials are hidden before anything is kept. A line's age is measured on this process's own clock; whoever takes it
adds no clock of his to it.
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

from shoal.runtime.logs import redact, redacted
from shoal.strict_json import mended

LINES_MAX = 5000
TEXT_CHARACTERS_MAX = 4000
FIELDS_BYTES_MAX = 2000

_PLACED = ("at", "level", "event", "role", "node", "job", "round", "exception")


@dataclass(frozen=True)
class Line:
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
        """About as many bytes as it takes as JSON."""
        return len(json.dumps(self.text)) + len(json.dumps(self.fields)) + 100


class Lines(logging.Handler):
    """The newest lines of this process. `without`: names of loggers that are not kept."""

    def __init__(self, level: int, *, without: tuple[str, ...] = (), lines_max: int = LINES_MAX) -> None:
        super().__init__(level)
        self._without, self._most = without, lines_max
        self._kept: deque[Line] = deque()
        self._guard = threading.Lock()
        self._count = self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record; never waits, never raises."""
        if record.name.startswith(self._without or ("\0",)):
            return
        try:
            values = _values(record)
        except Exception:  # noqa: BLE001 - as in every handler: what is logged must not end who logs it
            self.handleError(record)
            return
        with self._guard:
            self._count += 1
            if len(self._kept) >= self._most:
                self._kept.popleft()
                self._dropped += 1
            self._kept.append(Line(self._count, time.monotonic(), record.levelno, **values))

    def take(self, most: int, bytes_max: int = sys.maxsize) -> tuple[list[Line], int]:
        """The oldest lines that are kept, and how many were dropped before them since this was last asked."""
        with self._guard:
            taken: list[Line] = []
            while self._kept and len(taken) < most and bytes_max > 0:
                taken.append(self._kept.popleft())
                bytes_max -= taken[-1].nbytes
            dropped, self._dropped = self._dropped, 0
        return taken, dropped

    def lose(self, count: int) -> None:
        """So many that were taken could not be delivered."""
        with self._guard:
            self._dropped += count

    def __len__(self) -> int:
        return len(self._kept)


def _values(record: logging.LogRecord) -> dict[str, Any]:
    """What stands in a record, of structlog's or of another library's."""
    if isinstance(record.msg, Mapping):
        said = dict(record.msg)
    else:
        said = dict(redacted(None, "", {"event": record.getMessage(), "logger": record.name}))
        if record.exc_info:
            said["exception"] = redact(logging.Formatter().formatException(record.exc_info))
    text = "\n".join(str(said[name]) for name in ("event", "exception") if said.get(name))
    rest = {str(k): v for k, v in said.items() if k not in _PLACED and not str(k).startswith("_")}
    number = said.get("round")
    found = {
        "text": text[:TEXT_CHARACTERS_MAX],
        "job": str(said.get("job") or ""),
        "round": number if isinstance(number, int) else None,
        "fields": _small(rest),
    }
    return {name: mended(value) for name, value in found.items()}  # a name of a file may be in another encoding


def _small(fields: dict[str, Any]) -> dict[str, Any]:
    """As JSON can carry them; only as many as fit."""
    kept: dict[str, Any] = {}
    room = FIELDS_BYTES_MAX
    for name, value in fields.items():
        plain = value if isinstance(value, bool | int | None) else str(value)[:500]
        room -= len(json.dumps({name: plain}))
        if room < 0:
            break
        kept[name] = plain
    return kept
