"""The socket of a peer: bytes are counted as they cross it, and what comes slowly is not waited for for ever."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shoal.runtime.head_limit import HINT, LINGER_S, HeadLimit, HeadTooLarge, IncompleteHeads
from shoal.runtime.receipt import Patience, Receipt
from shoal_peer.ledger import STRANGER, Ledger

HEAD_RECEIPT_S = 10
"""Seconds for a request's head to arrive."""
BODY_GRACE_S, BODY_BYTES_PER_S_MIN = 20, 500
"""Seconds after which a body must have come at so many bytes per second, on average."""
EXCHANGE = "shoal.exchange"

_PROBLEM = {
    "type": "about:blank",
    "title": "Request Header Fields Too Large",
    "status": 431,
    "detail": "the head of the request is too large",
    "code": "head.too-large",
    "hint": HINT,
}
_TEXT = json.dumps(_PROBLEM).encode()
_TOO_LARGE = b"\r\n".join(
    [
        b"HTTP/1.1 431 Request Header Fields Too Large",
        b"content-type: application/problem+json",
        b"content-length: %d" % len(_TEXT),
        b"connection: close",
        b"",
        _TEXT,
    ]
)


class Exchange:
    """The bytes of one request and its answer, who said it, and whose ledger they stand in."""

    def __init__(self) -> None:
        self.peer, self.received, self.sent = STRANGER, 0, 0
        self.ledger: Ledger | None = None


class Metered(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, which counts what crosses the socket, and does not wait for ever for what comes slowly."""

    ledger: Ledger
    """Of those who have not said who they are."""
    heads: IncompleteHeads

    @classmethod
    def bound(cls, ledger: Ledger) -> type[Metered]:
        """The class that uvicorn is given."""
        return type("BoundMetered", (cls,), {"ledger": ledger, "heads": IncompleteHeads()})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.exchange = Exchange()
        patience = Patience(HEAD_RECEIPT_S, BODY_GRACE_S, BODY_BYTES_PER_S_MIN)
        self._receipt, self._head, self._refused = Receipt(patience, self), HeadLimit(self.heads), False
        super().connection_made(_Counting(transport, self))  # type: ignore[arg-type]
        self._receipt.start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._receipt.stop()
        self._head.forget()
        self._settle()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.exchange.received += len(data)
        if self._refused:
            return
        self._receipt.came(len(data))
        self._head.came(len(data))
        cycle: Any = self.cycle  # None before the first request, whatever uvicorn's annotation says
        if not self._receipt.watching and (cycle is None or not cycle.more_body):
            self._receipt.start()
        super().data_received(data)
        try:
            self._head.check(self.headers)
        except HeadTooLarge:
            self._refuse_head()
        if self._is_refused():
            self.parser = None  # type: ignore[assignment]  # as uvicorn does when a connection is lost
            self.headers, self.url, self.scope = [], b"", {}  # type: ignore[typeddict-item]

    def send_400_response(self, msg: str) -> None:
        if not self._refused:
            super().send_400_response(msg)

    def _is_refused(self) -> bool:
        return self._refused  # also while the parser calls

    def _refuse_head(self) -> None:
        """Answer 431, read nothing more, and keep nothing of the head."""
        if not self._refused:
            self._refused = True
            self._receipt.stop()
            self._head.forget()
            self.transport.write(_TOO_LARGE)
            self.loop.call_later(LINGER_S, self.transport.close)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]  # a field of our own
        scope[EXCHANGE] = self.exchange

    def on_headers_complete(self) -> None:
        try:
            self._head.complete(self.url, self.headers)
        except HeadTooLarge:
            self._refuse_head()
            raise
        self._receipt.head_is_complete()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._receipt.stop()
        self._head.next()
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
