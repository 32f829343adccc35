"""A coordinator's process for `tests.support.forkserver`: `shoal_coordinator.main.run`, imported before the fork.

`mutant` plants a bug of `MUTANTS`, to prove that a test would notice it.
"""

from __future__ import annotations

import importlib
import os
import sys
from multiprocessing.connection import Connection
from typing import Any

import aiosqlite  # noqa: F401 - these are imported late by the coordinator; here, before the fork
import alembic.command  # noqa: F401
import psycopg  # noqa: F401
import sqlalchemy.dialects.postgresql.psycopg
import sqlalchemy.dialects.sqlite.aiosqlite  # noqa: F401
import uvicorn.protocols.http.httptools_impl  # noqa: F401

import shoal_coordinator.api.app  # noqa: F401
from shoal.plugins import algorithms, schedules
from shoal_coordinator import main as serve
from shoal_coordinator.jobs import journal
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage import crashpoints
from shoal_coordinator.storage.writer import Database, _run

algorithms(), schedules()


def acknowledge_before_commit() -> None:
    """Answers go out when a write has been done; its commit would come later, and the kill always comes before it."""

    def commit(self: Database, connection: Any, batch: list[Any]) -> None:
        if not connection.in_transaction():
            connection.begin()
        for job in batch:
            result, failure = _run(connection, job, alone=False)
            job.fail(failure) if failure else job.succeed(result)

    Database._commit = commit  # type: ignore[method-assign]


def forget_the_journal() -> None:
    """A restart goes on from the last snapshot, without the events since."""
    load = journal.load

    def forgetful(connection: Any, job: str) -> Any:
        state, now, _, last = load(connection, job)
        return state, now, [], last

    journal.load = forgetful


MUTANTS = {"acknowledge before commit": acknowledge_before_commit, "forget the journal": forget_the_journal}


def main(settings: dict[str, Any], mutant: str, port: Connection) -> int:
    """Run a coordinator until it ends; send its port as soon as it listens."""
    importlib.reload(crashpoints)  # it reads the environment once; its function is known everywhere already
    if mutant:
        MUTANTS[mutant]()
    listen = serve.listen

    def listen_and_tell(*place: Any) -> Any:
        found = listen(*place)
        port.send(found.getsockname()[1])
        port.close()
        return found

    serve.listen = listen_and_tell
    code = 70
    try:
        code = serve.run(Settings.model_validate(settings))
    except Exception as error:  # told to the test by way of the log
        sys.stderr.write(f"{type(error).__name__} {getattr(error, 'code', '')}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)
