"""The database: one writer, any number of readers. What the two kinds differ in is in `places`.

All writes go through one thread with one connection, which also checkpoints: with SQLite before 3.51.3 two writing
connections can corrupt the write-ahead log. Whatever was queued while the last commit waited for the disk goes into the
next transaction, so that `synchronous=FULL` costs one wait for many (2,000 submissions took about 900 commits).
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from shoal.core.errors import StorageFailed
from shoal_coordinator.crash import crashpoint
from shoal_coordinator.places import Fenced, Postgres, place
from shoal_coordinator.repeats import Repeating
from shoal_coordinator.seat import Post

log = structlog.get_logger()

T = TypeVar("T")
Write = Callable[[Connection], T]

BATCH_MAX = 512
"""Writes in one transaction."""

RECONNECT_S = 1.0
"""Pause before a server that has broken a connection is tried again."""

_MIGRATING = threading.Lock()
"""Alembic has one context for the whole process."""

_MIGRATIONS = Path(__file__).parent / "migrations"


class Database:
    """Opened with `Database(url, folder)`, which also migrates it. Raises `StorageFailed` with the remedy.

    `folder`: that of the coordinator's data. SQLite needs none. `post`: at a database that several coordinators share;
    from a deputy's it is opened only when the lead has migrated it.
    """

    def __init__(self, url: str, folder: Path | None = None, post: Post | None = None) -> None:
        self._place, self._migrates = place(url, folder, post), post is None or post.is_lead
        self.fenced = False
        """Whether another coordinator writes now, so that this one never will again."""
        self._commits = 0
        self.committed: Callable[[float], object] = float
        """Called in the writer's thread with the seconds that each transaction took."""
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._commits_failing, self._writer_failing = Repeating("a commit failed"), Repeating("the writer begins anew")
        self._open()
        self.reader = self._place.reader
        self._thread = threading.Thread(target=self._serve, name="journal-writer", daemon=True)
        self._thread.start()

    def _open(self) -> None:
        engine = self._place.engine
        try:
            with engine.connect() as connection:
                _refuse_newer(connection)
                if not self._migrates:
                    _refuse_older(connection)
            if self._migrates:
                self._seize()  # at first there is nothing to seize yet
                migrate(engine)
            self._seize()
        except DBAPIError as error:
            self._place.let_go()
            raise StorageFailed(
                f"the database cannot be opened: {error.orig}",
                hint="check its address, its permissions and the free space",
            ) from None
        except StorageFailed:
            self._place.let_go()
            raise

    def _seize(self) -> None:
        try:
            self._take()
        except DBAPIError:
            if not self._place.evict():
                raise
            self._take()
        self._place.renewed()

    def _take(self) -> None:
        with self._place.engine.begin() as connection:
            self._place.seize(connection)

    @property
    def owns(self) -> bool:
        """Whether nobody else can be writing now: else nothing may be removed that another may need."""
        return not self.fenced and self._place.owns()

    @property
    def epoch(self) -> int:
        """How often the database has been taken by somebody, this time included; 0 where there is no counting."""
        return self._place.epoch if isinstance(self._place, Postgres) else 0

    async def announce(self, address: str) -> str:
        """Let other coordinators pass requests on to that address; the secret with which they sign these."""
        place = self._place
        assert isinstance(place, Postgres)
        return await self.write(lambda connection: place.announce(connection, address))

    def write(self, work: Write[T]) -> asyncio.Future[T]:
        """Run `work` in the writer's next transaction: done when that is committed, or with what `work` raised.

        Writes are done in the order of the calls, awaited or not.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._closing.is_set():  # nobody would ever answer
            future.set_exception(StorageFailed("the coordinator is stopping", hint="send again in a moment"))
            return future
        self._queue.put(_Job(work, loop, future))
        return future

    def _serve(self) -> None:
        """The writer's whole life. Whatever goes wrong, those who wait are told, and the next are served."""
        batch: list[_Job] | None = []
        while batch is not None:
            try:
                with self._place.engine.connect() as connection:
                    while (batch := self._gather()) is not None:
                        self._commit(connection, batch)
            except Exception as error:  # noqa: BLE001 - a thread that ended would let all who wait do so for ever
                self._writer_failing.failed(error)
                for job in batch or ():
                    job.fail(_storage_failed(error))
                batch = []
                if self._closing.wait(RECONNECT_S):
                    self._refuse_all(error)
                    batch = None

    def _refuse_all(self, error: Exception) -> None:
        """The end has come, and the database is not to be reached."""
        with suppress(queue.Empty):
            while (job := self._queue.get_nowait()) is not None:
                job.fail(_storage_failed(error))

    def _gather(self) -> list[_Job] | None:
        """All that waits; nothing, when the lease has to be renewed before anything comes; None: this is the end."""
        try:
            first = self._queue.get(timeout=self._place.renews_s)
        except queue.Empty:
            return []
        if first is None:
            return None
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
        return batch

    def _commit(self, connection: Connection, batch: list[_Job]) -> None:
        """One transaction for the batch. A write that fails is rolled back alone; a commit that fails, fails all."""
        results: list[tuple[_Job, Any, Exception | None]] = []
        self._commits += 1
        try:
            try:
                self._transact(connection, batch, results)
            except DBAPIError as error:
                if results or not error.connection_invalidated:
                    raise
                self._transact(connection, batch, results)  # it broke while nobody used it: the server was restarted
            self._place.renewed()
        except Exception as error:  # noqa: BLE001 - handed to those who wait
            failure = self._failure(connection, error, in_doubt=len(results) == len(batch))
            if failure is not None:
                for job in batch:
                    job.fail(failure)
                return
        self._commits_failing.worked()
        self._writer_failing.worked()
        for job, result, found in results:
            job.fail(found) if found else job.succeed(result)

    def _transact(
        self, connection: Connection, batch: list[_Job], results: list[tuple[_Job, Any, Exception | None]]
    ) -> None:
        began = time.perf_counter()
        with connection.begin():
            self._place.enter(connection, self._commits)
            for job in batch:
                results.append((job, *_attempt(connection, job, alone=len(batch) == 1)))
                _refuse_half(results[-1][2], stands=self._place.stands(connection))
            crashpoint("journal.before-commit")
        self.committed(time.perf_counter() - began)
        crashpoint("journal.after-commit")

    def _failure(self, connection: Connection, error: Exception, *, in_doubt: bool) -> Exception | None:
        """What the batch is told of an error; None: it was committed all the same, and only the answer was lost."""
        try:
            if in_doubt and isinstance(error, DBAPIError) and self._happened(connection):
                return None
        except Fenced as fence:
            error = fence
        if isinstance(error, Fenced):
            self.fenced = True
            self._place.fenced()
        failure = _storage_failed(error)
        if isinstance(failure, StorageFailed):
            self._commits_failing.failed(failure)
        return failure  # anything else is what the write itself has answered: nothing was to be committed

    def _happened(self, connection: Connection) -> bool:
        """Whether the last commit did. Asks until the database answers; nobody may go on before that is known."""
        unknown = Repeating("whether the last commit has happened is not known yet")
        while True:
            try:
                with connection.begin():
                    return self._place.happened(connection, self._commits)
            except DBAPIError as error:
                unknown.failed(error)
                if self._closing.wait(RECONNECT_S):
                    return False

    async def close(self, *, keeps: bool = False) -> None:
        """Finish what is queued, then let go. `keeps`: nobody else is to have it before the lease ends."""
        self._closing.set()
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        await self.reader.dispose()
        self._place.let_go(keeps=keeps)


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


def _refuse_half(failure: Exception | None, *, stands: bool) -> None:
    """A full disk makes SQLite roll back the whole transaction at once, as a broken connection does: then no write of
    the batch has happened. What came after it would stand alone, and COMMIT would succeed without a word.
    """
    if not stands:
        raise failure or StorageFailed("the database gave up a transaction")


def _storage_failed(error: Exception) -> Exception:
    if not isinstance(error, DBAPIError):
        return error
    texts = [str(error.orig)]
    cause = error.__context__
    while cause is not None:  # a savepoint that is gone hides what made it go
        texts.append(str(cause))
        cause = cause.__context__
    full = any(words in text for text in texts for words in ("disk is full", "No space left"))
    return StorageFailed(
        f"the database refused to write: {'the disk is full' if full else texts[0]}",
        code="storage.full" if full else "storage.failed",
        hint="free disk space; nodes send again by themselves" if full else "look at the coordinator's log",
    )


def _alembic(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def _refuse_newer(connection: Connection) -> None:
    """A database that a later release has migrated must not be touched."""
    current = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in _scripts().walk_revisions()}
    if current is not None and current not in known:
        raise StorageFailed(
            f"the database is of a newer release of shoal (revision {current})",
            code="storage.newer",
            hint="install that release, or give another folder with --data",
        )


def _refuse_older(connection: Connection) -> None:
    """Only the lead migrates."""
    if MigrationContext.configure(connection).get_current_revision() != _scripts().get_current_head():
        raise StorageFailed(
            "the database is of an earlier release still",
            code="storage.older",
            hint="its lead is of that release: stop it, and one of this release brings the database up",
        )


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_alembic(""))


def migrate(engine: Engine) -> None:
    """Bring the tables to this release."""
    config = _alembic(str(engine.url))
    with _MIGRATING, engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
