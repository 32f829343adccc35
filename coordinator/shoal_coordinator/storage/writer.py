"""The database: one writer, any number of readers. `backends` has the differences of SQLite and PostgreSQL.

All writes go through one thread with one connection, which also checkpoints: with SQLite before 3.51.3 two writing
connections can corrupt the write-ahead log. Writes that are queued while a commit waits for the disk go into the next
transaction, so that `synchronous=FULL` costs one wait for many (2,000 submissions took about 900 commits).
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
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from shoal.core.errors import StorageFailed
from shoal_coordinator.storage import schema_revision
from shoal_coordinator.storage.backends import Fenced, Postgres, open_backend
from shoal_coordinator.storage.crashpoints import crashpoint
from shoal_coordinator.storage.lease_store import LeaseHolder
from shoal_coordinator.storage.repeated_errors import RepeatedErrors

log = structlog.get_logger()

T = TypeVar("T")
Write = Callable[[Connection], T]

BATCH_MAX = 512
"""Writes in one transaction."""

RECONNECT_S = 1.0
"""Pause before a server that has broken a connection is tried again."""


class Database:
    """Opened with `Database(url, folder)`, which also migrates it. Raises `StorageFailed` with the remedy.

    Args:
        folder: the coordinator's data; SQLite needs none.
        lease_holder: the lease at a database that coordinators share. A follower opens it when the leader has migrated
            it.
    """

    def __init__(self, url: str, folder: Path | None = None, lease_holder: LeaseHolder | None = None) -> None:
        self._backend, self._migrates = (
            open_backend(url, folder, lease_holder),
            lease_holder is None or lease_holder.is_leader,
        )
        self.fenced = False
        """True if another coordinator writes now, so that this process never will again."""
        self._commits = 0
        self.committed: Callable[[float], object] = float
        """Called in the writer's thread with the seconds that each transaction took."""
        self._queue: queue.SimpleQueue[_WriteJob | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._commits_failing, self._writer_failing = (
            RepeatedErrors("a commit failed"),
            RepeatedErrors("the writer starts again"),
        )
        self._open()
        self.reader = self._backend.reader
        self._thread = threading.Thread(target=self._serve, name="journal-writer", daemon=True)
        self._thread.start()

    def _open(self) -> None:
        engine = self._backend.engine
        try:
            with engine.connect() as connection:
                is_current = schema_revision.is_current(connection)
                if not is_current:
                    schema_revision.refuse(connection, also_older=not self._migrates)
            if self._migrates and not is_current:
                self._seize()  # at first there is nothing to seize yet
                schema_revision.migrate(engine)
            self._seize()
        except DBAPIError as error:
            self._backend.release()
            raise StorageFailed(
                f"the database cannot be opened: {error.orig}",
                hint="check its address, its permissions and the free space",
            ) from None
        except StorageFailed:
            self._backend.release()
            raise

    def _seize(self) -> None:
        try:
            self._take()
        except DBAPIError:
            if not self._backend.evict():
                raise
            self._take()
        self._backend.renewed()

    def _take(self) -> None:
        with self._backend.engine.begin() as connection:
            self._backend.seize(connection)

    @property
    def owns(self) -> bool:
        """Return whether no other process can be writing now; otherwise nothing may be removed."""
        return not self.fenced and self._backend.owns()

    @property
    def term(self) -> int:
        """Return the number of times that the database has had a new owner; 0 for SQLite."""
        return self._backend.term if isinstance(self._backend, Postgres) else 0

    async def announce(self, address: str) -> str:
        """Publish the address to which other coordinators forward requests; return the secret that signs these."""
        backend = self._backend
        assert isinstance(backend, Postgres)
        return await self.write(lambda connection: backend.announce(connection, address))

    def write(self, work: Write[T]) -> asyncio.Future[T]:
        """Run `work` in the writer's next transaction: done when that is committed, or with what `work` raised.

        Writes are done in the order of the calls, awaited or not.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._closing.is_set():  # no thread would ever answer
            future.set_exception(StorageFailed("the coordinator is stopping", hint="send again in a moment"))
            return future
        self._queue.put(_WriteJob(work, loop, future))
        return future

    def _serve(self) -> None:
        """Run the writer until it is closed; errors go to the waiting callers, and the next batch is served."""
        batch: list[_WriteJob] | None = []
        while batch is not None:
            try:
                with self._backend.engine.connect() as connection:
                    while (batch := self._gather()) is not None:
                        self._commit(connection, batch)
            except Exception as error:  # noqa: BLE001 - else all callers would wait for ever
                self._writer_failing.failed(error)
                for job in batch or ():
                    job.fail(_storage_failed(error))
                batch = []
                if self._closing.wait(RECONNECT_S):
                    self._refuse_all(error)
                    batch = None

    def _refuse_all(self, error: Exception) -> None:
        """Fail all queued writes, because the writer ends without a connection."""
        with suppress(queue.Empty):
            while (job := self._queue.get_nowait()) is not None:
                job.fail(_storage_failed(error))

    def _gather(self) -> list[_WriteJob] | None:
        """Return all queued writes; an empty list if the lease must be renewed; None at the end."""
        try:
            first = self._queue.get(timeout=self._backend.renews_s)
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

    def _commit(self, connection: Connection, batch: list[_WriteJob]) -> None:
        """Write the batch in one transaction. A failed write is rolled back alone; a failed commit fails all."""
        results: list[tuple[_WriteJob, Any, Exception | None]] = []
        self._commits += 1
        try:
            try:
                self._transact(connection, batch, results)
            except DBAPIError as error:
                if results or not error.connection_invalidated:
                    raise
                self._transact(connection, batch, results)  # it broke while idle: the server was restarted
            self._backend.renewed()
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
        self, connection: Connection, batch: list[_WriteJob], results: list[tuple[_WriteJob, Any, Exception | None]]
    ) -> None:
        began = time.perf_counter()
        with connection.begin():
            self._backend.enter(connection, self._commits)
            for job in batch:
                results.append((job, *_run(connection, job, alone=len(batch) == 1)))
                _check_open(results[-1][2], is_open=self._backend.is_open(connection))
            crashpoint("journal.before-commit")
        self.committed(time.perf_counter() - began)
        crashpoint("journal.after-commit")

    def _failure(self, connection: Connection, error: Exception, *, in_doubt: bool) -> Exception | None:
        """Return the error for the batch; None if it was committed and only the answer was lost."""
        try:
            if in_doubt and isinstance(error, DBAPIError) and self._was_committed(connection):
                return None
        except Fenced as fence:
            error = fence
        if isinstance(error, Fenced):
            self.fenced = True
            self._backend.fenced()
        failure = _storage_failed(error)
        if isinstance(failure, StorageFailed):
            self._commits_failing.failed(failure)
        return failure  # other errors come from the write itself: there was nothing to commit

    def _was_committed(self, connection: Connection) -> bool:
        """Return whether the last commit happened. Blocks until the database answers."""
        unknown = RepeatedErrors("it is not known yet whether the last commit has happened")
        while True:
            try:
                with connection.begin():
                    return self._backend.was_committed(connection, self._commits)
            except DBAPIError as error:
                unknown.failed(error)
                if self._closing.wait(RECONNECT_S):
                    return False

    async def close(self, *, keeps: bool = False) -> None:
        """Write what is queued, then release the database. `keeps`: only when the lease ends."""
        self._closing.set()
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        await self.reader.dispose()
        self._backend.release(keeps=keeps)


class _WriteJob:
    """A write and the future of its caller."""

    def __init__(self, work: Write[Any], loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> None:
        self.work, self._loop, self._future = work, loop, future

    def succeed(self, result: Any) -> None:
        self._loop.call_soon_threadsafe(self._settle, result, None)

    def fail(self, error: Exception) -> None:
        self._loop.call_soon_threadsafe(self._settle, None, error)

    def _settle(self, result: Any, error: Exception | None) -> None:
        if self._future.done():  # the caller was cancelled
            return
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(result)


def _run(connection: Connection, job: _WriteJob, *, alone: bool) -> tuple[Any, Exception | None]:
    if alone:  # an error rolls the transaction back, which holds no other write
        return job.work(connection), None
    try:
        with connection.begin_nested():
            return job.work(connection), None
    except DBAPIError as error:
        return None, _storage_failed(error)
    except Exception as error:  # noqa: BLE001 - handed to the one who waits
        return None, error


def _check_open(failure: Exception | None, *, is_open: bool) -> None:
    """Raise if the transaction has ended: a full disk makes SQLite roll it back as a whole, as a broken connection
    does. Later writes of the batch would then be committed without the earlier ones."""
    if not is_open:
        raise failure or StorageFailed("the database gave up a transaction")


def _storage_failed(error: Exception) -> Exception:
    if not isinstance(error, DBAPIError):
        return error
    texts = [str(error.orig)]
    cause = error.__context__
    while cause is not None:  # a lost savepoint hides the error that ended it
        texts.append(str(cause))
        cause = cause.__context__
    full = any(words in text for text in texts for words in ("disk is full", "No space left"))
    return StorageFailed(
        f"the database refused to write: {'the disk is full' if full else texts[0]}",
        code="storage.full" if full else "storage.failed",
        hint="free disk space; nodes send again by themselves" if full else "look at the coordinator's log",
    )
