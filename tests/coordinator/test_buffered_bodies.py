"""Bodies that are held in memory: only of known senders, within one budget and by a deadline; and heads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from shoal.runtime.http.server.header_limits import (
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    HEADS_BYTES_MAX,
    USUAL_BYTES_MAX,
    HeadLimit,
    HeadTooLarge,
    PendingHeaders,
)
from shoal.runtime.http.server.receive_timeouts import ReceiveWatchdog
from shoal_coordinator.http.buffered_bodies import NODE_BYTES_MAX, STRANGERS_BYTES_MAX, BodyBudget, BufferedBodies
from shoal_coordinator.http.request_limits import STRANGER_BYTES_MAX
from shoal_coordinator.settings import Settings
from tests.support.coordinator import OPERATOR, Inside, Server, inside
from tests.support.raw_http import answer, await_close, connected, head
from tests.support.waiting import PATIENCE_S, pause

MIB = 2**20
PLACES = [
    ("POST", "/api/v1/jobs"),
    ("POST", "/api/v1/jobs:validate"),
    ("POST", "/api/v1/tokens"),
    ("POST", "/api/v1/hello"),
    ("POST", "/api/v1/jobs/any/peer-status"),
    ("POST", "/api/v1/jobs/any/reports"),
    ("PUT", "/api/v1/jobs/any/tags"),
]


def asked(url: str, sent: bytes) -> tuple[int, dict[str, Any]]:
    """The status of the answer to these bytes, and the problem that it is, if it is one."""
    with connected(url) as raw:
        raw.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionError):
            raw.sendall(sent)
        found = answer(raw)
    first, _, rest = found.partition(b"\r\n")
    text = rest.partition(b"\r\n\r\n")[2]
    return int(first.split()[1]), json.loads(text) if b"problem+json" in rest else {}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A coordinator with a small budget, and little patience."""
    settings = {
        "buffered_bodies_bytes_max": MIB,
        "body_grace_s": 2,
        "buffered_body_timeout_s": 3,
        "body_bytes_per_s_min": 1,
    }
    with inside(tmp_path_factory.mktemp("small") / "data", **settings) as running:
        yield running


@pytest.mark.parametrize("credential", ["", "Bearer sho_wrong", "Bearer shn_wrong"])
@pytest.mark.parametrize(("method", "path"), PLACES)
def test_a_stranger_is_refused_before_his_body_comes(small: Inside, method: str, path: str, credential: str) -> None:
    """Not a byte of the body is sent: the answer must not wait for it."""
    more = {"Authorization": credential} if credential else {}
    status, problem = asked(small.url, head(method, path, Content_Length=100_000, **more))
    assert status == 401
    assert problem["code"] == ("auth.refused" if credential else "auth.missing")


@pytest.mark.parametrize("found", [None, "node n0"])
def test_the_application_reads_the_body_of_a_known_sender_alone(found: str | None) -> None:
    api, asked, said = FastAPI(), [], []
    api.post("/api/v1/jobs")(lambda: None)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])

    async def send(message: Any) -> None:
        said.append(message.get("status"))

    scope = {"type": "http", "method": "POST", "path": "/api/v1/jobs", "headers": [(b"content-length", b"9")]}
    bodies = BufferedBodies(app, api, Settings(), lambda _: found)
    asyncio.run(bodies(scope, NotImplemented, send))  # its `receive` cannot be called
    assert (asked, said[:1]) == (([], [401]) if found is None else (["/api/v1/jobs"], []))


@pytest.mark.parametrize("path", ["/api/v1/enrol", "/api/v1/session", "/api/v1/jobs/any/re-enrol?term=1"])
def test_where_strangers_may_send_a_body_it_is_short(small: Inside, path: str) -> None:
    status, problem = asked(small.url, head("POST", path, Content_Length=STRANGER_BYTES_MAX + 1))
    assert (status, problem["code"]) == (413, "body.too-large")
    assert STRANGER_BYTES_MAX == 16 * 1024


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/healthz", "/"])
def test_where_nobody_reads_a_body_it_is_short_too(small: Inside, path: str) -> None:
    status, _ = asked(small.url, head("GET", path, Content_Length=STRANGER_BYTES_MAX + 1))
    assert status == 413


def open_bodies(held: contextlib.ExitStack, url: str, count: int, sent: bytes) -> list[socket.socket]:
    """So many connections on which a request has begun."""
    made = [held.enter_context(connected(url)) for _ in range(count)]
    for raw in made:
        raw.sendall(sent)
    return made


def test_all_open_bodies_have_one_budget(small: Inside) -> None:
    """Four bodies of 300 kB do not fit into 1 MiB; one that is given up makes room."""
    sent = head("POST", "/api/v1/jobs:validate", Content_Length=300_000, Authorization=f"Bearer {OPERATOR}")
    with contextlib.ExitStack() as held:
        first, *_ = open_bodies(held, small.url, 3, sent + b"{")
        small.get("/jobs")  # whatever came before has been looked at
        status, problem = asked(small.url, sent)
        assert (status, problem["code"]) == (503, "bodies.full")
        first.close()
        small.get("/jobs")
        with connected(small.url) as raw:
            raw.sendall(sent)
            pause(0.3)
            raw.setblocking(False)
            with pytest.raises(BlockingIOError):  # it is waited for
                raw.recv(1)


def test_strangers_leave_room_for_the_known(small: Inside) -> None:
    sent = head("POST", "/api/v1/enrol", Content_Length=16_000)
    with contextlib.ExitStack() as held:
        open_bodies(held, small.url, 32, sent + b"{")  # half of the budget
        small.get("/jobs")
        status, problem = asked(small.url, sent)
        assert (status, problem["code"]) == (503, "bodies.full")
        assert small.request("POST", "/api/v1/jobs:validate", json={"toml": "#" * 300_000}).status_code == 422


def test_a_body_has_an_absolute_deadline(small: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """However steadily it comes: a byte every 0.1 s is fast enough here, and never a whole body."""
    deadlines: list[float] = []
    within = ReceiveWatchdog.within

    def noted(watchdog: ReceiveWatchdog, seconds: float) -> None:
        deadlines.append(seconds)
        within(watchdog, seconds)

    monkeypatch.setattr(ReceiveWatchdog, "within", noted)
    for path, more in (("/api/v1/enrol", {}), ("/api/v1/tokens", {"Authorization": f"Bearer {OPERATOR}"})):
        with connected(small.url) as raw:
            raw.sendall(head("POST", path, Content_Length=10_000, **more))
            await_close(raw, b" " * 10_000)
    assert deadlines == [2, 3], "body_grace_s for a stranger, buffered_body_timeout_s for others"


def test_the_shares_of_the_budget() -> None:
    budget = BodyBudget(256 * MIB)
    assert not all(budget.take("", 16 * 1024) for _ in range(STRANGERS_BYTES_MAX // (16 * 1024) + 1))
    assert not all(budget.take("node a", MIB) for _ in range(NODE_BYTES_MAX // MIB + 1))
    assert budget.take("node b", MIB)
    taken = sum(budget.take("person", MIB) for _ in range(300))
    assert taken == 256 - 16 - 8 - 1
    for _ in range(taken):
        budget.give_back("person", MIB)
    assert budget.take("person", MIB)


def test_one_body_that_is_allowed_at_all_always_fits() -> None:
    """A setting may be above another: nothing must become impossible for ever."""
    budget = BodyBudget(MIB)
    assert budget.take("person", 4 * MIB)
    assert not budget.take("person", 1)
    budget.give_back("person", 4 * MIB)
    assert budget.take("", 4 * MIB)


def test_bodies_of_strangers_do_not_stay_in_memory(server: Callable[..., Server]) -> None:
    """100 MB are offered; what one read takes of each is let go."""
    running = server().start()
    running.get("/jobs")
    before = running.rss_bytes()
    sent = head("POST", "/api/v1/jobs", Content_Length=1_000_001) + b" " * 1_000_000
    with contextlib.ExitStack() as held:
        for _ in range(100):
            raw = held.enter_context(connected(running.url))
            with contextlib.suppress(ConnectionError):
                raw.sendall(sent)
        running.get("/jobs")
        assert running.rss_bytes() - before < 48 * MIB


def test_the_defaults_are_what_the_documentation_promises() -> None:
    settings = Settings()
    assert (settings.buffered_bodies_bytes_max, settings.buffered_body_timeout_s) == (256 * MIB, 600)


# Heads

LONG = {
    "a target": b"GET /healthz?" + b"a" * 10_000_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "just too many headers": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"x: y\r\n" * HEADERS_MAX + b"\r\n",
    "just too long": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: " + b"a" * HEAD_BYTES_MAX + b"\r\n\r\n",
    "that never ends": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: " + b"a" * 300_000,
}


@pytest.mark.parametrize("name", LONG)
def test_a_head_has_a_limit(small: Inside, name: str) -> None:
    with connected(small.url) as raw:
        raw.settimeout(PATIENCE_S)
        raw.sendall(LONG[name])
        found = answer(raw)
    assert b"HTTP/1.1 431 Request Header Fields Too Large\r\n" in found
    assert json.loads(found.rpartition(b"\r\n\r\n")[2])["code"] == "head.too-large"


def test_the_second_head_has_the_same_limit(small: Inside) -> None:
    with connected(small.url) as raw:
        raw.settimeout(PATIENCE_S)
        raw.sendall(head("GET", "/healthz"))
        assert raw.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        raw.sendall(LONG["that never ends"])
        assert answer(raw).startswith(b"HTTP/1.1 431 ")


def test_a_long_head_within_the_limit_is_taken(small: Inside) -> None:
    fill = b"".join(b"X-%03d: %s\r\n" % (i, b"a" * 500) for i in range(HEADERS_MAX - 2))
    sent = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + fill + b"\r\n"
    assert len(sent) > HEAD_BYTES_MAX * 0.9
    for piece in (len(sent), 999):
        with connected(small.url) as raw:
            for place in range(0, len(sent), piece):
                raw.sendall(sent[place : place + piece])
            assert answer(raw).startswith(b"HTTP/1.1 200 ")


def test_incomplete_heads_have_one_budget() -> None:
    """While it is spent, usual heads are taken and long ones are not; a lost connection makes room."""
    heads = PendingHeaders()
    held = [HeadLimit(heads) for _ in range(HEADS_BYTES_MAX // HEAD_BYTES_MAX)]
    for one in held:
        one.came(HEAD_BYTES_MAX)
        one.check([])
    short, long = HeadLimit(heads), HeadLimit(heads)
    short.came(USUAL_BYTES_MAX)
    short.check([])
    long.came(USUAL_BYTES_MAX + 1)
    with pytest.raises(HeadTooLarge):
        long.check([])
    for one in (*held, short):
        one.forget()
    long.check([])
    long.complete(b"/", [])
    assert heads.nbytes == 0
