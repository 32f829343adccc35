"""The database and the start: what is wrong with the folder, the file or the port is said at once, with the remedy."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

from shoal.core.errors import ShoalError, StorageFailed
from shoal_coordinator import main
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage import schema_revision
from shoal_coordinator.storage.tables import metadata
from shoal_coordinator.storage.writer import Database
from tests.support.coordinator import FAST, Inside, Server, inside
from tests.support.node import Node
from tests.support.waiting import PATIENCE_S


def refusal(**settings: Any) -> ShoalError:
    """Return the error of a coordinator that cannot start with these settings."""
    with pytest.raises(ShoalError) as found:
        Inside(settings.pop("folder"), **settings).start()
    assert found.value.hint
    return found.value


def test_a_fresh_database_has_the_tables_of_the_code(tmp_path: Path) -> None:
    with inside(tmp_path / "data"):
        pass
    engine = create_engine(f"sqlite:///{tmp_path / 'data' / 'shoal.db'}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata) == []
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA integrity_check")).scalar() == "ok"
    engine.dispose()


def test_the_writer_waits_for_the_disk(tmp_path: Path) -> None:
    """`synchronous=FULL`: a commit that has returned survives a power cut."""

    async def settings_of() -> dict[str, Any]:
        database = Database(f"sqlite:///{tmp_path / 'shoal.db'}")
        names = ("synchronous", "journal_mode", "foreign_keys", "mmap_size", "busy_timeout")
        found = await database.write(lambda c: {n: c.execute(text(f"PRAGMA {n}")).scalar() for n in names})
        await database.close()
        return found

    found = asyncio.run(settings_of())
    assert found == {"synchronous": 2, "journal_mode": "wal", "foreign_keys": 1, "mmap_size": 0, "busy_timeout": 5000}


def test_readers_cannot_write(tmp_path: Path) -> None:
    async def attempt() -> str:
        database = Database(f"sqlite:///{tmp_path / 'shoal.db'}")
        try:
            async with database.reader.begin() as connection:
                await connection.execute(text("DELETE FROM jobs"))
        except Exception as error:
            return str(error)
        finally:
            await database.close()
        return ""

    assert "readonly" in asyncio.run(attempt())


def test_a_write_that_fails_fails_alone(tmp_path: Path) -> None:
    """Writes that share a transaction do not share their errors, and a failed one leaves nothing."""

    async def run() -> tuple[list[Any], int]:
        database = Database(f"sqlite:///{tmp_path / 'shoal.db'}")

        def add(name: str) -> Callable[[Any], None]:
            row = f"INSERT INTO tokens (secret, role, uses) VALUES ('{name}', 'viewer', 0)"

            def work(connection: Any) -> None:
                connection.execute(text(row))
                if name == "c":
                    raise KeyError(name)

            return work

        results = await asyncio.gather(
            *(database.write(add(name)) for name in ("a", "b", "a", "c", "d")), return_exceptions=True
        )
        count = await database.write(lambda c: c.execute(text("SELECT count(*) FROM tokens")).scalar())
        await database.close()
        return results, int(count or 0)

    results, count = asyncio.run(run())
    assert [type(one).__name__ for one in results] == ["NoneType", "NoneType", "StorageFailed", "KeyError", "NoneType"]
    assert count == 3


def test_writes_are_done_in_the_order_of_the_calls(tmp_path: Path) -> None:
    async def run() -> list[int]:
        database = Database(f"sqlite:///{tmp_path / 'shoal.db'}")
        done: list[int] = []
        await asyncio.gather(*(database.write(lambda _, i=i: done.append(i)) for i in range(2000)))
        await database.close()
        return done

    assert asyncio.run(run()) == list(range(2000))


# Errors at the start


def test_who_writes_to_a_database_that_is_closed_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        database = Database(f"sqlite:///{tmp_path / 'shoal.db'}")
        await database.close()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(StorageFailed, match="stopping"):
                await database.write(lambda c: None)

    asyncio.run(work())


def test_a_database_of_a_newer_release_is_not_touched(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with inside(folder):
        pass
    with closing(sqlite3.connect(folder / "shoal.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    before = (folder / "shoal.db").read_bytes()
    error = refusal(folder=folder)
    assert error.code == "storage.newer"
    assert "9999" in error.message
    assert (folder / "shoal.db").read_bytes() == before


def test_a_database_of_this_release_is_opened_without_alembic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = ScriptDirectory.from_config(schema_revision._alembic(""))
    assert schema_revision.newest() == scripts.get_current_head(), "files are named after their revisions, in order"
    with inside(tmp_path / "data"):
        pass
    monkeypatch.setitem(sys.modules, "alembic", None)
    monkeypatch.setitem(sys.modules, "alembic.runtime.migration", None)
    with inside(tmp_path / "data") as running:
        assert running.get("/jobs")["jobs"] == []


def test_a_second_coordinator_on_one_folder(tmp_path: Path) -> None:
    with inside(tmp_path / "data") as first:
        error = refusal(folder=tmp_path / "data")
        assert error.code == "storage.locked"
        assert first.get("/jobs")["jobs"] == []
    with inside(tmp_path / "data"):
        pass


def test_the_lock_goes_with_a_killed_process(server: Callable[..., Server]) -> None:
    running = server().start()
    running.kill()
    assert running.start().get("/jobs")["jobs"] == []


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = refusal(folder=tmp_path / "data", port=port)
    assert error.code == "port.in-use"
    assert str(port) in error.message
    assert f"--port {port + 1}" in error.hint


def test_a_port_in_use_by_another_coordinator(server: Callable[..., Server]) -> None:
    first = server("one").start()
    port = int(first.url.rpartition(":")[2])
    second = server("two", port=port).start()
    assert second.ended() == 70
    assert "port.in-use" in second.log.read_text()
    assert first.get("/jobs")["jobs"] == []
    first.kill()
    assert second.start().get("/jobs")["jobs"] == []


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough" * 100, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_file_that_is_no_database(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "shoal.db").write_bytes(content)
    error = refusal(folder=folder)
    assert isinstance(error, StorageFailed)
    assert (folder / "shoal.db").read_bytes() == content


def test_a_data_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("here already")
    assert isinstance(refusal(folder=tmp_path / "data"), StorageFailed)


@pytest.mark.parametrize(
    "url", ["postgresql+asyncpg://localhost/shoal", "sqlite://", "sqlite:///:memory:", "mysql://x", "nonsense"]
)
def test_a_database_that_is_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.chdir(tmp_path)
    error = refusal(folder=tmp_path / "data", database_url=url)
    assert error.code == "storage.url"
    assert list(tmp_path.iterdir()) == [], "no folder may be made of an address"


def test_another_place_for_the_database(tmp_path: Path) -> None:
    place = tmp_path / "elsewhere" / "x.db"
    with inside(tmp_path / "data", database_url=f"sqlite:///{place}") as running:
        assert running.get("/jobs")["jobs"] == []
    assert place.exists()
    assert not (tmp_path / "data" / "shoal.db").exists()


def test_half_of_a_certificate(tmp_path: Path) -> None:
    settings = Settings.model_validate({**FAST, "data": tmp_path, "tls_cert": "cert.pem"})
    with pytest.raises(ShoalError, match="tls_key"):
        main.run(settings)


def test_a_job_that_this_release_cannot_run_stops_no_other(tmp_path: Path) -> None:
    """Its algorithm came from a distribution that is not installed any more, say."""
    folder = tmp_path / "data"
    with inside(folder) as running:
        running.begin("lost", nodes=1)
        running.begin("fine", nodes=1)
    with closing(sqlite3.connect(folder / "shoal.db")) as connection, connection:
        connection.execute("UPDATE jobs SET spec = json_set(spec, '$.algorithm.name', 'gone') WHERE name = 'lost'")
    with inside(folder) as running:
        assert running.job("fine")["state"] == "waiting"
        found = running.job("lost")
        assert found["state"] == "failed"
        assert "gone" in found["state_why"]
        assert [job["name"] for job in running.get("/jobs")["jobs"]] == ["fine", "lost"]


def test_ready_and_alive(coordinator: Inside) -> None:
    assert coordinator.request("GET", "/healthz").json() == {"status": "ok"}
    assert coordinator.request("GET", "/readyz").json() == {"status": "ready"}
    coordinator.coordinator.ready = False
    assert coordinator.request("GET", "/healthz").status_code == 200
    assert coordinator.request("GET", "/readyz").status_code == 503
    coordinator.coordinator.ready = True


def test_metrics_for_machines(coordinator: Inside, swarm: Callable[..., list[Node]]) -> None:
    coordinator.begin("a", nodes=2, rounds=2)
    for node in swarm(coordinator, 2, {"a": 10}):
        node.finish()
    lines = coordinator.request("GET", "/metrics").text.splitlines()
    assert 'shoal_job_version{job_name="a"} 2.0' in lines
    assert 'shoal_nodes{state="online"} 2.0' in lines
    assert any(line.startswith('shoal_wire_bytes_total{direction="up",job_name="a"} ') for line in lines)
    assert "n0" not in "".join(lines), "there may be thousands of nodes"
