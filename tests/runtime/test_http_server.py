"""Limits that the servers of coordinators and peers share: what is refused before it is read."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.peering.http import connections
from shoal.peering.http.hosted_peer import HostedJobs
from shoal.peering.http.peer_app import serve_jobs
from shoal.peering.state.byte_counts import ByteCounts
from shoal.runtime.http.server import metered_protocol
from shoal.runtime.http.server.serving import listen
from tests.support.coordinator import inside
from tests.support.raw_http import answer, assert_problem, await_close, connected, head
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("sockets")

CODES = list[str]()
"""Codes of what a peer's listener has refused."""


@contextlib.contextmanager
def a_coordinator(folder: Path) -> Iterator[str]:
    with inside(folder, header_timeout_s=1, body_grace_s=2, body_bytes_per_s_min=1000, connections_max=4) as running:
        yield running.url
        assert running.get("/jobs")["jobs"] == []


@contextlib.contextmanager
def a_peer(folder: Path) -> Iterator[str]:
    """The listener of a node without jobs, in a thread."""
    folder.mkdir()
    ready, loop, bytes_of = threading.Event(), asyncio.new_event_loop(), ByteCounts(folder / "unidentified_bytes.json")
    home, end = HostedJobs(lambda _: None, bytes_of, lambda code, *_: CODES.append(code)), asyncio.Event()

    async def main() -> None:
        async with serve_jobs(home, sock):
            ready.set()
            await end.wait()

    with listen("127.0.0.1", 0) as sock:
        thread = threading.Thread(target=loop.run_until_complete, args=[main()])
        thread.start()
        ready.wait()
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            loop.call_soon_threadsafe(end.set)
            thread.join()
            loop.close()
    assert bytes_of.totals()["received"]["?"] > 0


@pytest.fixture(scope="module", params=[a_coordinator, a_peer])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with little patience that serves at most four connections."""
    with pytest.MonkeyPatch.context() as patch:
        values = {"HEAD_RECEIPT_S": 1, "BODY_GRACE_S": 2, "BODY_BYTES_PER_S_MIN": 1000, "CONNECTIONS_MAX": 4}
        for name, value in values.items():
            patch.setattr(connections, name, value)
        patch.setattr(metered_protocol, "SILENT_MAX", 2)
        with request.param(tmp_path_factory.mktemp("server") / "data") as address:
            yield address


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content_Length": -1}, 400),
        ({"Content_Length": "many"}, 400),
        ({"Content_Length": 10**30}, 400),
        ({"Transfer_Encoding": "chunked"}, 411),
        ({"Transfer_Encoding": "gzip, chunked"}, 411),
        ({"Transfer_Encoding": "chunked", "Content_Length": 5}, 400),
        ({"Content_Encoding": "gzip", "Content_Length": 5}, 415),
        ({"Content_Encoding": "identity", "Content_Length": 2**31}, 413),
    ],
)
def test_unclear_bodies_are_refused(url: str, headers: dict[str, object], status: int) -> None:
    with connected(url) as raw:
        raw.sendall(head("POST", "/api/v1/jobs", **headers))
        found = answer(raw)
    assert found.startswith(f"HTTP/1.1 {status} ".encode())
    assert_problem(found)


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a greeting of TLS", b"hello\r\n\r\n"])
def test_what_is_no_http_is_told_so(url: str, sent: bytes) -> None:
    with connected(url) as raw:
        raw.sendall(sent)
        found = answer(raw)
    assert found.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert assert_problem(found)["code"] == "request.malformed"


@pytest.mark.parametrize("long", [b"X-A: " + b"a" * 10_000_000, b"x: y\r\n" * 100_000, b"x: y\r\n" * 128])
def test_a_head_has_a_limit(url: str, long: bytes) -> None:
    with connected(url) as raw:
        with contextlib.suppress(ConnectionError):
            raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + long + b"\r\n\r\n")
        assert assert_problem(answer(raw))["code"] == "head.too-large"


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X-A: b\r\n" * 100])
def test_a_head_that_trickles_in_is_not_waited_for(url: str, sent: bytes) -> None:
    with connected(url) as raw:
        await_close(raw, sent)


def test_connections_that_ask_for_nothing_are_limited(url: str) -> None:
    """Else they would take the last files, and the system would close what comes then without a word."""

    def is_served() -> bool:
        with connected(url) as raw:
            raw.sendall(head("GET", "/", Connection="close"))
            return answer(raw).startswith(b"HTTP/1.1 200 ")

    until("free connections", is_served)
    with contextlib.ExitStack() as held:
        late = [held.enter_context(connected(url)) for _ in range(7)][-1]
        assert assert_problem(answer(late))["code"] == "connections.full"
    until("free connections", is_served)
