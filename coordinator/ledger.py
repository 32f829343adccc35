"""The byte ledger: what crossed the wire, per job, version, node, kind and direction.

Booked in memory where the protocol counts, added to the database every `traffic_flush_s`. After a `kill -9` at most
that much of the *count* is missing; nothing else depends on it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.sqlite import insert

from coordinator.protocol import Exchange
from coordinator.tables import traffic


class Key(NamedTuple):
    """Where bytes are booked. `direction` "up" is node to coordinator."""

    job: str
    version: int
    node: str
    kind: str
    direction: str


class Counts:
    """Requests, and the bytes of their heads and bodies."""

    __slots__ = ("body", "head", "requests")

    def __init__(self) -> None:
        self.requests = self.head = self.body = 0

    def add(self, requests: int, head: int, body: int) -> None:
        self.requests += requests
        self.head += head
        self.body += body


class Ledger:
    """Books exchanges. `totals` and `of_node` answer for (job, direction) and (job, node, direction) at once."""

    def __init__(self) -> None:
        self._pending: defaultdict[Key, Counts] = defaultdict(Counts)
        self.totals: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.of_node: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self.of_version: defaultdict[tuple[str, int, str], int] = defaultdict(int)

    def book(self, exchange: Exchange) -> None:
        """Take the bytes of one request and its response."""
        label = exchange.label
        self._add(Key(*label, "up"), 1, exchange.up - exchange.up_body, exchange.up_body)
        self._add(Key(*label, "down"), 1, exchange.down_head, exchange.down - exchange.down_head)

    def _add(self, key: Key, requests: int, head: int, body: int) -> None:
        self._pending[key].add(requests, head, body)
        self._sum(key, head + body)

    def _sum(self, key: Key, count: int) -> None:
        self.totals[key.job, key.direction] += count
        self.of_node[key.job, key.node, key.direction] += count
        self.of_version[key.job, key.version, key.direction] += count

    def load(self, connection: Connection) -> None:
        """Take up the sums of earlier processes."""
        size = func.sum(traffic.c.head_bytes + traffic.c.body_bytes)
        keys = (traffic.c.job, traffic.c.version, traffic.c.node, traffic.c.direction)
        for job, version, node, direction, count in connection.execute(select(*keys, size).group_by(*keys)):
            self._sum(Key(job, version, node, "", direction), int(count))

    def take(self) -> list[dict[str, Any]]:
        """The rows to add to the database; they are not pending any more."""
        rows = [
            {**key._asdict(), "requests": c.requests, "head_bytes": c.head, "body_bytes": c.body}
            for key, c in self._pending.items()
        ]
        self._pending.clear()
        return rows

    def put_back(self, rows: list[dict[str, Any]]) -> None:
        """These could not be written: they are pending again."""
        for row in rows:
            key = Key(row["job"], row["version"], row["node"], row["kind"], row["direction"])
            self._pending[key].add(row["requests"], row["head_bytes"], row["body_bytes"])


def add_rows(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """Add counts to those in the database."""
    if not rows:
        return
    statement = insert(traffic)
    new = statement.excluded
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=list(traffic.primary_key.columns),
            set_={name: traffic.c[name] + new[name] for name in ("requests", "head_bytes", "body_bytes")},
        ),
        rows,
    )
