"""The socket of a peer: bytes are counted as they cross it, and what comes slowly is not waited for for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from peer.ledger import STRANGER, Ledger

HEAD_RECEIPT_S = 10
"""Seconds for a request's head to arrive."""
BODY_GRACE_S, BODY_BYTES_PER_S_MIN = 20, 500
"""Seconds after which a body must have come at so many bytes per second, on average."""
TICK_S = 1.0
EXCHANGE = "shoal.exchange"


class Exchange:
    """The bytes of one request and its answer, who said it, and whose ledger they stand in."""

    def __init__(self) -> None:
        self.peer, self.received, self.sent = STRANGER, 0, 0
        self.ledger: Ledger | None = None


class Metered(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, which counts what crosses the socket, and does not wait for ever for what comes slowly."""

    ledger: Ledger
    """Of those who have not said who they are."""

    @classmethod
    def bound(cls, ledger: Ledger) -> type[Metered]:
        """The class that uvicorn is given."""
        return type("BoundMetered", (cls,), {"ledger": ledger})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.exchange = Exchange()
        self._ticks, self._came, self._has_head = 0, 0, False
        self._watch: asyncio.TimerHandle | None = None
        super().connection_made(_Counting(transport, self))  # type: ignore[arg-type]
        self._start_watching()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        self._settle()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.exchange.received += len(data)
        self._came += len(data)
        cycle: Any = self.cycle  # None before the first request, whatever uvicorn's annotation says
        if self._watch is None and (cycle is None or not cycle.more_body):
            self._start_watching()
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_head = False
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]  # a field of our own
        scope[EXCHANGE] = self.exchange

    def on_headers_complete(self) -> None:
        self._has_head, self._ticks, self._came = True, 0, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_watching()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._settle()
        super().on_response_complete()

    def _settle(self) -> None:
        done, self.exchange = self.exchange, Exchange()
        if done.sent or done.received:
            (done.ledger or self.ledger).book(done.peer, sent=done.sent, received=done.received)

    def _start_watching(self) -> None:
        self._ticks, self._came, self._has_head = 0, 0, False
        self._watch = self.loop.call_later(TICK_S, self._tick)

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _tick(self) -> None:
        """Seconds are ticks of our own loop: a process that is held up must not blame others."""
        self._watch = self.loop.call_later(TICK_S, self._tick)
        if self.flow.read_paused:
            return
        self._ticks += 1
        late = self._ticks - BODY_GRACE_S
        slow = late >= 0 and self._came < BODY_BYTES_PER_S_MIN * self._ticks
        if slow if self._has_head else self._ticks >= HEAD_RECEIPT_S:
            self._stop_watching()
            self.transport.close()


class _Counting:
    """A transport that counts what is written."""

    def __init__(self, transport: asyncio.Transport, protocol: Metered) -> None:
        self._transport, self._protocol = transport, protocol

    def write(self, data: Any) -> None:
        self._protocol.exchange.sent += len(data)
        self._transport.write(data)

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
