"""Logging of all processes to stderr: text on a terminal, JSON Lines elsewhere.

    {"at": "2026-01-02T03:04:05.678Z", "level": "info", "event": "training", "role": "edge", "node": "a", "job": "x"}

`role`, `node`, `job` and `round` are bound once they are known. Values that look like credentials, or have such names,
are replaced before a line is written. Lines of other libraries through `logging` have the same form.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal, TextIO

import stamina
import structlog
from stamina.instrumentation import RetryDetails

from shoal.core.errors import message_of

Form = Literal["auto", "console", "json"]

HIDDEN = "[redacted]"
_SECRET = re.compile(r"sh([onvt])_[A-Za-z0-9_-]{4,}|(?i:\bbearer\s+)[^\s\"',;]+")
_UNSEEN = re.compile(
    "\x1b\\[[0-9;]*[A-Za-z]|[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)
"""Colors, controls but tab and new line, and what Unicode has for layout alone."""
_SECRET_NAMES = {"token", "credential", "authorization", "cookie", "password", "secret"}
_DEPTH_MAX = 6
USUAL_WAITS_S = {"storage.pending": 4.0}
"""By an error's code: seconds for which a healthy job may have it."""
_QUIET = ("asyncio", "urllib3", "alembic")


def configure(
    role: str, *, level: str = "info", form: Form = "auto", stream: TextIO | None = None, **fields: str
) -> None:
    """Set the log of this process up; `fields` stand on every line. Calling it again replaces what was set."""
    out = stream or sys.stderr
    console = form == "console" or (form == "auto" and out.isatty())
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(role=role, **fields)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if console else "iso", utc=not console, key="at"),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        redacted,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    end: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, in_order, _renderer(console, out)]
    handler = logging.StreamHandler(out)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=end))
    root = logging.getLogger()
    for old in [one for one in root.handlers if getattr(one, "of_shoal", False)]:
        root.removeHandler(old)
    handler.of_shoal = True  # type: ignore[attr-defined]  # a mark of ours, to find it again
    root.addHandler(handler)
    root.setLevel(level.upper())
    stamina.instrumentation.set_on_retry_hooks([log_retry])
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _renderer(console: bool, out: TextIO) -> Any:
    if not console:
        return structlog.processors.JSONRenderer(sort_keys=False, ensure_ascii=False)
    colors = out.isatty() and not os.environ.get("NO_COLOR")
    return structlog.dev.ConsoleRenderer(colors=colors, timestamp_key="at", pad_event_to=0, pad_level=False)


def redact(text: str) -> str:
    """Return the text without credentials and control characters."""
    if not text.isprintable():
        text = _UNSEEN.sub("", text)
    return _SECRET.sub(lambda found: f"sh{found[1]}_{HIDDEN}" if found[1] else f"Bearer {HIDDEN}", text)


def redacted(_logger: Any, _method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Hide credentials, by name and by form (a structlog processor)."""
    return {name: _hidden(name, value, 0) for name, value in entry.items()}


def _hidden(name: str, value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float) or name.startswith("_"):  # the last are structlog's own
        return value
    if value and name.lower().rpartition("_")[2] in _SECRET_NAMES:
        return HIDDEN
    if isinstance(value, Mapping) and depth < _DEPTH_MAX:
        return {str(key): _hidden(str(key), inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth < _DEPTH_MAX:
        return [_hidden("", inner, depth + 1) for inner in value]
    return redact(str(value))


def log_retry(details: RetryDetails) -> None:
    """Log a failed try (a hook of stamina): a warning, but a debug line during the first seconds of a usual wait."""
    error, log = details.caused_by, structlog.get_logger("stamina")
    is_usual = details.waited_so_far < USUAL_WAITS_S.get(getattr(error, "code", ""), 0.0)
    text = f"trying again in {round(details.wait_for, 2):g} s"
    (log.debug if is_usual else log.warning)(text, why=message_of(error), tries=details.retry_num)


def in_order(_logger: Any, _method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Order the fields: time, level, event, logger, then the rest (a structlog processor)."""
    return {name: entry[name] for name in (*_FIRST, *entry) if name in entry}


_FIRST = ("at", "level", "event", "role", "node", "job", "round")
