"""Database backends, SQLite and PostgreSQL: connection, exclusive writing, and the meaning of a lost answer.

A file of SQLite belongs to the process that holds its lock. A PostgreSQL database belongs to the holders of rows in the
table `leases`: the leader has one, each follower its own (`shoal.core.cluster.job_assignment`). A row's term grows with
each owner, and every transaction begins by renewing the lease in that term. So an owner that was paused for too long
cannot write any more, and only the database's clock counts. The row also counts the owner's commits, which tells after
a broken connection whether a commit happened.

No session state is used (prepared statements, settings, or advisory locks that outlive a transaction), so a transaction
pool is safe.
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
from shoal.validation.strict_json import sanitize
from shoal_coordinator.storage.dialects import insert, to_json
from shoal_coordinator.storage.lease_store import LeaseHolder, LeaseStore, clock, connect_args, lock
from shoal_coordinator.storage.tables import leases

log = structlog.get_logger()

_SQLITE_FILE = re.compile(r"sqlite:///(?!:memory:)[^?#]+")
DB_CLOCK = extract("epoch", func.clock_timestamp())
_MINE = (leases.c.name == bindparam("of_name")) & (leases.c.term == bindparam("of_term"))
_DURABLE = func.set_config("synchronous_commit", "on", True)
# It waits for the transaction in doubt, if the server has not ended that yet.
_COMMITS = select(leases.c.commits).where(_MINE).with_for_update()

# Sessions with an uncommitted change of the row whose lease, or that of their former process, has ended.
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


class Backend(Protocol):
    """A database as `Database` uses it."""

    engine: Engine
    """The engine of the one connection that writes."""
    reader: AsyncEngine
    renews_s: float | None
    """Interval in seconds at which the writer must commit, even without writes."""

    def seize(self, connection: Connection) -> None:
        """Become the writer. Raises `StorageFailed` (`storage.locked`) while another process is."""

    def evict(self) -> bool:
        """End transactions that a former owner left open; return whether there were any."""

    def enter(self, connection: Connection, commits: int) -> None:
        """Begin this process's transaction number `commits`. Raises `Fenced` when another process writes now."""

    def is_open(self, connection: Connection) -> bool:
        """Return whether the transaction is still open; an error may have ended it."""

    def was_committed(self, connection: Connection, commits: int) -> bool:
        """Return whether the `commits`th transaction was committed, in a transaction of its own. Raises as `enter`."""

    def renewed(self) -> None:
        """Record that the transaction entered last is committed."""

    def owns(self) -> bool:
        """Return whether no other process can be writing now."""

    def fenced(self) -> None:
        """Record that another process writes now."""

    def release(self, *, keeps: bool = False) -> None:
        """Release the ownership. `keeps`: only when the lease ends."""


def open_backend(url: str, folder: Path | None, lease_holder: LeaseHolder | None) -> Backend:
    """Return the backend for a URL. `folder`: the coordinator's data; `lease_holder`: its lease, if it has one.

    Raises `StorageFailed` (`storage.url`).
    """
    return SqliteFile(url) if _SQLITE_FILE.fullmatch(url) else Postgres(server(url), folder, lease_holder)


def is_shared(url: str) -> bool:
    """Return whether several coordinators may share the database."""
    return _SQLITE_FILE.fullmatch(url) is None


def server(url: str) -> URL:
    """Return the PostgreSQL server of a URL. Raises `StorageFailed` (`storage.url`)."""
    try:
        found = make_url(url)
    except ArgumentError:
        found = None
    if found is None or found.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        kind = found.drivername if found is not None else "that"
        raise StorageFailed(
            f"the database's address is neither a SQLite file nor a PostgreSQL database ({kind[:20]})",
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
        """Do nothing: the lock is the ownership."""

    def evict(self) -> bool:
        return False

    def enter(self, connection: Connection, commits: int) -> None:
        """Do nothing: the lock excludes other writers."""

    def is_open(self, connection: Connection) -> bool:
        sqlite: Any = connection.connection.dbapi_connection
        return bool(sqlite.in_transaction)

    def was_committed(self, connection: Connection, commits: int) -> bool:
        return False  # a commit that fails is rolled back: there is no connection that could break

    def renewed(self) -> None:
        """Do nothing: there is no lease to renew."""

    def owns(self) -> bool:
        return True

    def fenced(self) -> None:
        """Do nothing: the lock excludes other writers."""

    def release(self, *, keeps: bool = False) -> None:
        self.engine.dispose()
        self._lock.close()


def _configure_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000", "foreign_keys=ON", "mmap_size=0"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


class Postgres:
    """A PostgreSQL database. A killed coordinator can take its own lease at once: its folder has its name."""

    def __init__(self, url: URL, folder: Path | None, lease_holder: LeaseHolder | None = None) -> None:
        self._has_own_store = lease_holder is None
        self.term, self._asked = 0, 0.0
        self._lease_holder = lease_holder or LeaseStore(url, folder).leader
        self._store, self._mine = self._lease_holder.store, {"of_name": self._lease_holder.row}
        self.renews_s: float | None = self._store.lease_s / 3
        self.engine, self.reader = _engines(url, self._store.lease_s)
        self._renew = _renewing(self._store.lease_s)

    def seize(self, connection: Connection) -> None:
        if self.term or not inspect(connection).has_table(leases.name):
            return  # seized already; or a new database: asked again after the tables are made
        _check_encoding(connection)
        connection.execute(select(func.set_config("lock_timeout", str(int(self._store.lease_s * 1000)), True)))
        row = self._lease_holder.row
        free = {"name": row, "term": 0, "holder": "", "until": 0.0, "commits": 0}
        connection.execute(insert(leases).on_conflict_do_nothing(), free)
        mine = (leases.c.holder == self._store.name) | (leases.c.until < DB_CLOCK)
        until = DB_CLOCK + self._store.lease_s
        take = update(leases).where(leases.c.name == row, mine)
        take = take.values(term=leases.c.term + 1, holder=self._store.name, until=until, commits=0)
        self._asked = clock()
        term = connection.execute(take.returning(leases.c.term)).scalar()
        if term is None:
            left = connection.execute(select(leases.c.until - DB_CLOCK).where(leases.c.name == row)).scalar_one()
            raise StorageFailed(
                f"another coordinator uses this database; if it is dead, its lease ends in {max(0.0, left):.0f} s",
                code="storage.locked",
                hint="stop it, or wait: its standbys take over",
            )
        self.term = term

    def evict(self) -> bool:
        """Terminate database sessions of an earlier owner that was stopped in the middle of a statement."""
        with self.engine.begin() as connection:
            return bool(connection.execute(EVICT, {"name": self._lease_holder.row, "holder": self._store.name}).all())

    def enter(self, connection: Connection, commits: int) -> None:
        here = {**self._mine, "of_term": self.term, "of_commits": commits}
        self._asked = clock()
        if connection.execute(self._renew, here).first() is None:
            raise Fenced

    def is_open(self, connection: Connection) -> bool:
        if connection.invalidated:
            return False
        session: Any = connection.connection.dbapi_connection
        return bool(session.info.transaction_status.name == "INTRANS")

    def was_committed(self, connection: Connection, commits: int) -> bool:
        found = connection.execute(_COMMITS, {**self._mine, "of_term": self.term}).scalar()
        if found is None:
            raise Fenced
        return bool(found == commits)

    def renewed(self) -> None:
        self._lease_holder.lease.renewed(self._asked)

    def owns(self) -> bool:
        return self._lease_holder.lease.holds(clock())

    def fenced(self) -> None:
        self._lease_holder.lease.fenced()

    def announce(self, connection: Connection, address: str) -> str:
        """Publish this coordinator's address; return the secret that signs forwarded requests."""
        secret = secrets.token_hex(32)
        announced = update(leases).where(_MINE).values(address=address, secret=secret, announced_term=leases.c.term)
        connection.execute(announced, {**self._mine, "of_term": self.term})
        return secret

    def release(self, *, keeps: bool = False) -> None:
        if self.term and not keeps:
            try:
                with self.engine.begin() as connection:
                    ended = update(leases).where(_MINE).values(until=0.0)
                    connection.execute(ended, {**self._mine, "of_term": self.term})
            except DBAPIError as error:
                log.info("the lease on the database ends by itself", error=str(error.orig))
        self.engine.dispose()
        if self._has_own_store:
            self._store.close()


def _check_encoding(connection: Connection) -> None:
    """Raise `StorageFailed` unless the database can keep every text."""
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding not in ("UTF8", "SQL_ASCII"):  # the latter keeps bytes as they are
        raise StorageFailed(
            f"the database's encoding is {encoding}, which cannot store every text",
            code="storage.encoding",
            hint="make another: CREATE DATABASE shoal ENCODING 'UTF8' TEMPLATE template0",
        )


def _renewing(lease_s: float) -> Any:
    """Return the statement that begins every transaction."""
    # With it the server ends a transaction whose coordinator has stopped in the midst of it, and so lets the lease go.
    idle = func.set_config("idle_in_transaction_session_timeout", str(int(lease_s * 1000)), True)
    values = {"until": DB_CLOCK + lease_s, "commits": bindparam("of_commits")}
    return update(leases).where(_MINE).values(values).returning(idle, _DURABLE)


def _engines(url: URL, lease_s: float) -> tuple[Engine, AsyncEngine]:
    """Create the engines: one connection to write, a few to read."""
    more: dict[str, Any] = {"connect_args": connect_args(lease_s), "json_serializer": to_json}
    writer = create_engine(url, pool_size=1, max_overflow=0, **more)
    read_only = {"postgresql_readonly": True}
    reader = create_async_engine(
        url, pool_size=4, max_overflow=4, pool_pre_ping=True, execution_options=read_only, **more
    )
    for engine in (writer, reader.sync_engine):
        event.listen(engine, "connect", _keep_plain_texts)
    return writer, reader


def _keep_plain_texts(connection: Any, _record: object) -> None:
    """Replace characters in texts that PostgreSQL cannot store, instead of failing the write."""
    from psycopg.types.string import StrDumperUnknown

    class Plain(StrDumperUnknown):
        def dump(self, obj: str) -> Any:
            return super().dump(sanitize(obj))

    connection.adapters.register_dumper(str, Plain)
