"""The socket of a peer: bytes are counted as they cross it, and what comes slowly is not waited for for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from peer.ledger import STRANGER, Ledger
from shoal.runtime.receipt import Patience, Receipt

HEAD_RECEIPT_S = 10
"""Seconds for a request's head to arrive."""
BODY_GRACE_S, BODY_BYTES_PER_S_MIN = 20, 500
"""Seconds after which a body must have come at so many bytes per second, on average."""
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
        patience = Patience(HEAD_RECEIPT_S, BODY_GRACE_S, BODY_BYTES_PER_S_MIN)
        self._receipt = Receipt(patience, self)
        super().connection_made(_Counting(transport, self))  # type: ignore[arg-type]
        self._receipt.start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._receipt.stop()
        self._settle()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.exchange.received += len(data)
        self._receipt.came(len(data))
        cycle: Any = self.cycle  # None before the first request, whatever uvicorn's annotation says
        if not self._receipt.watching and (cycle is None or not cycle.more_body):
            self._receipt.start()
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]  # a field of our own
        scope[EXCHANGE] = self.exchange

    def on_headers_complete(self) -> None:
        self._receipt.head_is_complete()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._receipt.stop()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._settle()
        super().on_response_complete()

    def _settle(self) -> None:
        done, self.exchange = self.exchange, Exchange()
        if done.sent or done.received:
            (done.ledger or self.ledger).book(done.peer, sent=done.sent, received=done.received)


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
