"""A coordinator whose database is PostgreSQL's: it outlives the server's restarts, and no two of them write."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, insert, select, text

from shoal.core.errors import StorageFailed
from shoal_coordinator.storage import backends, dialects, job_owners, lease_store, tables
from shoal_coordinator.storage.tables import jobs, metadata
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry import job_events
from tests.coordinator.test_kill_loop import storm
from tests.support.coordinator import Server, inside
from tests.support.history import check
from tests.support.node import History, Node
from tests.support.postgres import Cluster, rows
from tests.support.waiting import until

Swarm = Callable[..., list[Node]]


@pytest.fixture
def url(cluster: Cluster) -> str:
    return cluster.database()


@contextlib.asynccontextmanager
async def opened(url: str, folder: Path | None = None) -> AsyncIterator[Database]:
    database = Database(url, folder)
    try:
        yield database
    finally:
        await database.close()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def add(name: str) -> Callable[[Connection], None]:
    """A write that can be counted."""
    row = f"INSERT INTO tokens (secret, role, uses) VALUES ('{name}', 'viewer', 0)"

    def work(connection: Connection) -> None:
        connection.execute(text(row))
        if name == "bad":
            raise KeyError(name)

    return work


def kept(url: str) -> list[str]:
    return [name for (name,) in rows(url, "SELECT secret FROM tokens ORDER BY secret")]


# As on SQLite


def test_a_fresh_database_has_the_tables_of_the_code(url: str) -> None:
    def differences(connection: Connection) -> Any:
        return compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata)

    async def work() -> Any:
        async with opened(url) as database:
            return await database.write(differences)

    assert run(work()) == []


def test_a_commit_waits_for_the_servers_disk(url: str) -> None:
    """A commit that has returned survives a power cut under any setting of the database."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET synchronous_commit = off')

    async def work() -> Any:
        async with opened(url) as database:
            return await database.write(lambda c: c.execute(text("SHOW synchronous_commit")).scalar())

    assert run(work()) == "on"


def test_texts_are_kept_whatever_the_locale_was(cluster: Cluster) -> None:
    url, text_of_all = cluster.encoded("SQL_ASCII"), "Zürich · 東京 · بداية · 🐟"

    async def work() -> None:
        async with opened(url) as database:
            await database.write(add(text_of_all))

    run(work())
    with psycopg.connect(url, client_encoding="utf-8") as connection:
        assert connection.execute("SELECT secret FROM tokens").fetchall() == [(text_of_all,)]


def test_a_database_that_cannot_keep_every_text_is_refused(cluster: Cluster) -> None:
    async def work() -> None:
        async with opened(cluster.encoded("LATIN1")) as database:
            await database.write(add("a"))

    with pytest.raises(StorageFailed, match="LATIN1") as refused:
        run(work())
    assert refused.value.code == "storage.encoding"


def test_a_write_that_fails_fails_alone(url: str) -> None:
    async def work() -> list[Any]:
        async with opened(url) as database:
            writes = (database.write(add(name)) for name in ("a", "b", "a", "bad", "d"))
            return await asyncio.gather(*writes, return_exceptions=True)

    kinds = [type(one).__name__ for one in run(work())]
    assert kinds == ["NoneType", "NoneType", "StorageFailed", "KeyError", "NoneType"]
    assert kept(url) == ["a", "b", "d"]


def test_readers_cannot_write(url: str) -> None:
    async def work() -> None:
        async with opened(url) as database, database.reader.begin() as connection:
            await connection.execute(text("DELETE FROM jobs"))

    with pytest.raises(Exception, match="read-only transaction"):
        run(work())


def test_texts_that_it_cannot_keep_are_kept_all_the_same(url: str) -> None:
    """Nodes may say anything: the character 0, half a character."""
    said = {"kind\0": ["\ud800", "plain", "\U0001f41f"]}

    async def work() -> Any:
        async with opened(url) as database:
            query = text("SELECT CAST(:text AS VARCHAR), CAST(:json AS JSON) ->> 'other'")
            told = {"text": "a\0b\ud800c", "json": dialects.to_json({**said, "other": "x"})}
            return await database.write(lambda c: c.execute(query, told).one())

    assert tuple(run(work())) == ("a\ufffdb\ufffdc", "x")
    assert dialects.to_json({"fish": "\U0001f41f"}) == '{"fish": "\\ud83d\\udc1f"}'


def test_the_feed_is_trimmed_but_for_what_happened_to_the_mode(url: str) -> None:
    def work(connection: Connection) -> list[int]:
        connection.execute(insert(jobs).values(name="main", spec={}, created_at=0.0))
        for seq in range(6):
            event = job_events.job_event("mode" if seq == 1 else "decision", "a\0b")
            job_events.add_feed_item(connection, "main", "job_event", event)
        job_events.trim_feed(connection, "main", 2)
        assert job_events.mode_changed_at(connection, "main") is not None
        return list(connection.execute(select(tables.job_events.c.seq).order_by(tables.job_events.c.id)).scalars())

    async def found() -> list[int]:
        async with opened(url) as database:
            return await database.write(work)

    assert run(found()) == [-2, -5, -6]


# When the server goes


def test_a_connection_that_broke_while_it_rested_is_not_noticed(url: str, cluster: Cluster) -> None:
    async def work() -> None:
        async with opened(url) as database:
            await database.write(add("a"))
            cluster.break_connections()
            await database.write(add("b"))
            async with database.reader.connect() as connection:
                assert (await connection.execute(text("SELECT count(*) FROM tokens"))).scalar() == 2

    run(work())


@pytest.mark.parametrize("happens", [True, False])
def test_a_commit_whose_answer_was_lost(url: str, happens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers are told the real outcome."""

    async def work() -> None:
        async with opened(url) as database:
            await database.write(add("a"))
            dialect = database._backend.engine.dialect
            commit, lost = dialect.do_commit, []

            def commit_without_an_answer(connection: Any) -> None:
                if lost:
                    return commit(connection)
                lost.append(True)
                if happens:
                    commit(connection)
                connection.dbapi_connection.close()
                raise psycopg.OperationalError("the connection is lost")

            monkeypatch.setattr(dialect, "do_commit", commit_without_an_answer)
            with contextlib.nullcontext() if happens else pytest.raises(StorageFailed, match="the connection is lost"):
                await database.write(add("b"))

    run(work())
    assert kept(url) == (["a", "b"] if happens else ["a"])


def test_a_run_goes_on_when_the_server_restarts_in_mid_round(
    url: str, cluster: Cluster, server: Callable[..., Server], swarm: Swarm
) -> None:
    running, history, sizes = server(database_url=url).start(), History(), {"main": 10}
    running.begin("main", nodes=3, rounds=60)
    nodes = swarm(running, 3, sizes, history)
    for version in (2, 4):
        until("some versions", lambda version=version: rows(url, "SELECT 1 FROM versions WHERE number > ?", version))
        cluster.control("-m", "immediate", "restart")
    for node in nodes:
        node.finish()
    check(running, history, sizes, {}, nodes=3)
    until("the job to be done", lambda: running.job("main")["state"] == "done")
    assert running.job("main")["version"] == 60
    assert running.ended() is None


def test_kills_change_nothing(url: str, server: Callable[..., Server], swarm: Swarm) -> None:
    """The same models to the bit as without a kill: those that a formula predicts."""
    running, history, sizes = server(database_url=url).start(), History(), {"main": 10}
    running.begin("main", nodes=3, rounds=100_000)
    nodes = swarm(running, 3, sizes, history)
    storm(running, 1, 2)
    assert running.post("/jobs/main/stop", {"when": "round", "why": "enough"})
    for node in nodes:
        node.finish()
    check(running, history, sizes, {}, nodes=3)
    assert rows(url, "SELECT term FROM leases")[0][0] == running.lives


def test_a_backup_comes_back(url: str, cluster: Cluster, tmp_path: Path, swarm: Swarm) -> None:
    """Taken while it runs: the database first, then the folder. The job goes on from there to the predicted model."""
    history = History()
    with inside(tmp_path / "data", database_url=url) as running:
        running.begin("main", nodes=2, rounds=100_000)
        where = [running.url]
        nodes = swarm(running, 2, {"main": 10}, history, where=lambda: where[0])
        until("some versions", lambda: rows(url, "SELECT 1 FROM versions WHERE number > 3"))
        running.post("/jobs/main/pause", {"why": "backup"})
        backup = cluster.copied(url)
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        where[0] = "http://127.0.0.1:9"
    with inside(tmp_path / "copy", database_url=backup) as restored:
        at = restored.job("main")["version"]
        assert at > 3
        restored.post("/jobs/main/resume")
        where[0] = restored.url
        until("it to go on", lambda: restored.job("main")["version"] > at + 3)
        restored.post("/jobs/main/stop", {"when": "round", "why": "enough"})
        for node in nodes:
            node.finish()
        check(restored, history, {"main": 10}, {}, nodes=2)


# No two write


def test_a_second_one_is_refused_while_the_first_lives(url: str, tmp_path: Path) -> None:
    """(A coordinator then waits: see test_replicas.)"""

    async def work() -> None:
        async with opened(url, tmp_path / "one"):
            with pytest.raises(StorageFailed, match="another coordinator uses this database") as found:
                Database(url, tmp_path / "two")
            assert found.value.code == "storage.locked"
        async with opened(url, tmp_path / "two"):  # the first has let go
            pass

    run(work())


def test_two_that_start_together_on_an_empty_database_both_live(url: str, server: Callable[..., Server]) -> None:
    """Neither has found tables. While a table of that name is being made, no other connection can make it."""
    with psycopg.connect(url) as busy:
        busy.execute("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        made = [server(name, database_url=url).start(ready=False) for name in ("one", "two")]
        until("both to wait", lambda: rows(url, "SELECT count(*) FROM pg_locks WHERE NOT granted")[0][0] == 2)
        busy.rollback()
    for one in made:
        until("it to be ready", lambda one=one: one.ended() is not None or one._is_ready())
    assert [one.ended() for one in made] == [None, None]


def test_who_was_silent_for_too_long_cannot_write_any_more(url: str, tmp_path: Path) -> None:
    """A process that was stopped and goes on, after another has taken its place."""

    async def work() -> None:
        async with opened(url, tmp_path / "one") as first:
            await first.write(add("early"))
            assert first.owns
            with psycopg.connect(url) as connection:
                connection.execute("UPDATE leases SET until = 0")
            async with opened(url, tmp_path / "two") as second:
                for _ in range(2):
                    with pytest.raises(backends.Fenced):
                        await first.write(add("late"))
                assert first.fenced
                assert not first.owns
                assert second.owns

    run(work())
    assert kept(url) == ["early"]


@pytest.mark.parametrize(("left_s", "owner"), [(60.0, "b"), (-1.0, "")])
def test_a_followers_jobs_are_taken_over_when_its_lease_has_ended(url: str, left_s: float, owner: str) -> None:
    lease = {"name": f"{lease_store.FOLLOWER}b", "term": 1, "holder": "b", "commits": 0}
    job = {"name": "main", "spec": {}, "created_at": 0.0, "owner": "b"}

    async def work() -> Any:
        async with opened(url) as database:
            await database.write(lambda c: c.execute(insert(jobs).values(job)))
            ends = backends.DB_CLOCK + left_s
            await database.write(lambda c: c.execute(insert(tables.leases).values(until=ends, **lease)))
            assert await database.write(partial(job_owners.take_over, follower="b")) == (owner == "")
            return await database.write(lambda c: c.execute(select(jobs.c.owner)).scalar())

    assert run(work()) == owner


def test_what_a_stopped_owner_was_in_the_midst_of_is_ended(url: str) -> None:
    """The server waits for it without an end when it was stopped between two halves of one statement."""

    async def work() -> None:
        async with opened(url):
            pass
        with psycopg.connect(url) as stopped:
            stopped.execute("UPDATE leases SET commits = 7")
            alone = lease_store.LeaseStore(backends.server(url), None, 0.5)
            database = Database(url, None, alone.leader)
            await database.write(add("next"))
            await database.close()
            alone.close()
            with pytest.raises(psycopg.OperationalError, match="terminat"):
                stopped.execute("SELECT 1")

    run(work())
    assert kept(url) == ["next"]


def test_a_writer_goes_on_after_what_nobody_foresaw(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with opened(url) as database:
            with monkeypatch.context() as patch:
                patch.setattr(database, "_commit", lambda connection, batch: 1 // 0)
                with pytest.raises(ZeroDivisionError):
                    await database.write(add("a"))
            await database.write(add("b"))

    run(work())
    assert kept(url) == ["b"]


def test_an_owner_that_has_nothing_to_write_renews_its_lease(url: str) -> None:

    async def work() -> None:
        async with contextlib.AsyncExitStack() as stack:
            alone = lease_store.LeaseStore(backends.server(url), None, 0.3)
            stack.callback(alone.close)
            database = Database(url, None, alone.leader)
            stack.push_async_callback(database.close)
            await asyncio.to_thread(
                until, "three renewals", lambda: rows(url, "SELECT 1 FROM leases WHERE commits > 2 AND until > 0")
            )

    run(work())


# Errors at the start


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(StorageFailed, match="cannot be opened") as found:
        Database("postgresql://shoal:secret@127.0.0.1:9/shoal")
    assert "secret" not in str(found.value)


def test_without_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StorageFailed, match="psycopg") as found:
        Database("postgresql://127.0.0.1:9/shoal")
    assert found.value.code == "storage.driver"
    assert ".[postgres]" in found.value.hint
