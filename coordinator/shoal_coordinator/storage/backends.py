"""Where a database is, and what the two kinds differ in: how it is reached, who alone writes, what a lost answer means.

A file of SQLite belongs to the process that holds its lock. A PostgreSQL database belongs to those who hold rows of the
table `leases`: the lead has one, each deputy one of its own (`shoal.core.owners`). A row's epoch grows with each owner,
and every transaction begins by renewing the lease in that epoch. So an owner that was paused for too long cannot write
any more, and no clock counts but the database's. The row also counts the owner's commits: that tells, after a
connection broke in the midst of one, whether it happened.

No session is relied on (no advisory locks, no prepared statements, no settings): a pool that hands a connection on
after each transaction does no harm.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Any, Protocol

import structlog
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    bindparam,
    create_engine,
    event,
    extract,
    func,
    inspect,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool

from shoal.core.errors import StorageFailed
from shoal.strict_json import mended
from shoal_coordinator.dialects import insert, to_json
from shoal_coordinator.seat import Post, Seat, clock, lock, reached
from shoal_coordinator.tables import leases

log = structlog.get_logger()

_NAMES_A_FILE = re.compile(r"sqlite:///(?!:memory:)[^?#]+")
DB_CLOCK = extract("epoch", func.clock_timestamp())
_MINE = (leases.c.name == bindparam("of_name")) & (leases.c.epoch == bindparam("of_epoch"))
_DURABLE = func.set_config("synchronous_commit", "on", True)
# It waits for the transaction in doubt, if the server has not ended that yet.
_COMMITS = select(leases.c.commits).where(_MINE).with_for_update()

# Whoever has changed the row and not committed yet, though his lease, or that of his former life, has ended.
EVICT = text(
    "SELECT pg_terminate_backend(pg_locks.pid) FROM pg_locks JOIN leases ON pg_locks.transactionid = leases.xmax"
    " WHERE pg_locks.granted AND leases.name = :name"
    " AND (leases.until < extract(epoch FROM clock_timestamp()) OR leases.holder = :holder)"
)


class Fenced(StorageFailed):
    """Another coordinator owns the database now."""

    def __init__(self) -> None:
        super().__init__(
            "another coordinator has taken the database over",
            code="storage.fenced",
            hint="this one was silent for too long, and ends; the other goes on",
        )


class Place(Protocol):
    """A database as `Database` uses it."""

    engine: Engine
    """Of the one connection that writes."""
    reader: AsyncEngine
    renews_s: float | None
    """How often the writer has to commit, if only nothing."""

    def seize(self, connection: Connection) -> None:
        """Become the one that writes. Raises `StorageFailed` (`storage.locked`) while another is."""

    def evict(self) -> bool:
        """End what an owner whose time is over has left in the midst of something; whether there was anything."""

    def enter(self, connection: Connection, commits: int) -> None:
        """Begin a transaction, this process's `commits`th. Raises `Fenced` when another writes now."""

    def stands(self, connection: Connection) -> bool:
        """Whether the transaction still does: an error may have ended it."""

    def happened(self, connection: Connection, commits: int) -> bool:
        """Whether the `commits`th transaction was committed; asked in one of its own. Raises as `enter`."""

    def renewed(self) -> None:
        """The last transaction that was entered is committed."""

    def owns(self) -> bool:
        """Whether nobody else can be writing now."""

    def fenced(self) -> None:
        """Somebody else writes now."""

    def let_go(self, *, keeps: bool = False) -> None:
        """Another may have it. `keeps`: not yet, only after the lease."""


def place(url: str, folder: Path | None, post: Post | None) -> Place:
    """The place that a URL names. `folder`: that of the coordinator's data; `post`: if it has one at that database.

    Raises `StorageFailed` (`storage.url`)."""
    return SqliteFile(url) if _NAMES_A_FILE.fullmatch(url) else Postgres(server(url), folder, post)


def is_shared(url: str) -> bool:
    """Whether several coordinators may have that database."""
    return _NAMES_A_FILE.fullmatch(url) is None


def server(url: str) -> URL:
    """The database of PostgreSQL that a URL names. Raises `StorageFailed` (`storage.url`)."""
    try:
        found = make_url(url)
    except ArgumentError:
        found = None
    if found is None or found.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        kind = found.drivername if found is not None else "that"
        raise StorageFailed(
            f"the database's address names no file of SQLite and no PostgreSQL database ({kind[:20]})",
            code="storage.url",
            hint="write sqlite:////absolute/path/to/shoal.db or postgresql://user@host/name, or leave it empty",
        )
    return found.set(drivername="postgresql+psycopg")


class SqliteFile:
    """One file, one process."""

    renews_s: float | None = None

    def __init__(self, url: str) -> None:
        path = url.removeprefix("sqlite:///")
        self._lock = lock(Path(f"{path}.lock"), path)
        self.engine = create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
        event.listen(self.engine, "connect", _configure_sqlite)
        event.listen(self.engine, "begin", _begin_immediate)
        # Readers cannot write, and so cannot checkpoint.
        self.reader = create_async_engine(
            f"sqlite+aiosqlite:///file:{path}?mode=ro&uri=true", pool_size=4, max_overflow=4
        )

    def seize(self, connection: Connection) -> None:
        """The lock has done it."""

    def evict(self) -> bool:
        return False

    def enter(self, connection: Connection, commits: int) -> None:
        """Nobody else can."""

    def stands(self, connection: Connection) -> bool:
        sqlite: Any = connection.connection.dbapi_connection
        return bool(sqlite.in_transaction)

    def happened(self, connection: Connection, commits: int) -> bool:
        return False  # a commit that fails is rolled back: there is no connection that could break

    def renewed(self) -> None:
        """There is nothing to renew."""

    def owns(self) -> bool:
        return True

    def fenced(self) -> None:
        """Nobody else can."""

    def let_go(self, *, keeps: bool = False) -> None:
        self.engine.dispose()
        self._lock.close()


def _configure_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000", "foreign_keys=ON", "mmap_size=0"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


class Postgres:
    """A PostgreSQL database. A coordinator that was killed takes up its own lease at once: its folder has its name."""

    def __init__(self, url: URL, folder: Path | None, post: Post | None = None) -> None:
        self._has_own_seat = post is None
        self.epoch, self._asked = 0, 0.0
        self._post = post or Seat(url, folder).lead
        self._seat, self._mine = self._post.seat, {"of_name": self._post.row}
        self.renews_s: float | None = self._seat.lease_s / 3
        self.engine, self.reader = _engines(url, self._seat.lease_s)
        self._renew = _renewing(self._seat.lease_s)

    def seize(self, connection: Connection) -> None:
        if self.epoch or not inspect(connection).has_table(leases.name):
            return  # seized already; or a new database: asked again after the tables are made
        _check_encoding(connection)
        connection.execute(select(func.set_config("lock_timeout", str(int(self._seat.lease_s * 1000)), True)))
        row = self._post.row
        free = {"name": row, "epoch": 0, "holder": "", "until": 0.0, "commits": 0}
        connection.execute(insert(leases).on_conflict_do_nothing(), free)
        mine = (leases.c.holder == self._seat.name) | (leases.c.until < DB_CLOCK)
        until = DB_CLOCK + self._seat.lease_s
        take = update(leases).where(leases.c.name == row, mine)
        take = take.values(epoch=leases.c.epoch + 1, holder=self._seat.name, until=until, commits=0)
        self._asked = clock()
        epoch = connection.execute(take.returning(leases.c.epoch)).scalar()
        if epoch is None:
            left = connection.execute(select(leases.c.until - DB_CLOCK).where(leases.c.name == row)).scalar_one()
            raise StorageFailed(
                f"another coordinator uses this database; if it is dead, its lease ends in {max(0.0, left):.0f} s",
                code="storage.locked",
                hint="stop it, or wait: its standbys take over",
            )
        self.epoch = epoch

    def evict(self) -> bool:
        """(The server does so by itself, unless an owner was stopped between two halves of one statement.)"""
        with self.engine.begin() as connection:
            return bool(connection.execute(EVICT, {"name": self._post.row, "holder": self._seat.name}).all())

    def enter(self, connection: Connection, commits: int) -> None:
        here = {**self._mine, "of_epoch": self.epoch, "of_commits": commits}
        self._asked = clock()
        if connection.execute(self._renew, here).first() is None:
            raise Fenced

    def stands(self, connection: Connection) -> bool:
        if connection.invalidated:
            return False
        session: Any = connection.connection.dbapi_connection
        return bool(session.info.transaction_status.name == "INTRANS")

    def happened(self, connection: Connection, commits: int) -> bool:
        found = connection.execute(_COMMITS, {**self._mine, "of_epoch": self.epoch}).scalar()
        if found is None:
            raise Fenced
        return bool(found == commits)

    def renewed(self) -> None:
        self._post.hold.renewed(self._asked)

    def owns(self) -> bool:
        return self._post.hold.holds(clock())

    def fenced(self) -> None:
        self._post.hold.fenced()

    def announce(self, connection: Connection, address: str) -> str:
        """From now on requests may be passed on to that address; the secret with which they are signed."""
        secret = secrets.token_hex(32)
        told = update(leases).where(_MINE).values(address=address, secret=secret, speaks=leases.c.epoch)
        connection.execute(told, {**self._mine, "of_epoch": self.epoch})
        return secret

    def let_go(self, *, keeps: bool = False) -> None:
        if self.epoch and not keeps:
            try:
                with self.engine.begin() as connection:
                    ended = update(leases).where(_MINE).values(until=0.0)
                    connection.execute(ended, {**self._mine, "of_epoch": self.epoch})
            except DBAPIError as error:
                log.info("the lease on the database ends by itself", error=str(error.orig))
        self.engine.dispose()
        self.unlock()

    def unlock(self) -> None:
        """Let the folder go, unless somebody else holds it."""
        if self._has_own_seat:
            self._seat.close()


def _check_encoding(connection: Connection) -> None:
    """Raise `StorageFailed` unless the database can keep every text."""
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding not in ("UTF8", "SQL_ASCII"):  # the latter keeps bytes as they are
        raise StorageFailed(
            f"the database's encoding is {encoding}, in which not every text can be kept",
            code="storage.encoding",
            hint="make another: CREATE DATABASE shoal ENCODING 'UTF8' TEMPLATE template0",
        )


def _renewing(lease_s: float) -> Any:
    """The statement that every transaction begins with."""
    # With it the server ends a transaction whose coordinator has stopped in the midst of it, and so lets the lease go.
    idle = func.set_config("idle_in_transaction_session_timeout", str(int(lease_s * 1000)), True)
    values = {"until": DB_CLOCK + lease_s, "commits": bindparam("of_commits")}
    return update(leases).where(_MINE).values(values).returning(idle, _DURABLE)


def _engines(url: URL, lease_s: float) -> tuple[Engine, AsyncEngine]:
    """One connection to write with, a few to read with."""
    more: dict[str, Any] = {"connect_args": reached(lease_s), "json_serializer": to_json}
    writer = create_engine(url, pool_size=1, max_overflow=0, **more)
    read_only = {"postgresql_readonly": True}
    reader = create_async_engine(
        url, pool_size=4, max_overflow=4, pool_pre_ping=True, execution_options=read_only, **more
    )
    for engine in (writer, reader.sync_engine):
        event.listen(engine, "connect", _keep_plain_texts)
    return writer, reader


def _keep_plain_texts(connection: Any, _record: object) -> None:
    """Nodes may say anything in a text; what PostgreSQL cannot keep of it is replaced, instead of losing the rest."""
    from psycopg.types.string import StrDumperUnknown

    class Plain(StrDumperUnknown):
        def dump(self, obj: str) -> Any:
            return super().dump(mended(obj))

    connection.adapters.register_dumper(str, Plain)
