"""A coordinator that can be killed, and a folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from starlette.applications import Starlette

from shoal.peering.host import gossip_pump
from shoal.peering.http import hosted_peer, peer_app
from shoal_edge_client.peering import coordinator_requests
from tests.peering.scenario import Process, Threaded
from tests.support.coordinator import Server


@pytest.fixture(autouse=True)
def plain_log() -> Iterator[None]:
    """Restore the logging after each test."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture(autouse=True)
def swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies are swept away after every event, so that one which is still needed is missed soon. (In threads.)"""
    monkeypatch.setattr(gossip_pump, "SWEEP_EVENTS", 1)


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator soon hears its peers' status; a leaving node does not wait for relayed polls. (In threads.)"""
    monkeypatch.setattr(coordinator_requests, "PEERING_S", 0.3)
    monkeypatch.setattr(peer_app, "GRACE_S", 0.2)


@pytest.fixture(autouse=True)
def one_app_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routes are declared by a library that is not safe for threads there; a process has one node, but a test many."""
    make, alone = peer_app.create_app, threading.Lock()

    def made(home: hosted_peer.HostedJobs) -> Starlette:
        with alone:
            return make(home)

    monkeypatch.setattr(peer_app, "create_app", made)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """It loses no node, however slow the test is, and keeps its port."""
    made = Server(tmp_path / "data", lease_s=3600.0).start()
    made.settings["port"] = int(made.url.rpartition(":")[2])
    yield made
    made.kill()
    made.close()


@pytest.fixture
def threaded(server: Server, tmp_path: Path) -> Iterator[Callable[..., Threaded]]:
    """Makes nodes in threads, which leave in the end."""
    nodes: list[Threaded] = []

    def make(*given: Any, kind: type[Threaded] = Threaded, **more: Any) -> Threaded:
        nodes.append(kind(server, tmp_path, *given, **more))
        return nodes[-1]

    yield make
    for node in nodes:
        node.leave()
    for node in nodes:
        node.end()


@pytest.fixture
def process(server: Server, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Makes nodes that are processes, which are killed in the end."""
    nodes: list[Process] = []

    def make(name: str, **options: Any) -> Process:
        nodes.append(Process(server, tmp_path, name, **options))
        return nodes[-1]

    yield make
    for node in nodes:
        if node.ended is None:
            node.kill()
