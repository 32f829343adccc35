"""Traffic counters: bytes on the wire, per job, version, node, kind and direction.

Counted in memory at the protocol, added to the database every `traffic_flush_s`. After a `kill -9` at most the
counts of that time are missing.

Nodes count transfers with a blob store and report them, each under a number, under which it is counted once.
Transfers that a node did not live to report are missing.

Nodes also report growing sums of their exchanges with peers. The increase over the previous sum is counted under
the kind "gossip": sent as up, received as down, an exchange as a request. A sum and its counts are written in one
transaction, so a sum repeated after a crash adds what is missing. Bytes that one node has received were sent by
another: sums over nodes count them once, at the sender (`crossed`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, select

from shoal.core.errors import InvalidPayload
from shoal.runtime.http.server.exchange import HttpExchange
from shoal_coordinator.schemas.peers import PeerStatusReport
from shoal_coordinator.storage.bulk_insert import BulkInsert
from shoal_coordinator.storage.dialects import insert, whole_sum
from shoal_coordinator.storage.tables import gossip_bytes, traffic


class Key(NamedTuple):
    """Key of a counter. `direction` "up" is node to coordinator."""

    job: str
    version: int
    node: str
    kind: str
    direction: str


def crossed_by_direction(job: str) -> Select[Any]:
    """Return the query for a job's bytes in each direction, each counted once."""
    size = whole_sum(traffic.c.head_bytes + traffic.c.body_bytes)
    counted_twice = (traffic.c.kind == GOSSIP) & (traffic.c.direction == "down")
    chosen = select(traffic.c.direction, size).where(traffic.c.job == job, ~counted_twice)
    return chosen.group_by(traffic.c.direction)


class Counts:
    """Requests, and the bytes of their heads and bodies."""

    __slots__ = ("body", "head", "requests")

    def __init__(self) -> None:
        self.requests = self.head = self.body = 0

    def add(self, requests: int, head: int, body: int) -> None:
        self.requests += requests
        self.head += head
        self.body += body


class Label(NamedTuple):
    """Purpose of a request. Version -1: outside any round."""

    job: str = ""
    version: int = -1
    node: str = ""
    kind: str = "other"


@dataclass
class LabeledExchange(HttpExchange):
    """A request to a coordinator and its response."""

    label: Label = field(default_factory=Label)
    elsewhere: bool = False
    """Another coordinator answers it, and counts it."""


class Spent(NamedTuple):
    """Bytes that have crossed since a job's start, each counted once."""

    up: int
    down: int


class Mark(NamedTuple):
    """Sums of a node's exchanges with peers since the start of process `process_number`."""

    process_number: int = 0
    exchanges: int = 0
    sent: int = 0
    received: int = 0

    @classmethod
    def of(cls, status: PeerStatusReport) -> Mark:
        """Return the sums over the peers of a node's status."""
        exchanges, sent, received = (
            sum(getattr(edge, name) for edge in status.peers.values()) for name in ("exchanges", "sent", "received")
        )
        return cls(status.process_number, exchanges, sent, received)


_NEW = insert(traffic)
_ADD = BulkInsert(
    _NEW.on_conflict_do_update(
        index_elements=list(traffic.primary_key.columns),
        set_={name: traffic.c[name] + _NEW.excluded[name] for name in ("requests", "head_bytes", "body_bytes")},
    )
)

GOSSIP = "gossip"

DIRECTIONS = ("up", "down")

RECENT_VERSIONS = 64
"""Newest versions whose sums are computed without a pass over all."""

TRANSFERS_KEPT = 10_000
"""Ids of counted transfers that are remembered, because nodes may report one twice."""


def crossed(kind: str, direction: str) -> bool:
    """Return whether such bytes count in sums over nodes: all except those that their sender reports too."""
    return (kind, direction) != (GOSSIP, "down")


GOSSIP_BYTES_MAX = 2**50
"""Limit for one node in one job: sums of claimed bytes must fit the database's integers."""


class TrafficCounter:
    """Counter of bytes. `totals` is by (job, direction), `of_node` by (job, node, direction)."""

    def __init__(self) -> None:
        self._pending: defaultdict[Key, Counts] = defaultdict(Counts)
        self.totals: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.of_node: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._of_version: defaultdict[str, dict[int, list[int]]] = defaultdict(dict)  # up, down; those that are kept
        self._newest: dict[str, int] = {}  # by job, the newest version with bytes
        self._known_transfers: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._marks: dict[tuple[str, str], Mark] = {}
        self._changed_marks: set[tuple[str, str]] = set()
        self._gossip: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._shared: dict[str, defaultdict[Key, Counts]] = {}  # by jobs that another coordinator owns

    def count(self, exchange: LabeledExchange) -> None:
        """Take the bytes of one request and its response."""
        label = exchange.label
        self._add(Key(*label, "up"), 1, exchange.up - exchange.up_body, exchange.up_body)
        self._add(Key(*label, "down"), 1, exchange.down_head, exchange.down - exchange.down_head)

    def count_transfer(
        self, label: Label, number: str, requests: int, up: tuple[int, int], down: tuple[int, int]
    ) -> None:
        """Count a transfer between a node and the store once: (head, body) of each direction."""
        if (label.node, number) in self._known_transfers:
            return
        self._known_transfers[label.node, number] = None
        if len(self._known_transfers) > TRANSFERS_KEPT:
            self._known_transfers.popitem(last=False)
        self._add(Key(*label, "up"), requests, *up)
        self._add(Key(*label, "down"), requests, *down)

    def count_gossip(self, job: str, version: int, node: str, sums: Mark) -> None:
        """Add the increase of a node's reported sums of exchanges; older sums add nothing.

        Raises `InvalidPayload` for impossible sums.
        """
        known = self._marks.get((job, node), Mark())
        if sums.process_number < known.process_number:
            return
        before = known if sums.process_number == known.process_number else Mark(sums.process_number)
        now = Mark(sums.process_number, *map(max, sums[1:], before[1:]))
        exchanges, sent, received = (new - old for new, old in zip(now[1:], before[1:], strict=True))
        if self._gossip[job, node] + sent + received > GOSSIP_BYTES_MAX:
            hint = "its counters are damaged: remove the node's state folder"
            raise InvalidPayload(f"{node} reports an impossible number of bytes", code="peering.bytes", hint=hint)
        self._gossip[job, node] += sent + received
        self._marks[job, node] = now
        self._changed_marks.add((job, node))
        self._add(Key(job, version, node, GOSSIP, "up"), exchanges, 0, sent)
        self._add(Key(job, version, node, GOSSIP, "down"), exchanges, 0, received)

    def reset_marks(self, node: str) -> None:
        """Reset a node's sums, because it has a new key and counts its starts from one again."""
        for job, name in self._marks:
            if name == node:
                self._marks[job, name] = Mark()
                self._changed_marks.add((job, name))

    def _add(self, key: Key, requests: int, head: int, body: int) -> None:
        self._pending[key].add(requests, head, body)
        self._sum(key, head + body)
        if key.job in self._shared:
            self._shared[key.job][key].add(requests, head, body)

    def _sum(self, key: Key, count: int) -> None:
        self.of_node[key.job, key.node, key.direction] += count
        if crossed(key.kind, key.direction):
            self.totals[key.job, key.direction] += count
            if key.job:
                self._of_version[key.job].setdefault(key.version, [0, 0])[DIRECTIONS.index(key.direction)] += count
                self._newest[key.job] = max(key.version, self._newest.get(key.job, -1))

    def spent(self, job: str, numbers: Sequence[int]) -> list[Spent]:
        """Return, for each of these versions (ascending), what had crossed when the round that made it was over.

        Bytes of a round are counted under the version that it started from, those outside any round under -1. For
        versions that were just made the cost does not depend on how many there are.
        """
        by_version, newest = self._of_version.get(job, {}), self._newest.get(job, -1)
        if not numbers:
            return []
        if newest - numbers[0] < RECENT_VERSIONS:
            late = [[by_version[n] for n in range(number, newest + 1) if n in by_version] for number in numbers]
            up, down = (self.totals[job, direction] for direction in DIRECTIONS)
            return [Spent(up - sum(u for u, _ in one), down - sum(d for _, d in one)) for one in late]
        order = sorted(by_version)
        ups, downs = ([0, *accumulate(by_version[n][way] for n in order)] for way in (0, 1))
        places = [bisect_left(order, number) for number in numbers]
        return [Spent(ups[place], downs[place]) for place in places]

    def roll_up(self, job: str, kept: Sequence[int]) -> None:
        """Add bytes of versions that are not kept to those of the last one before; `kept`: all in a range."""
        by_version = self._of_version.get(job, {})
        if not kept or not by_version:
            return
        for gone in [n for n in by_version if kept[0] < n < kept[-1]]:
            last = kept[bisect_right(kept, gone) - 1]
            if last != gone:
                up, down = by_version.pop(gone)
                here = by_version.setdefault(last, [0, 0])
                here[:] = here[0] + up, here[1] + down

    def load(self, connection: Connection) -> None:
        """Load the sums of earlier processes."""
        self._load_sums(connection, _sums())
        gossip = select(traffic.c.job, traffic.c.node, whole_sum(traffic.c.body_bytes)).where(traffic.c.kind == GOSSIP)
        for job, node, count in connection.execute(gossip.group_by(traffic.c.job, traffic.c.node)):
            self._gossip[job, node] = int(count)
        for row in connection.execute(select(gossip_bytes)):
            self._marks[row.job, row.node] = Mark(row.process_number, row.exchanges, row.sent, row.received)

    def _load_sums(self, connection: Connection, query: Select[Any]) -> None:
        for *key, count in connection.execute(query):
            self._sum(Key(*key), int(count))

    def take(self) -> list[dict[str, Any]]:
        """Return the rows to add to the database, and clear them."""
        rows = _rows(self._pending)
        self._pending.clear()
        return rows

    # Among several coordinators: the leader writes the counts of all

    def add_rows_of_follower(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add counts of another coordinator, which this one writes."""
        for row in rows:
            self._pending[_key(row)].add(row["requests"], row["head_bytes"], row["body_bytes"])
        self.add_to_sums(rows)

    def add_to_sums(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add counts that another coordinator writes to the sums only."""
        for row in rows:
            self._sum(_key(row), row["head_bytes"] + row["body_bytes"])

    def reload(self, connection: Connection, jobs: Collection[str]) -> None:
        """Replace the sums of these jobs by those of the database."""
        for job in jobs:
            self._of_version.pop(job, None)
        every: list[dict[Any, int]] = [self.totals, self.of_node]
        for sums in every:
            for key in [key for key in sums if key[0] in jobs]:
                del sums[key]
        self._load_sums(connection, _sums().where(traffic.c.job.in_(jobs)))

    def forget(self, job: str) -> None:
        """Forget a job that was removed."""
        keyed: list[dict[Any, Any]] = [self.totals, self.of_node, self._pending, self._marks, self._gossip]
        for by_version in keyed:
            for key in [key for key in by_version if key[0] == job]:
                del by_version[key]
        self._changed_marks = {key for key in self._changed_marks if key[0] != job}
        for by_job in (self._of_version, self._newest, self._shared):
            by_job.pop(job, None)

    def share(self, jobs: Collection[str]) -> None:
        """Start recording bytes counted on behalf of these jobs of other coordinators (`take_shared`)."""
        self._shared = {job: self._shared.get(job) or defaultdict(Counts) for job in jobs}

    def take_shared(self, jobs: Collection[str]) -> list[dict[str, Any]]:
        """Return bytes counted for these jobs since the previous call."""
        rows = [row for job in jobs for row in _rows(self._shared.get(job, {}))]
        self._shared |= {job: defaultdict(Counts) for job in jobs}
        return rows

    def take_marks(self) -> list[dict[str, Any]]:
        """Return the sums of exchanges, to be written with the rows."""
        rows = [
            {"job": job, "node": node, **self._marks[job, node]._asdict()} for job, node in sorted(self._changed_marks)
        ]
        self._changed_marks.clear()
        return rows

    def put_back(self, rows: list[dict[str, Any]], marks: list[dict[str, Any]]) -> None:
        """Make rows pending again that could not be written."""
        self._changed_marks |= {(row["job"], row["node"]) for row in marks}
        for row in rows:
            self._pending[_key(row)].add(row["requests"], row["head_bytes"], row["body_bytes"])


def _sums() -> Select[Any]:
    keys = [traffic.c[name] for name in Key._fields]
    return select(*keys, whole_sum(traffic.c.head_bytes + traffic.c.body_bytes)).group_by(*keys)


def _key(row: dict[str, Any]) -> Key:
    return Key(row["job"], row["version"], row["node"], row["kind"], row["direction"])


def _rows(counts: Mapping[Key, Counts]) -> list[dict[str, Any]]:
    names = (*Key._fields, "requests", "head_bytes", "body_bytes")
    return [dict(zip(names, (*key, c.requests, c.head, c.body), strict=True)) for key, c in counts.items()]


def add_rows(connection: Connection, rows: list[dict[str, Any]], marks: list[dict[str, Any]]) -> None:
    """Add counts to those in the database; in the same transaction, keep the sums that they come from."""
    if marks:
        sums = insert(gossip_bytes)
        changed = {name: sums.excluded[name] for name in Mark._fields}
        connection.execute(sums.on_conflict_do_update(index_elements=["job", "node"], set_=changed), marks)
    _ADD.write(connection, rows)
