"""The database: one writer, any number of readers.

All writes go through one thread with one connection, which also checkpoints: with SQLite before 3.51.3 two writing
connections can corrupt the write-ahead log. Whatever was queued while the last commit waited for the disk goes into the
next transaction, so that `synchronous=FULL` costs one wait for many (2,000 submissions took about 900 commits).
"""

from __future__ import annotations

import asyncio
import fcntl
import queue
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool

from coordinator.crash import crashpoint
from shoal.core.errors import StorageFailed

T = TypeVar("T")
Write = Callable[[Connection], T]

BATCH_MAX = 512
"""Writes in one transaction."""

_NAMES_A_FILE = re.compile(r"sqlite:///(?!:memory:)[^?#]+")
_MIGRATIONS = Path(__file__).parent / "migrations"


class Database:
    """Opened with `Database(url)`, which also migrates it. Raises `StorageFailed` with the remedy."""

    def __init__(self, url: str) -> None:
        self.url = url
        if not _NAMES_A_FILE.fullmatch(url):
            raise StorageFailed(
                f"{url.partition('@')[0][:60]} names no SQLite file",
                code="storage.url",
                hint="write sqlite:////absolute/path/to/shoal.db, or leave database_url empty",
            )
        self._lock = self._lock_file(url)
        self._engine = create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
        event.listen(self._engine, "connect", _configure_sqlite)
        event.listen(self._engine, "begin", _begin_immediate)
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._open()
        self.reader = _read_only(url)
        self._thread = threading.Thread(target=self._serve, name="journal-writer", daemon=True)
        self._thread.start()

    def _lock_file(self, url: str) -> Any:
        """Refuse a second coordinator over one SQLite file; the lock goes with the process."""
        path = Path(url.removeprefix("sqlite:///") + ".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = path.open("w")
        except OSError as error:
            raise StorageFailed(f"{path.parent}: {error.strerror}", hint="choose another folder with --data") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.close()
            raise StorageFailed(
                f"another coordinator uses {path.with_suffix('')}",
                code="storage.locked",
                hint="stop it, or choose another folder with --data",
            ) from None
        return handle

    def _open(self) -> None:
        try:
            with self._engine.connect() as connection:
                _refuse_newer(connection)
            migrate(self._engine)
        except DBAPIError as error:
            self._let_go()
            raise StorageFailed(
                f"the database cannot be opened: {error.orig}",
                hint="check the path, its permissions and the free space",
            ) from None
        except StorageFailed:
            self._let_go()
            raise

    def _let_go(self) -> None:
        self._engine.dispose()
        self._lock.close()

    def write(self, work: Write[T]) -> asyncio.Future[T]:
        """Run `work` in the writer's next transaction: done when that is committed, or with what `work` raised.

        Writes are done in the order of the calls, awaited or not.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(_Job(work, loop, future))
        return future

    def _serve(self) -> None:
        with self._engine.connect() as connection:
            while (first := self._queue.get()) is not None:
                batch = [first]
                while len(batch) < BATCH_MAX:
                    try:
                        job = self._queue.get_nowait()
                    except queue.Empty:
                        break
                    if job is None:
                        self._queue.put(None)
                        break
                    batch.append(job)
                self._commit(connection, batch)

    def _commit(self, connection: Connection, batch: list[_Job]) -> None:
        """One transaction for the batch. A write that fails is rolled back alone; a commit that fails, fails all."""
        results: list[tuple[_Job, Any, Exception | None]] = []
        try:
            with connection.begin():
                for job in batch:
                    results.append((job, *_attempt(connection, job, alone=len(batch) == 1)))
                    _refuse_half(connection, results[-1][2])
                crashpoint("journal.before-commit")
            crashpoint("journal.after-commit")
        except Exception as error:  # noqa: BLE001 - handed to those who wait
            for job in batch:
                job.fail(_storage_failed(error))
            return
        for job, result, failure in results:
            job.fail(failure) if failure else job.succeed(result)

    async def close(self) -> None:
        """Finish what is queued, then let go."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        await self.reader.dispose()
        self._let_go()


class _Job:
    """A write and who waits for it."""

    def __init__(self, work: Write[Any], loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> None:
        self.work, self._loop, self._future = work, loop, future

    def succeed(self, result: Any) -> None:
        self._loop.call_soon_threadsafe(self._settle, result, None)

    def fail(self, error: Exception) -> None:
        self._loop.call_soon_threadsafe(self._settle, None, error)

    def _settle(self, result: Any, error: Exception | None) -> None:
        if self._future.done():  # whoever waited has gone
            return
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(result)


def _attempt(connection: Connection, job: _Job, *, alone: bool) -> tuple[Any, Exception | None]:
    if alone:  # what goes wrong rolls the transaction back; there is nothing else in it to save
        return job.work(connection), None
    try:
        with connection.begin_nested():
            return job.work(connection), None
    except DBAPIError as error:
        return None, _storage_failed(error)
    except Exception as error:  # noqa: BLE001 - handed to the one who waits
        return None, error


def _refuse_half(connection: Connection, failure: Exception | None) -> None:
    """A full disk makes SQLite roll back the whole transaction at once: then no write of the batch has happened.

    What came after it would stand alone, and COMMIT would succeed without a word.
    """
    sqlite: Any = connection.connection.dbapi_connection
    if not sqlite.in_transaction:
        raise failure or StorageFailed("the database gave up a transaction")


def _storage_failed(error: Exception) -> Exception:
    if not isinstance(error, DBAPIError):
        return error
    texts = [str(error.orig)]
    cause = error.__context__
    while cause is not None:  # a savepoint that is gone hides what made it go
        texts.append(str(cause))
        cause = cause.__context__
    full = any("disk is full" in text for text in texts)
    return StorageFailed(
        f"the database refused to write: {'the disk is full' if full else texts[0]}",
        code="storage.full" if full else "storage.failed",
        hint="free disk space; nodes send again by themselves" if full else "look at the coordinator's log",
    )


def _configure_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000", "foreign_keys=ON", "mmap_size=0"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _read_only(url: str) -> AsyncEngine:
    """Readers cannot write, and so cannot checkpoint."""
    path = url.removeprefix("sqlite:///")
    return create_async_engine(f"sqlite+aiosqlite:///file:{path}?mode=ro&uri=true", pool_size=4, max_overflow=4)


def _alembic(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def _refuse_newer(connection: Connection) -> None:
    """A database that a later release has migrated must not be touched."""
    current = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(_alembic("")).walk_revisions()}
    if current is not None and current not in known:
        raise StorageFailed(
            f"the database is of a newer release of shoal (revision {current})",
            code="storage.newer",
            hint="install that release, or give another folder with --data",
        )


def migrate(engine: Engine, revision: str = "head") -> None:
    """Bring the tables to this release."""
    config = _alembic(str(engine.url))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
