"""Requests without a leader: they wait for a moment, and the next leader answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.core.cluster.leader_lease import RemoteLeader
from shoal.runtime.http.server.exchange import SCOPE_KEY
from shoal_coordinator.cluster import leader_proxy
from shoal_coordinator.cluster.leader_proxy import LeaderProxy
from shoal_coordinator.cluster.replica import ActiveCoordinator, Replica
from shoal_coordinator.cluster.reverse_proxy import Unanswered
from shoal_coordinator.settings import Settings
from shoal_coordinator.telemetry.traffic import LabeledExchange

LEADER = RemoteLeader(1, "http://10.0.0.1:8080", "secret")


class Stub:
    """A replica whose ways are said one after the other, a turn after each."""

    def __init__(self, *ways: ActiveCoordinator | RemoteLeader | None) -> None:
        self.ways = list(ways)
        self.changed, self.is_stopping, self.leading = asyncio.Event(), False, None
        self.metrics = SimpleNamespace()
        self.forwarder = SimpleNamespace(forward=self.forward)
        self.forwards = 0

    async def forward(self, *_: Any) -> None:
        self.forwards += 1
        raise Unanswered

    def way(self, _scope: Any) -> ActiveCoordinator | RemoteLeader | None:
        found = self.ways.pop(0) if len(self.ways) > 1 else self.ways[0]
        asyncio.get_running_loop().call_soon(Replica._notify_change, self)  # type: ignore[arg-type]
        return found


async def app(_scope: Any, _receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def asked(stub: Stub, monkeypatch: pytest.MonkeyPatch, method: str = "GET", path: str = "/api/v1/work") -> int:
    """The status of the answer to a request."""
    front = LeaderProxy(stub, Settings(), stub.metrics)  # type: ignore[arg-type]
    monkeypatch.setattr(front, "_route", stub.way)
    statuses = []

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    async def answer(owned: ActiveCoordinator, *given: Any) -> None:
        await owned.app(*given)

    monkeypatch.setattr(front, "_answer", answer)
    scope = {"type": "http", "method": method, "path": path, "headers": [], SCOPE_KEY: LabeledExchange()}
    asyncio.run(asyncio.wait_for(front(scope, lambda: None, send), 60))  # type: ignore[arg-type]
    return int(statuses[0])


def here() -> ActiveCoordinator:
    return ActiveCoordinator(None, app, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_waits_for_the_next_leader(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    assert asked(Stub(None, None, here()), monkeypatch, method) == 200


def test_a_request_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_proxy, "HOLD_S", 0.05)
    assert asked(Stub(None), monkeypatch) == 503


def test_nothing_waits_where_this_process_shuts_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_proxy, "HOLD_S", 1e6)
    stub = Stub(None)
    stub.is_stopping = True
    assert asked(stub, monkeypatch) == 503


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_checks_are_answered_at_once(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(leader_proxy, "HOLD_S", 1e6)
    assert asked(Stub(None), monkeypatch, path=path) == {"/healthz": 200, "/readyz": 503}[path]


def test_what_a_lost_leader_did_not_answer_is_asked_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub(LEADER, LEADER, here())
    assert asked(stub, monkeypatch) == 200
    assert stub.forwards == 2


def test_a_request_with_a_body_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub(LEADER, here())
    assert asked(stub, monkeypatch, "POST") == 503
    assert stub.forwards == 1
