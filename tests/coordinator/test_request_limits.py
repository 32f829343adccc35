"""The outermost layer: what strangers may send at all, how much of it is read, and how slowly it may come."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.runtime.http.server import connection_limit, metered_protocol
from shoal.runtime.http.server.connection_limit import ConnectionLimit
from shoal.runtime.open_files import SPARE
from shoal_coordinator.settings import Settings
from tests.support.clients import client
from tests.support.coordinator import Inside, Server, inside
from tests.support.raw_http import answer, assert_problem, await_close, connected, head, pour
from tests.support.scenario import by_hand
from tests.support.waiting import PATIENCE_S, pause, until

GIB = 2**30
ANNOUNCED = 2 * GIB
POURED = 512 * 2**20
"""Bytes that a stranger sends before the body counts as accepted."""

TAKEN_MAX = 24 * 2**20
"""Buffers of the kernel, on both sides: bytes that fit into a connection without a reader."""

GROWTH_MAX = 4 * 2**20

PLACES = {
    "jobs": ("POST", "/api/v1/jobs", 413),
    "enrol": ("POST", "/api/v1/enrol", 413),
    "session": ("POST", "/api/v1/session", 413),
    "reports": ("POST", "/api/v1/jobs/any/reports", 413),
    "an upload": ("PUT", f"/api/v1/jobs/any/blobs/{'0' * 64}", 401),
    "a start model": ("PUT", f"/api/v1/blobs/{'0' * 64}", 401),
    "a page": ("POST", "/", 413),
    "nowhere": ("POST", "/api/v1/nowhere", 413),
}


def test_a_strangers_two_gibibytes_are_not_read(server: Callable[..., Server]) -> None:
    running = server().start()
    running.get("/jobs")
    before = running.rss_bytes()
    for place, (method, path, status) in PLACES.items():
        with connected(running.url) as raw:
            raw.sendall(head(method, path, Content_Length=ANNOUNCED, Content_Type="application/json"))
            taken = pour(raw, POURED)
            found = answer(raw)
        assert found.startswith(f"HTTP/1.1 {status} ".encode()), (place, found[:200])
        assert assert_problem(found)["status"] == status, place
        assert taken < TAKEN_MAX, f"{place}: {taken / 2**20:.0f} MiB were taken"
        assert running.rss_bytes() - before < GROWTH_MAX, place
    assert running.get("/jobs")["jobs"] == []


def test_who_may_not_upload_is_told_before_the_body(coordinator: Inside) -> None:
    """With `Expect: 100-continue` not a byte of the body has to be sent to learn that."""
    with connected(coordinator.url) as raw:
        path = f"/api/v1/jobs/any/blobs/{'0' * 64}"
        raw.sendall(head("PUT", path, Content_Length=GIB, Expect="100-continue"))
        assert answer(raw).startswith(b"HTTP/1.1 401 ")


def test_a_head_without_an_end_is_not_kept(server: Callable[..., Server]) -> None:
    running = server().start()
    running.get("/jobs")
    before = running.rss_bytes()
    with connected(running.url) as raw:
        raw.sendall(b"GET /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: ")
        assert pour(raw, 10_000_000)
        raw.settimeout(PATIENCE_S)
        answer(raw)
    assert running.rss_bytes() - before < GROWTH_MAX
    assert running.get("/jobs")["jobs"] == []


# Slow connections


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A coordinator with little patience."""
    settings = {"header_timeout_s": 1, "body_grace_s": 2, "body_bytes_per_s_min": 1000}
    with inside(tmp_path_factory.mktemp("hasty") / "data", **settings) as running:
        yield running


@pytest.mark.parametrize("path", ["/api/v1/enrol", "/api/v1/jobs/any/reports"])
def test_a_body_that_trickles_in_is_not_waited_for(hasty: Inside, path: str) -> None:
    with connected(hasty.url) as raw:
        raw.sendall(head("POST", path, Content_Length=1000))
        await_close(raw, b" " * 1000)


def test_a_second_request_has_the_same_time(hasty: Inside) -> None:
    """The deadline is the request's, not the connection's."""
    with connected(hasty.url) as raw:
        request = head("GET", "/healthz")
        for _ in range(2):
            raw.sendall(request)
            assert raw.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
            pause(1.5)
        raw.sendall(request[:10])
        await_close(raw)


def test_trickles_do_not_hold_up_the_honest(tmp_path: Path) -> None:
    with inside(tmp_path / "data", body_grace_s=3600) as running, contextlib.ExitStack() as held:
        node = by_hand(running, "honest")
        slow = [held.enter_context(connected(running.url)) for _ in range(40)]
        for raw in slow:
            raw.sendall(head("POST", "/api/v1/enrol", Content_Length=1000))
        until("all to be open", lambda: len(bodies_under_way(running)) == len(slow))
        for _ in range(20):
            found = node.once("GET", "/work", params={"wait_s": 0})
            assert found is not None
            assert found.status_code == 204
        assert len(bodies_under_way(running)) == len(slow), "they are still waited for"
        node.client.close()


def bodies_under_way(running: Inside) -> list[Any]:
    """Return the requests whose bodies are awaited."""
    cycles = [one.cycle for one in list(running.server.server_state.connections)]  # type: ignore[union-attr]
    return [cycle for cycle in cycles if cycle is not None and cycle.more_body]


def test_an_idle_poll_is_no_slow_request(hasty: Inside) -> None:
    """A request that has come whole may be answered late."""
    node = by_hand(hasty, "patient")
    found = node.once("GET", "/work", params={"wait_s": 2})
    assert found is not None, "the connection was closed"
    assert found.status_code == 204
    node.client.close()


def test_too_many_connections_are_told_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The refused are closed: who depends on which earlier connection is still there; that some are does not."""
    with inside(tmp_path_factory.mktemp("few") / "data", connections_max=4) as running:
        with contextlib.ExitStack() as held:
            firsts, refusals = [], []
            for _ in range(8):
                raw = held.enter_context(connected(running.url))
                raw.sendall(head("GET", "/healthz"))
                firsts.append(raw.recv(1 << 16, socket.MSG_PEEK).partition(b"\r\n")[0])
                if b"503" in firsts[-1]:
                    refusals.append(answer(raw))
        assert set(firsts) == {b"HTTP/1.1 200 OK", b"HTTP/1.1 503 Service Unavailable"}
        assert firsts[:4] == [b"HTTP/1.1 200 OK"] * 4, "so many may be there"
        assert {assert_problem(one)["code"] for one in refusals} == {"connections.full"}
        assert all(b"retry-after: " in one and b"shoal-protocol: " in one for one in refusals)
        with client() as asking:
            until("a free connection", lambda: asking.get(f"{running.url}/healthz").status_code == 200)


def test_connections_that_ask_for_nothing_are_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would take the last files, and the system would close what comes then without a word."""
    monkeypatch.setattr(metered_protocol, "SILENT_MAX", 2)
    lines = capture_logs(monkeypatch)
    with inside(tmp_path / "data", connections_max=4) as running, contextlib.ExitStack() as held:
        silent = [held.enter_context(connected(running.url)) for _ in range(6)]
        until("them to be open", lambda: len(running.server.server_state.connections) == 6)
        for _ in range(3):
            with connected(running.url) as late:
                assert assert_problem(answer(late))["code"] == "connections.full"
        for one in silent:
            one.close()
        until("free connections", lambda: not running.server.server_state.connections)
        text = running.request("GET", "/metrics").text
    assert "shoal_connections_max 4.0" in text
    assert "shoal_connections_refused_total 3.0" in text
    assert [line["refused"] for line in lines if line["event"] == "connections are refused"] == [1], "no line for each"


def test_the_limit_of_open_files_bounds_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = capture_logs(monkeypatch)
    monkeypatch.setattr(connection_limit, "raise_limit", lambda: 1024)
    assert ConnectionLimit(10_000).most == 1024 - SPARE
    assert [(line["connections"], line["open_files_max"]) for line in lines] == [(1024 - SPARE, 1024)]
    assert ConnectionLimit(500).most == 500
    assert len(lines) == 1


def capture_logs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record the log lines of the limit of connections."""
    lines: list[dict[str, Any]] = []

    class Log:
        def warning(self, event: str, **more: Any) -> None:
            lines.append({"event": event, **more})

    monkeypatch.setattr(connection_limit, "log", Log())
    return lines


def test_who_is_refused_comes_back_at_a_time_of_his_own(tmp_path: Path) -> None:
    """A full disk refuses all nodes; many of them do not come back after the same ten seconds."""
    with inside(tmp_path / "data", checkins_per_s_max=0.02, disk_reserve_bytes=2**60) as running:
        nodes = [by_hand(running, f"n{i}") for i in range(2)]
        asked = [node.client.put(f"{running.url}/api/v1/blobs/{'0' * 64}", content=b"x") for node in nodes]
        asked += [running.request("GET", "/readyz")] * 1
        waits = [int(one.headers["retry-after"]) for one in asked if one.status_code in (503, 507)]
        assert waits
        assert all(2 + 100 <= wait <= 10 + 300 for wait in waits), waits
        for node in nodes:
            node.client.close()


def test_the_defaults_are_what_the_documentation_promises() -> None:
    settings = Settings()
    assert (settings.header_timeout_s, settings.body_grace_s, settings.body_bytes_per_s_min) == (10, 20, 500)
    assert settings.allows_anonymous_read
    assert not Settings(host="0.0.0.0").allows_anonymous_read
    assert Settings(host="0.0.0.0", anonymous_read=True).allows_anonymous_read
