"""External and lasting errors are logged without a traceback, and not repeatedly."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy.exc import OperationalError

from shoal.core.errors import NotAllowed, StorageFailed
from shoal_coordinator.storage.repeated_errors import RepeatedErrors, brief
from shoal_coordinator.storage.writer import Database
from tests.support.coordinator import Inside
from tests.support.scenario import problem, set_up
from tests.support.waiting import until


def dead() -> OperationalError:
    return OperationalError("SELECT " * 500, {}, sqlite3.OperationalError("server closed the connection\nand more"))


def test_a_write_that_refuses_is_no_failed_commit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As with a wrong enrolment: there was nothing to write."""

    def wrong(_: Any) -> None:
        raise NotAllowed("the token is wrong")

    async def use() -> None:
        database = Database(f"sqlite:///{tmp_path / 'shoal.db'}")
        with pytest.raises(NotAllowed):
            await database.write(wrong)
        await database.close()

    asyncio.run(use())
    assert "commit" not in capsys.readouterr().out


def test_a_report_that_breaks_off_leaves_no_traceback(coordinator: Inside, caplog: pytest.LogCaptureFixture) -> None:
    stage = set_up(coordinator)
    head, body = stage.frame()
    where, key = urlsplit(coordinator.url), stage.nodes[0].client.headers["authorization"]
    assert where.hostname is not None
    text = f"POST /api/v1/jobs/main/reports HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: {key}\r\n"
    lines = f"{text}Content-Length: {len(head + body)}\r\n\r\n".encode()
    with socket.create_connection((where.hostname, where.port)) as raw:
        raw.sendall(lines + head)
        until("the report to be coming", lambda: len(coordinator.server.server_state.tasks) > 0)
    until("the request to be over", lambda: not coordinator.server.server_state.tasks)
    assert stage.report().status_code == 200, "its task stands"
    assert "ClientDisconnect" not in caplog.text
    stage.close()


def test_the_same_failure_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    failing = RepeatedErrors("the books were not written")
    for _ in range(100):
        failing.failed(dead())
    failing.worked()
    failing.worked()
    failing.failed(StorageFailed("the disk is full"))
    told = capsys.readouterr().out
    assert told.count("the books were not written") == 3
    assert told.count("it works again") == 1
    assert "Traceback" not in told
    assert "SELECT" not in told
    with pytest.raises(KeyError) as bug:
        {}["a bug"]
    failing.failed(bug.value)
    assert "Traceback" in capsys.readouterr().out


def test_an_error_in_one_line() -> None:
    assert brief(dead()) == "server closed the connection"
    assert brief(ValueError()) == "ValueError"


def test_a_dead_database_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shoal_coordinator.storage.writer.RECONNECT_S", 0.01)
    commit, alive = Database._commit, False

    def broken(self: Database, connection: Any, batch: Any) -> None:
        if not alive:
            raise dead()
        commit(self, connection, batch)

    monkeypatch.setattr(Database, "_commit", broken)

    async def use() -> None:
        nonlocal alive
        database = Database(f"sqlite:///{tmp_path / 'shoal.db'}")
        for _ in range(5):
            with pytest.raises(StorageFailed):
                await database.write(lambda _: None)
        alive = True
        await database.write(lambda _: None)
        await database.close()

    asyncio.run(use())
    told = capsys.readouterr().out
    assert told.count("the writer starts again") == 2, "once when it began, once when it was over"
    assert len(told) < 1000


def test_an_unreadable_database_is_said_in_one_line(
    coordinator: Inside, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(*_: Any) -> None:
        raise dead()

    coordinator.begin("main", nodes=1)
    monkeypatch.setattr("shoal_coordinator.api.routes.jobs.described", broken)
    problem(coordinator.request("GET", "/api/v1/jobs/main"), 503, "storage.unreachable")
    told = capsys.readouterr().out
    assert "server closed the connection" in told
    assert "SELECT" not in told
