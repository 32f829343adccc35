"""The log of all: what nodes show of theirs, and the coordinator's own lines. For people; nothing depends on it.

    take / own lines ─ a bounded queue ─ flush, once a second, in one transaction ─ the table, bounded by size and age

A node that says too much is told to wait; what it says all the same is counted and dropped. Lines get the coordinator's
time, less their age on the node's own clock. A batch that comes twice is kept once.
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

from shoal.runtime.log_lines import Line, Lines
from shoal.runtime.logs import redact
from shoal_coordinator.dialects import insert
from shoal_coordinator.settings import Settings
from shoal_coordinator.tables import logs

WAITING_MAX = 20_000
"""Lines of all nodes that may wait for the disk."""

BURST_S = 20.0
"""For so long a node may say at once what it is allowed."""

KEPT_SHARE = 0.875
"""Of the size that is allowed, what is left when it was passed."""

DROPPED = "%d lines of the log were dropped here"

OF_THE_COORDINATOR = ""


@dataclass
class _Allowance:
    """What a node may still say; it grows with time."""

    left: float
    at: float


@dataclass
class Flushed:
    """What was written: the jobs that are concerned, and the newest line."""

    jobs: set[str] = field(default_factory=set)
    last: int = 0


class Logbook:
    """Everything between a line and the disk. `now` is monotonic, `at` the wall's clock; both in seconds."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting: list[dict[str, Any]] = []
        self._lost: defaultdict[str, int] = defaultdict(int)
        self._allowed: dict[str, _Allowance] = {}
        self._boot, self._asides = secrets.token_hex(8), 0
        self._bytes: int | None = None
        self.own = Lines(logging.INFO)
        self.writing = asyncio.Lock()

    # From nodes

    def take(self, node: str, boot: str, lines: Sequence[Line], dropped: int) -> float:
        """Take a node's lines, if it may say so much; seconds until it may say more. `born` counts back from 0."""
        now, at = time.monotonic(), time.time()
        if dropped:
            self._lost[node] += dropped
        for line in lines:
            if not self._may_say(node, now):
                self._lost[node] += 1
                continue
            self._put(node, boot, line, at + min(line.born, 0.0))
        known = self._allowed.get(node)
        return BURST_S / 5 - known.left / self._rate if known is not None and known.left < 1.0 else 0.0

    @property
    def _rate(self) -> float:
        return self._settings.log_lines_per_s

    def _may_say(self, node: str, now: float) -> bool:
        most = self._rate * BURST_S
        known = self._allowed.setdefault(node, _Allowance(most, now))
        known.left, known.at = min(most, known.left + (now - known.at) * self._rate), now
        if known.left < 1.0:
            return False
        known.left -= 1.0
        return True

    def _put(self, node: str, boot: str, line: Line, at: float) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self._lost[node] += 1
            return
        row = {"at": at, "node": node, "job": line.job, "round": line.round, "level": line.level}
        row |= {"text": redact(line.text), "fields": line.fields, "boot": boot, "number": line.number}
        self._waiting.append(row)

    def take_in(self, rows: Sequence[dict[str, Any]]) -> None:
        """Lines of another coordinator, as it has gathered them."""
        self._waiting += rows[: max(0, WAITING_MAX - len(self._waiting))]

    # To the disk

    def gather(self) -> list[dict[str, Any]]:
        """What waits, with the coordinator's own lines and a line for each node of which something was lost."""
        now, at = time.monotonic(), time.time()
        mine, dropped = self.own.take(WAITING_MAX)
        if dropped:
            self._lost[OF_THE_COORDINATOR] += dropped
        for line in mine:
            self._put(OF_THE_COORDINATOR, self._boot, line, at - (now - line.born))
        found, self._waiting = self._waiting, []
        lost, self._lost = self._lost, defaultdict(int)
        for node, count in lost.items():
            self._asides -= 1
            row = {"at": at, "node": node, "job": "", "round": None, "level": logging.WARNING, "text": DROPPED % count}
            found.append(row | {"fields": {}, "boot": self._boot, "number": self._asides})
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
        too_old = time.time() - self._settings.logs_age_s
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
class Sought:
    """Which lines somebody wants to see; None: all. `level`: the least."""

    job: str | None = None
    node: str | None = None
    level: int = 0

    def conditions(self) -> list[ColumnElement[bool]]:
        """For a query."""
        found = [logs.c.level >= self.level] if self.level else []
        if self.job is not None:
            found.append(logs.c.job == self.job)
        if self.node is not None:
            found.append(logs.c.node == self.node)
        return found


def holds(text: str) -> ColumnElement[bool]:
    """Whether a line holds that text, in capitals or not."""
    return logs.c.text.icontains(text, autoescape=True)
