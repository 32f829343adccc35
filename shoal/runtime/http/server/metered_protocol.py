"""uvicorn's HTTP/1.1 connection with byte counts, receipt deadlines and limits of heads and connections.

**Bytes.** Everything that a connection reads or writes belongs to its current exchange, head and body, from the first
byte received to the last byte sent. Below TLS the count would be higher; this is the plain text.

**Receipt deadlines.** uvicorn restarts its only timer at each byte, so a client that sends one byte a second holds a
connection for ever. Here `ReceiveTimeouts` bound the head and the mean speed of a body.

**Signs of life.** `HttpExchange.heard` is called with each byte that comes, and while the other side takes an answer.

**Heads.** A head of more than 64 KiB, or of more than 128 headers, is answered with 431 before it is parsed further.

**Connections.** A request that comes while more connections than the limit are open is marked (`crowded`), and the
application refuses it. Far beyond the limit, a connection is refused before its first request: each costs a file, and
a system without files closes connections without an answer. Bytes that are not HTTP are answered with a problem here.

**The end.** Over TLS a connection is closed when the other side has said goodbye too. A server that ends waits for
that no longer than `GOODBYE_S` seconds.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any
from weakref import WeakSet

from httptools import HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shoal.runtime.http.server.body_receiver import BodyReceiver
from shoal.runtime.http.server.connection_limit import SILENT_MAX, ConnectionLimit
from shoal.runtime.http.server.exchange import BREAK_KEY, LEND_KEY, SCOPE_KEY, WITHIN_KEY, HttpExchange
from shoal.runtime.http.server.header_limits import HINT, LINGER_S, HeadLimit, HeadTooLarge, PendingHeaders
from shoal.runtime.http.server.problem_documents import closing_bytes, problem
from shoal.runtime.http.server.receive_timeouts import ReceiveTimeouts, ReceiveWatchdog
from shoal.runtime.http.server.slow_responses import WATCHED_BYTES, Delivery

GOODBYE_S = 0.5
SILENCE_S = 15.0


class ServerConnections:
    """Shared state of a server's connections. A subclass says for which job a request is counted.

    `silence_s`: seconds without a sign of life after which the other side counts as gone.
    """

    def __init__(self, timeouts: ReceiveTimeouts, connections_max: int, silence_s: float = SILENCE_S) -> None:
        self.timeouts, self.limit, self.silence_s = timeouts, ConnectionLimit(connections_max), silence_s
        self.heads, self.receivers = PendingHeaders(), WeakSet[BodyReceiver]()

    def protocol(self) -> type[MeteredProtocol]:
        """Return the class of connections that uvicorn is given."""
        return type("BoundProtocol", (MeteredProtocol,), {"shared": self})

    def exchange(self) -> HttpExchange:
        """Return an exchange for the next request of a connection."""
        return HttpExchange()

    def opened(self, transport: asyncio.Transport) -> dict[str, Any]:
        """Count a connection; return what to add to the ASGI scopes of its requests."""
        return {}

    def closed(self) -> None:
        """Count a connection that has ended."""

    def refused(self) -> None:
        """Count a connection that is refused because too many are open."""
        self.limit.log_refusal()

    def finished(self, done: HttpExchange, scope: dict[str, Any]) -> None:
        """Count an exchange that has ended. `scope`: of its request, as far as it was read."""


class _CountingTransport:
    """A transport that counts what is written, and sends the head of an answer together with its first piece of body:
    one system call and one packet. Everything else goes to the real transport."""

    def __init__(self, transport: asyncio.Transport, protocol: MeteredProtocol) -> None:
        self._transport, self._protocol = transport, protocol
        self._head = b""

    def write(self, data: Any) -> None:
        if self._protocol.wrote(data):
            self._head += data
            self._protocol.loop.call_soon(self._flush)  # in case that nothing follows, or not yet
        elif self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        else:
            self._transport.write(data)

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class PipelinedError(Exception):
    """A request that begins before the previous one on its connection is answered; the answer is 400."""


class MeteredProtocol(HttpToolsProtocol):
    """One connection."""

    shared: ServerConnections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.exchange = self.shared.exchange()
        self._due = 0  # of the current body, as announced
        self._ending = self._refused = False
        self._more = self.shared.opened(transport)
        self._head = HeadLimit(self.shared.heads)
        self._receipt = ReceiveWatchdog(self.shared.timeouts, self)
        self._delivery = Delivery(self.loop, transport, self.shared.silence_s)
        super().connection_made(_CountingTransport(transport, self))  # type: ignore[arg-type]
        limit = self.shared.limit
        if len(self.connections) > limit.most + SILENT_MAX:
            self.shared.refused()
            self._refuse(limit.answer, linger_s=0.0)
            return
        self._receipt.start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._receipt.stop()
        self._delivery.stop()
        self._head.forget()
        self.exchange.closed = True
        if self.exchange.gone is not None:
            self.exchange.gone()
        self._settle()
        self.shared.closed()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.exchange.came(len(data))
        if self._refused:
            return
        if not self._receipt.watching and self._between_requests():
            self._receipt.start()
        self._receipt.came(len(data))
        self._head.came(len(data))
        super().data_received(data)
        try:
            self._head.check(self.headers)
        except HeadTooLarge:
            self._refuse_head()
        if self._is_refused():
            self.parser = None  # type: ignore[assignment]  # as uvicorn does when a connection is lost
            self.headers, self.url, self.scope = [], b"", {}  # type: ignore[typeddict-item]

    def on_message_begin(self) -> None:
        waiting: Any = self.cycle
        if waiting is not None and not waiting.response_complete:
            # uvicorn would stop reading, so a hang-up would go unnoticed and the bytes of the two would mix.
            raise PipelinedError
        super().on_message_begin()
        self.exchange.begun = time.perf_counter()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope[SCOPE_KEY], scope[LEND_KEY], scope[BREAK_KEY] = self.exchange, self._lend, self.transport.close
        scope[WITHIN_KEY] = self._receipt.within
        scope.update(self._more)
        if len(self.connections) > self.shared.limit.most:
            self.exchange.crowded = self.shared.limit.text
            self.shared.refused()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed with a problem; within an answer, close the connection."""
        if self._refused:  # `on_headers_complete` has said why
            return
        waiting: Any = self.cycle
        if waiting is not None and waiting.response_started and not waiting.response_complete:
            self.transport.close()
            return
        self.transport.write(closing_bytes(problem(400, msg.rstrip("."), "request.malformed", "speak HTTP/1.1", "/")))
        self.transport.close()

    def _is_refused(self) -> bool:
        return self._refused  # also while the parser calls

    def _refuse_head(self) -> None:
        """Answer 431, read nothing more, and keep nothing of the head."""
        if not self._refused:
            answer = problem(431, "the head of the request is too large", "head.too-large", HINT, "/")
            self._refuse(closing_bytes(answer), LINGER_S)

    def _refuse(self, answer: bytes, linger_s: float) -> None:
        self._refused = True
        self._receipt.stop()
        self._head.forget()
        self.transport.write(answer)
        self.loop.call_later(linger_s, self.transport.close)

    def on_headers_complete(self) -> None:
        try:
            self._head.complete(self.url, self.headers)
        except HeadTooLarge:
            self._refuse_head()
            raise
        self._receipt.head_is_complete()
        self._due = int(dict(self.headers).get(b"content-length", b"0"))  # the parser has seen to it that it is one
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.exchange.up_body += len(body)
        self._due -= len(body)
        super().on_body(body)

    def _lend(self) -> BodyReceiver:
        """Lend the connection for the rest of the current body."""
        receiver = BodyReceiver(self, self._due, self.shared.receivers)
        self.shared.receivers.add(receiver)
        self.transport.set_protocol(receiver)
        return receiver

    def came(self, count: int) -> None:
        """Count bytes of a body that the parser did not see."""
        self.exchange.came(count)
        self.exchange.up_body += count
        self._receipt.came(count)

    def take_back(self) -> None:
        """Resume HTTP after a body, with a new parser: the old one waits for the bytes that went past it."""
        self.parser = HttpRequestParser(self)
        self.transport.set_protocol(self)
        self.on_message_complete()

    def on_message_complete(self) -> None:
        self._receipt.stop()
        self._head.next()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._settle()
        super().on_response_complete()
        self._await_goodbye()

    def shutdown(self) -> None:
        self._ending = True
        super().shutdown()
        self._await_goodbye()

    def _await_goodbye(self) -> None:
        if self._ending and self.transport.is_closing():
            self.loop.call_later(GOODBYE_S, self._hang_up)

    def _hang_up(self) -> None:
        if self in self.connections and not self.transport.get_write_buffer_size():
            self.transport.abort()

    def wrote(self, data: bytes) -> bool:
        """Count bytes that the transport takes; return whether they are the head of the answer."""
        is_head = self.exchange.wrote(data)
        if self.exchange.heard is not None and self.exchange.down > WATCHED_BYTES:
            self._delivery.monitor(self.exchange.heard)
        return is_head

    def _settle(self) -> None:
        """Count the exchange, and begin the next one."""
        done, self.exchange = self.exchange, self.shared.exchange()
        if done.up or done.down:
            scope: Any = self.scope  # None before the first request, whatever uvicorn's annotation says
            self.shared.finished(done, scope or {})

    def _between_requests(self) -> bool:
        cycle: Any = self.cycle  # None before the first request, whatever uvicorn's annotation says
        return cycle is None or not cycle.more_body
