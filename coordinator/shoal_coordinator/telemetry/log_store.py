"""Log store: lines of nodes and of the coordinator, for people; no other part depends on it.

    take / own lines ─ a bounded queue ─ flush, once a second, in one transaction ─ the table, bounded by size and age

A node that sends too much is asked to wait; further lines are counted and dropped. Lines get the coordinator's time,
minus their age on the node's clock. A repeated batch is stored once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, String, cast, delete, func, select

from shoal.runtime.observability.log_buffer import LogBuffer, LogRecord
from shoal.runtime.observability.logs import redact
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.dialects import insert
from shoal_coordinator.storage.tables import logs

WAITING_MAX = 20_000
"""Lines of all nodes that may wait for the disk."""

BURST_S = 20.0
"""Seconds of its rate that a node may send at once."""

KEPT_SHARE = 0.875
"""Share of `logs_bytes_max` that remains after a deletion."""

DROPPED = "%d lines of the log were dropped here"

COORDINATOR = ""


@dataclass
class _Allowance:
    """Allowance of lines of a node; it grows with time."""

    left: float
    at: float


@dataclass
class Flushed:
    """Result of a flush: the jobs concerned, and the newest line."""

    jobs: set[str] = field(default_factory=set)
    last: int = 0


class LogStore:
    """Queue and table of log lines. `now` is monotonic, `at` the wall clock, both in seconds."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting: list[dict[str, Any]] = []
        self._dropped: defaultdict[str, int] = defaultdict(int)
        self._allowed: dict[str, _Allowance] = {}
        self._incarnation, self._notes = secrets.token_hex(8), 0
        self._bytes: int | None = None
        self.own = LogBuffer(logging.INFO)
        self.writing = asyncio.Lock()

    # From nodes

    def take(self, node: str, incarnation: str, lines: Sequence[LogRecord], dropped: int) -> float:
        """Queue a node's lines within its rate; return seconds until it may send more. `born` counts back from 0."""
        now, at = time.monotonic(), time.time()
        if dropped:
            self._dropped[node] += dropped
        for line in lines:
            if not self._take_allowance(node, now):
                self._dropped[node] += 1
                continue
            self._put(node, incarnation, line, at + min(line.born, 0.0))
        known = self._allowed.get(node)
        return BURST_S / 5 - known.left / self._rate if known is not None and known.left < 1.0 else 0.0

    @property
    def _rate(self) -> float:
        return self._settings.log_lines_per_s

    def _take_allowance(self, node: str, now: float) -> bool:
        most = self._rate * BURST_S
        known = self._allowed.setdefault(node, _Allowance(most, now))
        known.left, known.at = min(most, known.left + (now - known.at) * self._rate), now
        if known.left < 1.0:
            return False
        known.left -= 1.0
        return True

    def _put(self, node: str, incarnation: str, line: LogRecord, at: float) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self._dropped[node] += 1
            return
        row = {"at": at, "node": node, "job": line.job, "round": line.round, "level": line.level}
        row |= {"text": redact(line.text), "fields": line.fields, "incarnation": incarnation, "number": line.number}
        self._waiting.append(row)

    def take_in(self, rows: Sequence[dict[str, Any]]) -> None:
        """Queue lines that another coordinator has gathered."""
        self._waiting += rows[: max(0, WAITING_MAX - len(self._waiting))]

    # To the disk

    def gather(self) -> list[dict[str, Any]]:
        """Return the queued lines, the coordinator's own, and one for each node that lost some."""
        now, at = time.monotonic(), time.time()
        mine, dropped = self.own.take(WAITING_MAX)
        if dropped:
            self._dropped[COORDINATOR] += dropped
        for line in mine:
            self._put(COORDINATOR, self._incarnation, line, at - (now - line.born))
        found, self._waiting = self._waiting, []
        dropped_lines, self._dropped = self._dropped, defaultdict(int)
        for node, count in dropped_lines.items():
            self._notes -= 1
            row = {"at": at, "node": node, "job": "", "round": None, "level": logging.WARNING, "text": DROPPED % count}
            found.append(row | {"fields": {}, "incarnation": self._incarnation, "number": self._notes})
        return found

    def write(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> Flushed:
        """Write lines down, and clear away what is too old or too much."""
        if rows:
            connection.execute(insert(logs).on_conflict_do_nothing(), rows)
        self._clear(connection, sum(_size(row) for row in rows))
        last = connection.execute(select(func.max(logs.c.id))).scalar() or 0
        return Flushed({row["job"] for row in rows}, last)

    def _clear(self, connection: Connection, added: int) -> None:
        if self._bytes is None:
            self._bytes = connection.execute(select(func.sum(_nbytes()))).scalar() or 0
        else:
            self._bytes += added
        ends = connection.execute(select(func.min(logs.c.id), func.max(logs.c.id))).one()
        if ends[0] is None:
            return
        oldest = connection.execute(select(logs.c.at).where(logs.c.id == ends[0])).scalar() or 0.0
        too_old = time.time() - self._settings.logs_retention_s
        if oldest < too_old:
            connection.execute(delete(logs).where(logs.c.at < too_old, logs.c.id < ends[0] + WAITING_MAX))
            self._bytes = None
        elif self._bytes > self._settings.logs_bytes_max:
            share = 1.0 - KEPT_SHARE * self._settings.logs_bytes_max / self._bytes
            connection.execute(delete(logs).where(logs.c.id <= ends[0] + int(share * (ends[1] - ends[0]))))
            self._bytes = None


def _size(row: dict[str, Any]) -> int:
    return len(row["text"]) + len(str(row["fields"]))


def _nbytes() -> ColumnElement[int]:
    return func.length(logs.c.text) + func.length(cast(logs.c.fields, String))


@dataclass(frozen=True)
class LogFilter:
    """Filter of log lines; None matches all. `level`: the lowest."""

    job: str | None = None
    node: str | None = None
    level: int = 0

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the filter as conditions of a query."""
        found = [logs.c.level >= self.level] if self.level else []
        if self.job is not None:
            found.append(logs.c.job == self.job)
        if self.node is not None:
            found.append(logs.c.node == self.node)
        return found


def contains(text: str) -> ColumnElement[bool]:
    """Return whether a line contains the text, ignoring case."""
    return logs.c.text.icontains(text, autoescape=True)
