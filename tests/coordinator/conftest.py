"""Coordinators and nodes for tests."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from shoal_coordinator.nodes import presence
from tests.support.cluster import Fleet, signal_of
from tests.support.coordinator import PATIENCE_S, Api, Inside, Server, inside
from tests.support.lost_coordinator import Kept, keep, one_round
from tests.support.node import History, Node
from tests.support.peers import GOSSIP, OPEN, join_as_peers
from tests.support.postgres import Cluster
from tests.support.scenario import Clock, set_up

# It is installed for `make test-all`; `make test` does not need it.
collect_ignore = [] if importlib.util.find_spec("schemathesis") else ["test_openapi_fuzz.py"]


@pytest.fixture(scope="session", autouse=True)
def plain_logs() -> None:
    """Tracebacks in colors, with all variables, take longer than what most tests are about."""
    structlog.configure(processors=[structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)])


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server; one for each process of the test run."""
    running = Cluster()
    yield running
    running.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Makes coordinators in processes of their own; they are killed in the end."""
    made: list[Server] = []

    def make(folder: str = "data", **settings: Any) -> Server:
        made.append(Server(tmp_path / folder, **settings))
        return made[-1]

    yield make
    for one in made:
        one.kill()
        one.close()


@pytest.fixture
def fleet(cluster: Cluster, tmp_path: Path, server: Callable[..., Server]) -> Iterator[Callable[..., Fleet]]:
    """Makes several on one database; none of them is left stopped (SIGSTOP) in the end."""
    made: list[Fleet] = []

    def make(count: int, owner_s: float, **settings: Any) -> Fleet:
        made.append(Fleet(server, tmp_path, cluster.database(), count, owner_s, **settings))
        return made[-1]

    yield make
    for one in made:
        for member in one.members:
            if member.pid:
                signal_of(member, signal.SIGCONT)
        one.close()


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Inside]:
    """A coordinator in this process."""
    with inside(tmp_path / "data") as running:
        yield running


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock of all signs of life, so that no node is lost because the machine is slow."""
    made = Clock()
    monkeypatch.setattr(presence, "time", made)
    return made


@pytest.fixture
def swarm() -> Iterator[Callable[..., list[Node]]]:
    """Starts nodes; those that are left are told to go in the end."""
    made: list[Node] = []

    def start(api: Api, count: int, sizes: dict[str, int], history: History | None = None, **more: Any) -> list[Node]:
        where = more.pop("where", lambda: api.url)
        tokens = [api.token() for _ in range(count)]
        fresh = [Node(where, f"n{i}", token, sizes, history) for i, token in enumerate(tokens)]
        for node in fresh:
            for name, value in more.items():
                setattr(node, name, value)
            node.start()
        made.extend(fresh)
        return fresh

    yield start
    for node in made:
        node.quit.set()
    for node in made:
        node.join(PATIENCE_S)
    assert not [thread for thread in threading.enumerate() if thread in made]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with inside(tmp_path / "lost", **OPEN) as running:
        stage = set_up(running, gossip=GOSSIP)
        join_as_peers(stage, "n0", "n1")
        one_round(stage)
        yield keep(stage, tmp_path)
        stage.close()


@pytest.fixture
def empty(tmp_path: Path, kept: Kept) -> Iterator[Inside]:
    """A coordinator with nothing but the key."""
    (tmp_path / "new").mkdir()
    shutil.copy2(kept.key, tmp_path / "new" / "coordinator.pem")
    with inside(tmp_path / "new", **OPEN) as running:
        yield running
