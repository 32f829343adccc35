"""Starts coordinators for tests in a tenth of a second: imports everything once, then forks a process for each.

Run as `python -m tests.coordinator.zygote`. Commands come as JSON lines on stdin, answers go to stdout:

    {"do": "start", "settings": {…}, "log": PATH, "crash": "name#2", "mutant": ""}   -> {"pid": 12, "port": 4711}
    {"do": "poll", "pid": 12}                                                        -> {"status": null, or its end}

Each child is a whole coordinator of `shoal_coordinator.serve.run`, with a process id of its own that can be killed, and
is reaped by the next poll. `mutant` plants a bug of `MUTANTS`, to prove that a test would notice it.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiosqlite  # noqa: F401 - these are imported late by the coordinator; here, before the fork
import alembic.command
import psycopg
import sqlalchemy.dialects.postgresql.psycopg
import sqlalchemy.dialects.sqlite.aiosqlite
import uvicorn.protocols.http.httptools_impl  # noqa: F401

import shoal_coordinator.app
import shoal_coordinator.crash
import shoal_coordinator.database
from shoal.plugins import algorithms, schedules
from shoal_coordinator import journal, serve
from shoal_coordinator.database import Database, _attempt
from shoal_coordinator.settings import Settings

DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG


def acknowledge_before_commit() -> None:
    """Answers go out when a write has been done; its commit would come later, and the kill always comes before it."""

    def commit(self: Database, connection: Any, batch: list[Any]) -> None:
        if not connection.in_transaction():
            connection.begin()
        for job in batch:
            result, failure = _attempt(connection, job, alone=False)
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


def start(command: dict[str, Any]) -> dict[str, Any]:
    """Fork a coordinator; answers when it listens, or has failed to."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_a_coordinator(command, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        port = pipe.read()
    return {"pid": pid, "port": int(port) if port else None}


def _be_a_coordinator(command: dict[str, Any], port: int) -> None:
    """The child's whole life."""
    ctypes.CDLL(None).prctl(DEATH_OF_PARENT, signal.SIGKILL)
    log = os.open(command["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(ours, theirs)
    os.environ["SHOAL_CRASH_AT"] = command.get("crash", "")
    importlib.reload(shoal_coordinator.crash)  # it reads the environment once; its function is known everywhere already
    if command.get("mutant"):
        MUTANTS[command["mutant"]]()
    listen = serve.listen

    def listen_and_tell(settings: Settings) -> Any:
        found = listen(settings)
        os.write(port, str(found.getsockname()[1]).encode())
        os.close(port)
        return found

    serve.listen = listen_and_tell
    code = 70
    try:
        code = serve.run(Settings.model_validate(command["settings"]))
    except Exception as error:  # told to the test by way of the log
        sys.stderr.write(f"{type(error).__name__} {getattr(error, 'code', '')}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)


def poll(pid: int) -> dict[str, Any]:
    """How a child ended, if it did."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return {"status": os.waitstatus_to_exitcode(status) if ended else None}


def main() -> None:
    """Serve commands until stdin ends."""
    algorithms(), schedules()
    assert alembic.command
    assert sqlalchemy.dialects.sqlite.aiosqlite
    assert sqlalchemy.dialects.postgresql.psycopg
    assert psycopg
    assert Path(shoal_coordinator.app.__file__).exists()
    for line in sys.stdin:
        command = json.loads(line)
        answer = start(command) if command["do"] == "start" else poll(command["pid"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
