"""A node at 1 kB/s is there while its bytes move, though no poll of its comes through; it is lost when they stop."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from shoal.runtime.http.server.slow_responses import Delivery
from tests.coordinator.test_followers import at_follower, two
from tests.support import clients
from tests.support.cluster import owners
from tests.support.coordinator import Inside, inside
from tests.support.http_servers import CERTIFICATE
from tests.support.node import body, displacement
from tests.support.postgres import Cluster
from tests.support.raw_http import head
from tests.support.scenario import Clock, Stage, set_up, task_of
from tests.support.waiting import PATIENCE_S, until

LEASE_S = 1.0
STEP_S = 0.8
"""Seconds for each piece of a transfer, less than a lease."""

STEPS = 4
PIECE_BYTES = 20_000
INLINE, LARGE = 60_000, 120_000
"""Models that go along with tasks and reports, and that do not. Both fit into the kernel's buffers as a whole."""


@pytest.fixture(params=["http", "https"])
def running(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Inside]:
    monkeypatch.setattr(clients, "_TRUSTS_NOBODY", ssl.create_default_context(cafile=CERTIFICATE))
    tls = {"tls_cert": CERTIFICATE, "tls_key": CERTIFICATE} if request.param == "https" else {}
    with inside(tmp_path / "data", lease_s=LEASE_S, **tls) as one:
        yield one


@contextlib.contextmanager
def link(running: Inside) -> Iterator[socket.socket]:
    """A connection on which little is under way at a time."""
    place = urlsplit(running.url)
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(PATIENCE_S)
        raw.connect((place.hostname, place.port))
        if place.scheme == "http":
            yield raw
            return
        context = ssl.create_default_context(cafile=CERTIFICATE)
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as wrapped:
            yield wrapped


def asks(stage: Stage, method: str, path: str, **headers: object) -> bytes:
    """The head of a request of n0's."""
    return head(method, f"/api/v1{path}", Authorization=stage.nodes[0].client.headers["Authorization"], **headers)


def crawl(stage: Stage, clock: Clock, step: Callable[[], object]) -> None:
    """Move pieces of a transfer of n0's, each in less than a lease, and all together in more than three."""
    for _ in range(STEPS):
        clock.now += STEP_S
        step()
        until("n0 to be heard", lambda: stage.running.coordinator.nodes.presence.silent_s("n0") == 0.0)


def lost(stage: Stage) -> list[str]:
    return [
        event["text"] for event in stage.running.events(stage.job, "node") if event["text"].startswith("n0 is lost")
    ]


def check_that_silence_counts(stage: Stage, clock: Clock) -> None:
    """It was not lost until now; without another byte it is, after a lease. The last bytes may be acknowledged late."""

    def later() -> list[str]:
        clock.now += 1.5 * LEASE_S
        return lost(stage)

    assert not lost(stage)
    assert until("n0 to be lost", later, every_s=0.1) == ["n0 is lost: no sign of life for 1 s"]


def receive(raw: socket.socket, nbytes: int) -> bytes:
    """Read that many bytes, or all until the other side closes."""
    found = b""
    while len(found) < nbytes and (piece := raw.recv(nbytes - len(found))):
        found += piece
    return found


def requests(stage: Stage) -> dict[str, tuple[bytes, bytes]]:
    """(head, body) of what a node may have to say for long."""
    data = body(displacement("n0", 0, LARGE))
    digest = hashlib.sha256(data).hexdigest()
    start, payload = stage.frame(displacement("n0", 0, INLINE))
    said = start + payload
    return {
        "body": (asks(stage, "PUT", f"/jobs/main/blobs/{digest}", Content_Length=len(data)), data),
        "report": (asks(stage, "POST", "/jobs/main/reports", Content_Length=len(said)), said),
    }


@pytest.mark.parametrize(("what", "size"), [("body", LARGE), ("report", INLINE)])
def test_who_sends_slowly_is_there(running: Inside, clock: Clock, what: str, size: int) -> None:
    stage = set_up(running, size=size)
    start, data = requests(stage)[what]
    pieces = iter([data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)])
    with link(running) as raw:
        raw.sendall(start)
        task_of(stage.nodes[0], "main")
        crawl(stage, clock, lambda: raw.sendall(next(pieces)))
        assert not lost(stage)
        raw.sendall(b"".join(pieces))
        assert receive(raw, 12) in (b"HTTP/1.1 200", b"HTTP/1.1 201")
    assert not lost(stage)
    stage.close()


def test_who_stops_sending_is_lost(running: Inside, clock: Clock) -> None:
    stage = set_up(running, size=LARGE)
    start, data = requests(stage)["body"]
    with link(running) as raw:
        raw.sendall(start)
        task_of(stage.nodes[0], "main")
        crawl(stage, clock, lambda: raw.sendall(data[:PIECE_BYTES]))
        check_that_silence_counts(stage, clock)
    stage.close()


@pytest.mark.parametrize(("what", "size"), [("body", LARGE), ("task", INLINE)])
def test_who_receives_slowly_is_there_until_it_stops(running: Inside, clock: Clock, what: str, size: int) -> None:
    stage = set_up(running, size=size)
    ref = stage.tasks["n0"].blob
    assert ref is not None
    path = f"/jobs/main/blobs/{ref.digest}" if what == "body" else "/work?wait_s=1"
    with link(running) as raw:
        raw.sendall(asks(stage, "GET", path))
        assert receive(raw, 12) == b"HTTP/1.1 200"
        crawl(stage, clock, lambda: receive(raw, PIECE_BYTES))
        check_that_silence_counts(stage, clock)
    stage.close()


def test_who_hangs_up_in_the_middle_is_lost(running: Inside, clock: Clock) -> None:
    stage = set_up(running, size=LARGE)
    ref = stage.tasks["n0"].blob
    assert ref is not None
    with link(running) as raw:
        raw.sendall(asks(stage, "GET", f"/jobs/main/blobs/{ref.digest}"))
        crawl(stage, clock, lambda: receive(raw, PIECE_BYTES))
    check_that_silence_counts(stage, clock)
    stage.close()


class Held:
    """Stands for a transport whose kernel tells nothing, and for the loop that looks at it."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.tick: Any = None

    def get_write_buffer_size(self) -> int:
        return self.nbytes

    def get_extra_info(self, _name: str) -> Held:
        return self

    def getsockopt(self, *_: int) -> bytes:
        raise OSError

    def call_later(self, _delay: float, tick: Any) -> Any:
        self.tick = tick

    def look(self, nbytes: int) -> None:
        """Let the loop look when the transport holds that many bytes."""
        assert self.tick is not None
        (tick, self.tick), self.nbytes = (self.tick, None), nbytes
        tick()


def test_where_the_kernel_tells_nothing_the_transport_is_asked() -> None:
    held, heard = Held(), list[int]()
    held.nbytes = 100
    delivery = Delivery(held, held, 15.0)  # type: ignore[arg-type]
    delivery.monitor(lambda: heard.append(held.nbytes))
    for nbytes in (100, 60, 60, 0):
        held.look(nbytes)
    assert heard == [60, 0]
    assert held.tick is None, "nothing is left"


def test_a_slow_download_through_the_leader_keeps_a_node_alive_for_the_follower(
    cluster: Cluster, tmp_path: Path, clock: Clock
) -> None:
    """The leader takes the whole answer of the follower at once, and tells it that the node is there."""
    with two(cluster.database(), tmp_path, lease_s=LEASE_S) as pair:
        pair[0].begin("first", nodes=9)
        stage = set_up(pair[0], "second", size=LARGE)
        assert owners(pair[0].database_url)["second"] == pair[1].url
        ref = stage.tasks["n0"].blob
        assert ref is not None
        houses = pair[0].coordinator, at_follower(pair)
        with link(pair[0]) as raw:
            raw.sendall(asks(stage, "GET", f"/jobs/second/blobs/{ref.digest}"))
            for _ in range(STEPS):
                clock.now += STEP_S
                receive(raw, PIECE_BYTES)
                until("n0 to be heard", lambda: all(one.nodes.presence.silent_s("n0") == 0.0 for one in houses), 5.0)
        assert not lost(stage)
        stage.close()
