"""The writes of a connection, and their times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from shoal.runtime.http.server.exchange import SCOPE_KEY
from shoal.runtime.http.server.metered_protocol import MeteredProtocol
from shoal_coordinator.http.connections import CoordinatorConnections
from shoal_coordinator.settings import Settings
from shoal_coordinator.telemetry.metrics import Metrics
from shoal_coordinator.telemetry.traffic import Label, TrafficCounter
from tests.support.waiting import until_async

BODY = b"x" * 1000
App = Callable[[Any, Any, Any], Awaitable[None]]


class Wire(asyncio.Transport):
    """The other end: what one call wrote is one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.pieces.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def resume_reading(self) -> None:
        pass

    pause_reading = resume_reading


def connected(app: App, ledger: TrafficCounter) -> tuple[MeteredProtocol, Wire]:
    """A connection that an application serves."""
    protocols = CoordinatorConnections(ledger, Settings(), Metrics()).protocol()
    config = uvicorn.Config(app, http=protocols, lifespan="off", log_config=None, proxy_headers=False)
    config.load()
    protocol, wire = protocols(config, ServerState(), {}), Wire()
    protocol.connection_made(wire)
    return protocol, wire


def answering(*bodies: bytes, between: asyncio.Event | None = None) -> App:
    """An application whose answers have these pieces; it waits before the first of them if it is told to."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        length = str(sum(map(len, bodies))).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        if between is not None:
            await between.wait()
        for place, body in enumerate(bodies, start=1):
            await send({"type": "http.response.body", "body": body, "more_body": place < len(bodies)})

    return app


def asked(method: str, **headers: str) -> bytes:
    lines = [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"{method} / HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode()


def test_an_answers_head_goes_with_its_body() -> None:
    async def main() -> None:
        ledger = TrafficCounter()
        protocol, wire = connected(answering(BODY, BODY), ledger)
        for _ in range(2):
            wire.pieces.clear()
            protocol.data_received(asked("GET"))
            await until_async("both pieces", lambda: len(wire.pieces) == 2)
            head, _, rest = wire.pieces[0].partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert [rest, wire.pieces[1]] == [BODY, BODY]
        assert ledger.totals["", "down"] == 2 * sum(map(len, wire.pieces))
        protocol.connection_lost(None)

    asyncio.run(main())


def test_a_head_does_not_wait_for_a_body_that_takes_its_time() -> None:
    async def main() -> None:
        between = asyncio.Event()
        protocol, wire = connected(answering(BODY, between=between), TrafficCounter())
        protocol.data_received(asked("GET"))
        await until_async("a piece", lambda: bool(wire.pieces))
        assert wire.pieces[0].endswith(b"\r\n\r\n")
        between.set()
        await until_async("the body", lambda: wire.pieces[1:] == [BODY])
        protocol.connection_lost(None)

    asyncio.run(main())


@pytest.mark.parametrize("after", ["keep-alive", "close"])
def test_a_head_without_a_body_is_sent(after: str) -> None:
    async def main() -> None:
        ledger = TrafficCounter()
        protocol, wire = connected(answering(BODY), ledger)
        protocol.data_received(asked("HEAD", connection=after))
        await until_async("the answer", lambda: len(wire.pieces) == 1 and wire.closed == (after == "close"))
        assert wire.pieces[0].endswith(b"\r\n\r\n")
        assert ledger.totals["", "down"] == len(wire.pieces[0])
        protocol.connection_lost(None)

    asyncio.run(main())


def test_a_request_behind_one_that_waits_is_refused_and_a_hang_up_is_heard() -> None:
    """A poll waits; another on its heels would keep us from reading, so that a closing would not be noticed."""

    async def main() -> None:
        ledger, gone = TrafficCounter(), asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope[SCOPE_KEY].label = Label("main", 0, "n0", "poll")
            scope[SCOPE_KEY].gone = gone.set
            await gone.wait()

        protocol, wire = connected(app, ledger)
        protocol.data_received(asked("GET"))
        await until_async("the end of the exchange", lambda: protocol.exchange.gone is not None)
        first, second = len(asked("GET")), asked("GET", behind="it")
        protocol.data_received(second)
        assert wire.pieces[0].startswith(b"HTTP/1.1 400")
        assert wire.closed
        protocol.connection_lost(None)  # as the event loop does with a transport that was closed
        assert gone.is_set()
        booked = [row for row in ledger.totals.items() if row[0][1] == "up"]
        assert sum(count for _, count in booked) == first + len(second)
        await asyncio.sleep(0)

    asyncio.run(main())


def test_requests_one_after_the_other_are_none_of_that() -> None:
    async def main() -> None:
        protocol, wire = connected(answering(BODY), TrafficCounter())
        for number in range(3):
            protocol.data_received(asked("GET"))
            await until_async("the next answer", lambda: b"".join(wire.pieces).count(BODY) == number + 1)  # noqa: B023
        assert not wire.closed
        protocol.connection_lost(None)

    asyncio.run(main())
