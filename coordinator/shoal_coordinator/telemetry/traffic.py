"""The byte ledger: what crossed the wire, per job, version, node, kind and direction.

Booked in memory where the protocol counts, added to the database every `traffic_flush_s`. After a `kill -9` at most
that much of the *count* is missing; nothing else depends on it.

Bodies that go by addresses of the store never come by here: nodes count what has crossed and tell it, each transfer
under a number of its own, under which it is booked once. What a node did not live to tell is missing.

What nodes exchange among themselves never comes by here. They tell sums of it, again and again, and what a sum has more
than the one before is booked under the kind "gossip": sent as up, received as down, an exchange as a request. A sum and
what was booked of it are written in one transaction, so a sum that is told again after a crash adds what is missing.
What one node has received another has sent: sums over nodes count it once, at its sender (`crossed`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, select

from shoal.core.errors import InvalidPayload
from shoal_coordinator.bulk import Bulk
from shoal_coordinator.dialects import insert, whole_sum
from shoal_coordinator.protocol import Exchange, Label
from shoal_coordinator.tables import gossip_bytes, traffic


class Key(NamedTuple):
    """Where bytes are booked. `direction` "up" is node to coordinator."""

    job: str
    version: int
    node: str
    kind: str
    direction: str


def crossed_by_direction(job: str) -> Select[Any]:
    """The query for a job's bytes in each direction, each counted once."""
    size = whole_sum(traffic.c.head_bytes + traffic.c.body_bytes)
    told_twice = (traffic.c.kind == GOSSIP) & (traffic.c.direction == "down")
    chosen = select(traffic.c.direction, size).where(traffic.c.job == job, ~told_twice)
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


class Spent(NamedTuple):
    """Bytes that have crossed since a job's start, each counted once."""

    up: int
    down: int


class Mark(NamedTuple):
    """What a node has told of its exchanges with others since its start number `boot`."""

    boot: int = 0
    exchanges: int = 0
    sent: int = 0
    received: int = 0


_NEW = insert(traffic)
_ADD = Bulk(
    _NEW.on_conflict_do_update(
        index_elements=list(traffic.primary_key.columns),
        set_={name: traffic.c[name] + _NEW.excluded[name] for name in ("requests", "head_bytes", "body_bytes")},
    )
)

GOSSIP = "gossip"

WAYS = ("up", "down")

RECENT = 64
"""Versions that count as just made."""

TOLD_KEPT = 10_000
"""Transfers past the coordinator that are known to be booked: for as long as a node may tell of one again."""


def crossed(kind: str, direction: str) -> bool:
    """Whether such bytes are counted in sums over nodes: all are, but those that their sender has told of too."""
    return (kind, direction) != (GOSSIP, "down")


GOSSIP_BYTES_MAX = 2**50
"""Of one node in one job: sums of what nodes claim must stay whole numbers of the database."""


class Ledger:
    """Books exchanges. `totals` and `of_node` answer for (job, direction) and (job, node, direction) at once."""

    def __init__(self) -> None:
        self._pending: defaultdict[Key, Counts] = defaultdict(Counts)
        self.totals: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.of_node: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._of_version: defaultdict[str, dict[int, list[int]]] = defaultdict(dict)  # up, down; those that are kept
        self._newest: dict[str, int] = {}  # by job, the newest version that bytes were booked under
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._marks: dict[tuple[str, str], Mark] = {}
        self._moved: set[tuple[str, str]] = set()
        self._gossip: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._shared: dict[str, defaultdict[Key, Counts]] = {}  # by jobs that another coordinator owns

    def book(self, exchange: Exchange) -> None:
        """Take the bytes of one request and its response."""
        label = exchange.label
        self._add(Key(*label, "up"), 1, exchange.up - exchange.up_body, exchange.up_body)
        self._add(Key(*label, "down"), 1, exchange.down_head, exchange.down - exchange.down_head)

    def book_moved(self, label: Label, number: str, requests: int, up: tuple[int, int], down: tuple[int, int]) -> None:
        """Take what a node tells of a transfer past the coordinator, (head, body) of each direction, once."""
        if (label.node, number) in self._told:
            return
        self._told[label.node, number] = None
        if len(self._told) > TOLD_KEPT:
            self._told.popitem(last=False)
        self._add(Key(*label, "up"), requests, *up)
        self._add(Key(*label, "down"), requests, *down)

    def book_gossip(self, job: str, version: int, node: str, told: Mark) -> None:
        """Take what a node tells of its exchanges. What is older than what it has told already adds nothing.

        Raises `InvalidPayload` for more than can be.
        """
        known = self._marks.get((job, node), Mark())
        if told.boot < known.boot:
            return
        before = known if told.boot == known.boot else Mark(told.boot)
        now = Mark(told.boot, *map(max, told[1:], before[1:]))
        exchanges, sent, received = (new - old for new, old in zip(now[1:], before[1:], strict=True))
        if self._gossip[job, node] + sent + received > GOSSIP_BYTES_MAX:
            hint = "its counters are damaged: remove the node's state folder"
            raise InvalidPayload(f"{node} tells of too many bytes to be true", code="peering.bytes", hint=hint)
        self._gossip[job, node] += sent + received
        self._marks[job, node] = now
        self._moved.add((job, node))
        self._add(Key(job, version, node, GOSSIP, "up"), exchanges, 0, sent)
        self._add(Key(job, version, node, GOSSIP, "down"), exchanges, 0, received)

    def begin_anew(self, node: str) -> None:
        """A node has a new key, and so a new folder, in which starts are counted from one again."""
        for job, name in self._marks:
            if name == node:
                self._marks[job, name] = Mark()
                self._moved.add((job, name))

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
                self._of_version[key.job].setdefault(key.version, [0, 0])[WAYS.index(key.direction)] += count
                self._newest[key.job] = max(key.version, self._newest.get(key.job, -1))

    def spent(self, job: str, numbers: Sequence[int]) -> list[Spent]:
        """Return, for each of these versions (ascending), what had crossed when the round that made it was over.

        Bytes of a round are booked under the version that it started from, those outside any round under -1. For
        versions that were just made the cost does not depend on how many there are.
        """
        book, newest = self._of_version.get(job, {}), self._newest.get(job, -1)
        if not numbers:
            return []
        if newest - numbers[0] < RECENT:
            late = [[book[n] for n in range(number, newest + 1) if n in book] for number in numbers]
            up, down = (self.totals[job, way] for way in WAYS)
            return [Spent(up - sum(u for u, _ in one), down - sum(d for _, d in one)) for one in late]
        order = sorted(book)
        ups, downs = ([0, *accumulate(book[n][way] for n in order)] for way in (0, 1))
        places = [bisect_left(order, number) for number in numbers]
        return [Spent(ups[place], downs[place]) for place in places]

    def roll_up(self, job: str, kept: Sequence[int]) -> None:
        """Add bytes of versions that are not kept to those of the last one before; `kept`: all in a range."""
        book = self._of_version.get(job, {})
        if not kept or not book:
            return
        for gone in [n for n in book if kept[0] < n < kept[-1]]:
            last = kept[bisect_right(kept, gone) - 1]
            if last != gone:
                up, down = book.pop(gone)
                here = book.setdefault(last, [0, 0])
                here[:] = here[0] + up, here[1] + down

    def load(self, connection: Connection) -> None:
        """Take up the sums of earlier processes."""
        self._load_sums(connection, _sums())
        told = select(traffic.c.job, traffic.c.node, whole_sum(traffic.c.body_bytes)).where(traffic.c.kind == GOSSIP)
        for job, node, count in connection.execute(told.group_by(traffic.c.job, traffic.c.node)):
            self._gossip[job, node] = int(count)
        for row in connection.execute(select(gossip_bytes)):
            self._marks[row.job, row.node] = Mark(row.boot, row.exchanges, row.sent, row.received)

    def _load_sums(self, connection: Connection, query: Select[Any]) -> None:
        for *key, count in connection.execute(query):
            self._sum(Key(*key), int(count))

    def take(self) -> list[dict[str, Any]]:
        """The rows to add to the database; they are not pending any more."""
        rows = _rows(self._pending)
        self._pending.clear()
        return rows

    # Among several coordinators: the lead writes the counts of all

    def take_in(self, rows: Sequence[dict[str, Any]]) -> None:
        """Counts of another coordinator, to be written as if they had been booked here."""
        for row in rows:
            self._pending[_key(row)].add(row["requests"], row["head_bytes"], row["body_bytes"])
        self.learn(rows)

    def learn(self, rows: Sequence[dict[str, Any]]) -> None:
        """Counts that another coordinator has booked, and writes: they only belong to the sums here."""
        for row in rows:
            self._sum(_key(row), row["head_bytes"] + row["body_bytes"])

    def reload(self, connection: Connection, jobs: Collection[str]) -> None:
        """These jobs' sums, as the database has them."""
        for job in jobs:
            self._of_version.pop(job, None)
        every: list[dict[Any, int]] = [self.totals, self.of_node]
        for sums in every:
            for key in [key for key in sums if key[0] in jobs]:
                del sums[key]
        self._load_sums(connection, _sums().where(traffic.c.job.in_(jobs)))

    def forget(self, job: str) -> None:
        """Know nothing of a job that was removed."""
        of_key: list[dict[Any, Any]] = [self.totals, self.of_node, self._pending, self._marks, self._gossip]
        for book in of_key:
            for key in [key for key in book if key[0] == job]:
                del book[key]
        self._moved = {key for key in self._moved if key[0] != job}
        for of_job in (self._of_version, self._newest, self._shared):
            of_job.pop(job, None)

    def share(self, jobs: Collection[str]) -> None:
        """These jobs are other coordinators': from now on what is booked here for them is noted (`owe`)."""
        self._shared = {job: self._shared.get(job) or defaultdict(Counts) for job in jobs}

    def owe(self, jobs: Collection[str]) -> list[dict[str, Any]]:
        """What was booked here for these jobs since it was asked last."""
        owed = [row for job in jobs for row in _rows(self._shared.get(job, {}))]
        self._shared |= {job: defaultdict(Counts) for job in jobs}
        return owed

    def take_marks(self) -> list[dict[str, Any]]:
        """The sums that go with the rows; to be written with them."""
        rows = [{"job": job, "node": node, **self._marks[job, node]._asdict()} for job, node in sorted(self._moved)]
        self._moved.clear()
        return rows

    def put_back(self, rows: list[dict[str, Any]], marks: list[dict[str, Any]]) -> None:
        """These could not be written: they are pending again."""
        self._moved |= {(row["job"], row["node"]) for row in marks}
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
