"""Bodies that are held in memory: only of known senders, within one budget and by a deadline; and heads."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request

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
from shoal_coordinator.api.app import create_app
from shoal_coordinator.http import problems
from shoal_coordinator.http.buffered_bodies import BodyBudget, BufferedBodies
from shoal_coordinator.http.request_limits import STRANGER_BYTES_MAX, WRITING
from shoal_coordinator.settings import Settings
from tests.support.coordinator import OPERATOR, Inside, Server, inside
from tests.support.raw_http import answer, await_close, connected, head
from tests.support.waiting import PATIENCE_S, until, until_async

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


def test_a_body_that_no_route_reads_is_dropped_before_the_answer() -> None:
    """Else its bytes would lie uncounted for as long as a poll or a stream is open."""
    left = [{"type": "http.request", "body": b"x", "more_body": more} for more in (True, False)]
    seen: list[Any] = []

    async def receive() -> Any:
        return left.pop(0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend([len(left), await receive()])

    scope = {"type": "http", "method": "GET", "path": "/api/v1/work", "headers": [(b"content-length", b"2")]}
    asyncio.run(BufferedBodies(app, FastAPI(), Settings(), lambda _: None)(scope, receive, NotImplemented))
    assert seen == [0, {"type": "http.request", "body": b"", "more_body": False}]


def test_every_method_that_may_have_a_body_is_authenticated_first() -> None:
    methods = {method for route in create_app(None).routes for method in getattr(route, "methods", None) or ()}
    assert methods - {"GET", "HEAD"} == set(WRITING)


class Bodies:
    """Buffered bodies in memory, of at most 1 MiB together. `held`: those of which a part has come."""

    def __init__(self, sender: str | None = None) -> None:
        api = FastAPI()
        problems.install(api)

        @api.post("/api/v1/session")
        async def take(request: Request) -> int:
            return len(await request.body())

        api.post("/api/v1/jobs")(take)
        self.app = BufferedBodies(api, api, Settings(buffered_bodies_bytes_max=MIB), lambda _: sender)
        self.path, self.held = "/api/v1/jobs" if sender else "/api/v1/session", 0
        self._sent: list[asyncio.Task[int]] = []

    async def send(self, body: bytes, address: str = "192.0.2.1", announced: int = 0) -> int:
        """Return the status of the answer to a body; it never comes while more is announced."""
        statuses: list[int] = []
        pieces = {False: body[1:], True: body[:1]}
        messages: list[Any] = [
            {"type": "http.request", "body": piece, "more_body": more or announced > len(body)}
            for more, piece in pieces.items()
        ]

        async def receive() -> Any:
            if not messages:
                self.held += 1
                await asyncio.Event().wait()
            return messages.pop()

        async def send(message: Any) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        length = str(announced or len(body)).encode()
        scope = {"type": "http", "method": "POST", "path": self.path, "headers": [(b"content-length", length)]}
        await self.app({**scope, "client": (address, 1), "query_string": b""}, receive, send)
        return statuses[0]

    async def hold(self, count: int, nbytes: int, address: str = "192.0.2.1") -> int:
        """Send bodies without their last bytes; return how many were refused, and keep the others open."""
        self.held = 0
        sent = [asyncio.create_task(self.send(bytes(nbytes), address, 16 * 1024)) for _ in range(count)]
        await until_async("all to be looked at", lambda: self.held + sum(one.done() for one in sent) == count)
        assert {one.result() for one in sent if one.done()} <= {503}
        self._sent += sent
        return count - self.held

    async def drop(self) -> None:
        """Give up all that are held."""
        for one in self._sent:
            one.cancel()
        await asyncio.gather(*self._sent, return_exceptions=True)


def test_announced_bytes_take_nothing_from_others() -> None:
    """A thousand bodies of 16 KiB are announced, of each a byte comes: 16 times the budget of all."""

    async def work() -> tuple[int, int]:
        bodies = Bodies()
        found = await bodies.hold(1000, 1), await bodies.send(b"{}")
        await bodies.drop()
        return found

    assert asyncio.run(work()) == (0, 200)


def test_strangers_of_one_address_leave_room_for_others() -> None:
    """An address may use an eighth of 1 MiB, from any port or end of its IPv6 address; all strangers half."""

    async def work() -> list[int]:
        bodies = Bodies()
        refused = [await bodies.hold(20, 16_000, address) for address in ("192.0.2.1", "192.0.2.2", "2001:db8::1")]
        refused.append(await bodies.hold(1, 16_000, "2001:db8::2"))
        refused += [await bodies.hold(10, 16_000, f"198.51.100.{end}") for end in range(2)]
        refused += [await bodies.send(b"{}" * 8000, "203.0.113.1")]
        await bodies.drop()
        return [*refused, await bodies.send(b"{}" * 8000, "203.0.113.1")]

    assert asyncio.run(work()) == [12, 12, 12, 1, 2, 10, 503, 200]


def test_a_body_that_outgrows_the_budget_is_answered(tmp_path: Path) -> None:
    """Three bodies of 300 kB lack a byte each; a fourth does not fit into 1 MiB, and its connection goes on."""
    more = {"Content_Length": 300_001, "Content_Type": "application/json", "Authorization": f"Bearer {OPERATOR}"}
    sent = head("POST", "/api/v1/jobs:validate", **more) + b" " * 300_000
    with inside(tmp_path / "data", buffered_bodies_bytes_max=MIB) as running, contextlib.ExitStack() as held:
        for _ in range(3):
            held.enter_context(connected(running.url)).sendall(sent)
        raw = held.enter_context(connected(running.url))

        def refusal() -> bytes:
            raw.sendall(sent + b" ")
            return found if (found := raw.recv(1 << 16)).startswith(b"HTTP/1.1 503 ") else b""

        assert b'"code":"bodies.full"' in until("the budget to be full", refusal)
        raw.sendall(head("GET", "/healthz"))
        assert raw.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


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
    """At its usual size: 2 MiB for an address, 16 for all strangers, 8 for a node."""
    budget = BodyBudget(256 * MIB)
    taken = [sum(budget.take(f"address {one}", MIB) for _ in range(3)) for one in range(9)]
    assert taken == [2, 2, 2, 2, 2, 2, 2, 2, 0]
    assert sum(budget.take("node a", MIB) for _ in range(9)) == 8
    assert budget.take("node b", MIB)
    taken_by_people = sum(budget.take("person", MIB) for _ in range(300))
    assert taken_by_people == 256 - 16 - 8 - 1
    for _ in range(taken_by_people):
        budget.give_back("person", MIB)
    assert budget.take("person", MIB)


def test_one_body_that_is_allowed_at_all_always_fits() -> None:
    """A setting may be above another: nothing must become impossible for ever."""
    budget = BodyBudget(MIB)
    assert budget.take("person", 4 * MIB)
    assert not budget.take("person", 1)
    budget.give_back("person", 4 * MIB)
    assert budget.take("address a", 4 * MIB)
    assert asyncio.run(Bodies("person").send(bytes(4 * MIB))) == 200, "also in pieces"


def test_bodies_of_strangers_do_not_stay_in_memory(server: Callable[..., Server]) -> None:
    """100 MB are offered; the bytes of one read of each are released."""
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
