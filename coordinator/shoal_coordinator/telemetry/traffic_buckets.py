"""Bytes of all jobs by quarter of an hour: the traffic since a moment, in any time zone.

The transaction that adds bytes to `traffic` adds them here too, under the quarter of its commit; bytes of a quarter's
last seconds may count in the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from shoal_coordinator.storage.tables import traffic_buckets as buckets
from shoal_coordinator.telemetry.traffic import crossed

QUARTER_S = 900
KEPT_S = 8 * 86_400
"""For a week, and a day for time zones."""


def start(since: float, now: float) -> int:
    """Return the start of the quarter from which bytes since then are counted (s since 1970), at most the kept ones."""
    return int(min(now, max(since, now - KEPT_S)) // QUARTER_S) * QUARTER_S


def add(connection: Connection, rows: Iterable[dict[str, Any]], now: float) -> None:
    """Add the bytes of these rows of `traffic` that belong to jobs; quarters that are too old go."""
    counts: Counter[str] = Counter()
    for row in rows:
        if row["job"] and crossed(row["kind"], row["direction"]):
            counts[row["direction"]] += row["head_bytes"] + row["body_bytes"]
    at = start(now, now)
    for direction, size in counts.items():
        here = (buckets.c.at == at) & (buckets.c.direction == direction)
        grown = connection.execute(update(buckets).where(here).values(bytes=buckets.c.bytes + size))
        if not grown.rowcount:
            connection.execute(delete(buckets).where(buckets.c.at < start(0, now)))
            connection.execute(insert(buckets).values(at=at, direction=direction, bytes=size))


async def since(connection: AsyncConnection, at: float) -> dict[str, int]:
    """Return bytes by direction ("up", "down") in the quarters that began at `at` (s since 1970) or later."""
    query = select(buckets.c.direction, func.sum(buckets.c.bytes)).where(buckets.c.at >= at)
    found = {row[0]: int(row[1]) for row in await connection.execute(query.group_by(buckets.c.direction))}
    return {direction: found.get(direction, 0) for direction in ("up", "down")}
