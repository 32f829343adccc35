"""Coordinators for tests: real processes that can be killed, and one inside the test that can be looked into."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvloop

from shoal_coordinator import main
from shoal_coordinator.composition.coordinator import Coordinator
from shoal_coordinator.jobs.job_runner import JobRunner
from shoal_coordinator.settings import Settings
from tests.support import coordinator_process
from tests.support.clients import client
from tests.support.forkserver import Forked, pipe
from tests.support.waiting import PATIENCE_S, until

T = TypeVar("T")

OPERATOR = "sho_test"
FAST: dict[str, Any] = {
    "port": 0,
    "operator_token": OPERATOR,
    "disk_reserve_bytes": 0,
    "alert_disk_bytes": 0,  # how full the machine is must not show in a stream of events
    "lease_s": 30.0,
    "poll_s_max": 2.0,
    "traffic_flush_s": 0.2,
}
"""Settings that suit tests."""

ELSEWHERE: list[Callable[[Path], str]] = []
"""Its last one gives the coordinator of a folder its database; empty: that is a file in the folder."""


def settled(folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The settings of a test's coordinator."""
    where = {"database_url": ELSEWHERE[-1](folder)} if ELSEWHERE else {}
    return {**FAST, **where, "data": str(folder), **given}


class Api:
    """An operator's requests to a coordinator."""

    url: str
    folder: Path
    database_url: str

    def __init__(self) -> None:
        self._client = client(timeout=PATIENCE_S, headers={"Authorization": f"Bearer {OPERATOR}"})

    def close(self) -> None:
        self._client.close()

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        """A request of the operator's; any answer will do."""
        return self._client.request(method, f"{self.url}{path}", **more)

    def get(self, path: str, **params: Any) -> Any:
        """The JSON that a route answers with."""
        answer = self.request("GET", f"/api/v1{path}", params=params)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return answer.json()

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = self.request("POST", f"/api/v1{path}", json=body or {})
        assert answer.status_code in (200, 201), (path, answer.status_code, answer.text)
        return answer.json()

    def token(self, **more: Any) -> str:
        """A token that enrols one node."""
        return str(self.post("/tokens", {"role": "node", **more})["token"])

    def begin(self, name: str, *, nodes: int, rounds: int = 5, start: str | None = None, **more: Any) -> Any:
        """Make a job whose rounds want all of `nodes`."""
        patient = {"name": "rounds", "min_nodes": nodes, "cohort": nodes, "deadline_s": 3600.0}
        schedule = patient | more.pop("schedule", {})
        spec = {"name": name, "rounds": rounds, "schedule": schedule, **more}
        return self.post("/jobs", {"spec": spec, **({"start_model": start} if start else {})})

    def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/jobs/{name}")
        return found

    def events(self, name: str, kind: str = "") -> list[dict[str, Any]]:
        """A job's events, of one kind or all."""
        return [
            event for event in self.get(f"/jobs/{name}/events", limit=5000)["events"] if kind in ("", event["kind"])
        ]

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Look into the database, past the coordinator."""
        if self.database_url:
            from tests.support import postgres

            return postgres.rows(self.database_url, query, *values)
        place = (self.folder / "shoal.db").absolute()
        with contextlib.closing(sqlite3.connect(f"file:{place}?mode=ro", uri=True)) as connection:
            return connection.execute(query, values).fetchall()


class Server(Api):
    """A coordinator in a process of its own, over one data folder, through any number of lives."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__()
        self.folder = folder
        self.settings = settled(folder, settings)
        self.database_url = self.settings.get("database_url", "")
        self.log = folder.parent / f"{folder.name}.log"
        self.url, self.pid, self.lives, self._status = "http://127.0.0.1:9", 0, 0, 0
        self._process: Forked | None = None

    def start(self, crash: str = "", mutant: str = "", *, ready: bool = True) -> Server:
        """Begin a life. `ready`: wait until it can be used, or has died."""
        assert not self.pid
        port, given = pipe()
        life = (coordinator_process.main, self.settings, mutant, given)
        self._process = Forked(*life, out=self.log, errors=self.log, more={"SHOAL_CRASH_AT": crash})
        given.close()
        self.pid, self.lives = self._process.pid, self.lives + 1
        with port, contextlib.suppress(EOFError):  # it has died before it listened
            self.url = f"http://127.0.0.1:{port.recv()}"
        if ready:
            until("the coordinator to be ready", lambda: self.ended() is not None or self._is_ready())
        return self

    def _is_ready(self) -> bool:
        try:
            return self.request("GET", "/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def ended(self) -> int | None:
        """How this life ended (-9: killed), and reap it; None while it lasts."""
        if not self.pid:
            return self._status
        assert self._process is not None
        found = self._process.poll()
        if found is not None:
            self._status = found
            self.pid = 0
        return found

    def end(self, sig: int = signal.SIGTERM) -> int:
        """End this life, and reap it."""
        if self.pid:
            os.kill(self.pid, sig)
            until("the coordinator to end", lambda: self.ended() is not None, every_s=0.002)
        return self._status

    def kill(self) -> None:
        """As a power cut would."""
        self.end(signal.SIGKILL)

    def rss_bytes(self) -> int:
        """Memory that it holds now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


class Inside(Api):
    """A coordinator in a thread of the test's own process, over real sockets."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__()
        self.folder = folder
        self.settings = Settings.model_validate(settled(folder, settings))
        self.database_url = self.settings.database_url.get_secret_value()
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)
        self._up = threading.Event()
        self.failure: BaseException | None = None

    def _run(self) -> None:
        try:
            with main.bind(self.settings) as sock:
                self.url = main.address(self.settings, sock)
                self.server = main.build(self.settings)
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    self.loop = runner.get_loop()
                    runner.run(self._serve(sock))
        except BaseException as error:  # shown where it is waited for
            self.failure = error
        finally:
            self._up.set()

    async def _serve(self, sock: socket.socket) -> None:
        startup = self.server.startup

        async def start_and_tell(sockets: Any = None) -> None:
            await startup(sockets)
            self._up.set()

        self.server.startup = start_and_tell  # type: ignore[method-assign]
        await self.server.serve(sockets=[sock])

    def start(self) -> Inside:
        self._thread.start()
        assert self._up.wait(PATIENCE_S)
        if self.failure is not None:
            self.close()
            raise self.failure
        return self

    def stop(self) -> None:
        """End in good order."""
        if self.failure is None:
            self.server.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self.close()

    @property
    def coordinator(self) -> Coordinator:
        return self.server.coordinator

    def runner(self, job: str) -> JobRunner:
        found = self.coordinator.jobs.records[job].runner
        assert found is not None
        return found

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the coordinator's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)


_numbers = itertools.count(1)


def fresh(prefix: str) -> str:
    """A name that no other test in this process has used."""
    return f"{prefix}{next(_numbers)}"


@contextlib.contextmanager
def inside(folder: Path, **settings: Any) -> Iterator[Inside]:
    """A coordinator in this process, from start to end."""
    running = Inside(folder, **settings).start()
    try:
        yield running
    finally:
        running.stop()
