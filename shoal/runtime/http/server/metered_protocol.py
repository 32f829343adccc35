"""uvicorn's HTTP/1.1 with what only the socket can know: how many bytes crossed, how slowly they come, how many others
there are.

**Bytes.** Everything that a connection reads or writes belongs to the request that is open on it, head and body, from
the first byte received to the last byte sent. Routes say what a request was for (`Exchange.label`). Below TLS the
count would be higher; this is the plain text.

**Receipt deadlines.** uvicorn restarts its only timer at each byte, so a client that sends one byte a second holds a
connection for ever. Here a head must be complete within `head_receipt_s`, and after `body_grace_s` a body must have
come at `body_bytes_per_s_min` on average.

**Signs of life.** A node is heard with each byte that comes, and while it takes an answer (`delivery`): its
polls wait behind a model that takes long. Routes say whose sign that is (`Exchange.heard`).

**Heads.** A head of more than 64 KiB, or of more than 128 headers, is answered with 431 before anything looks at it.

**Crowds.** A request that came while more connections were open than may be (`ConnectionLimit`) says so, and the guard
refuses it. Where far more are open, a connection is answered with that before it asks for anything: each costs a file,
and a system without files left closes connections without a word. What is no HTTP at all reaches nobody: it is answered
here, with a problem as everywhere.

**The end.** Over TLS a connection is closed when the other side has said goodbye too, and whoever keeps one without
reading from it never does. A server that ends waits for that no longer than `GOODBYE_S`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from httptools import HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shoal.runtime.head_limit import HINT, LINGER_S, HeadLimit, HeadTooLarge, IncompleteHeads
from shoal.runtime.receipt import Patience, Receipt
from shoal_coordinator import problems
from shoal_coordinator.certificates import CERTIFIED_KEY, names_of
from shoal_coordinator.connection_limit import HINT as HINT_CROWDED
from shoal_coordinator.connection_limit import SILENT_MAX, ConnectionLimit
from shoal_coordinator.delivery import WATCHED_BYTES, Delivery
from shoal_coordinator.intake import LEND_KEY, Intake
from shoal_coordinator.metrics import FORWARDED, Metrics, route_of

if TYPE_CHECKING:
    from shoal_coordinator.ledger import Ledger
    from shoal_coordinator.settings import Settings

CONTINUE_BYTES = len(b"HTTP/1.1 100 Continue\r\n\r\n")

SCOPE_KEY = "shoal.exchange"
BREAK_KEY = "shoal.break"
"""Where a request's scope has the function that hangs up, with an answer half-given."""
WITHIN_KEY = "shoal.within"
"""Where a request's scope has the function that sets the seconds within which its whole body must come."""

GOODBYE_S = 0.5


class Label(NamedTuple):
    """What a request was for. Version -1: outside any round."""

    job: str = ""
    version: int = -1
    node: str = ""
    kind: str = "other"


@dataclass
class Exchange:
    """The bytes of one request and its response."""

    label: Label = field(default_factory=Label)
    up: int = 0
    up_body: int = 0
    down: int = 0
    down_head: int = 0
    closed: bool = False
    crowded: str = ""
    """Why it is refused, if more connections were open than may be."""
    elsewhere: bool = False
    """Another coordinator answered it, and books it."""
    welcomes: bool = False
    """Another coordinator waits for "100 Continue"; who asked has never heard of that."""
    gone: Callable[[], None] | None = None
    """Called when the other side hangs up before it was answered."""
    begun: float = 0.0
    """When its first byte came, in seconds of `time.perf_counter`."""
    status: int = 0
    """Of the answer, as it was written; 0: there is none."""
    heard: Callable[[], None] | None = None
    """Called when more of the request has come, and while the answer is taken."""


class _CountingTransport:
    """A transport that tells the protocol what is written, and sends the head of an answer together with what follows
    it at once: one call of the kernel, and one packet to wake up for. Everything else goes to the real transport."""

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
    """A request began on a connection before the one before it was answered: the parser gives up, which is a 400."""


class MeteredProtocol(HttpToolsProtocol):
    """One connection. Subclasses carry what all connections share (`bind`)."""

    ledger: Ledger
    metrics: Metrics
    settings: Settings
    intakes: WeakSet[Intake]
    heads: IncompleteHeads
    limit: ConnectionLimit

    @classmethod
    def bind(cls, ledger: Ledger, settings: Settings, metrics: Metrics) -> type[MeteredProtocol]:
        """The class that uvicorn is given. Raises this process's limit of open files."""
        limit = ConnectionLimit(settings.connections_max, metrics)
        shared = {"ledger": ledger, "settings": settings, "metrics": metrics, "limit": limit}
        return type("BoundProtocol", (cls,), {**shared, "intakes": WeakSet(), "heads": IncompleteHeads()})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.exchange = Exchange()
        self._due = 0  # of the body in hand, as announced
        self._ending = self._refused = False
        self._certified = names_of(transport) if self.settings.tls_client_ca is not None else None
        self._head = HeadLimit(self.heads)
        own = self.settings
        patience = Patience(own.head_receipt_s, own.body_grace_s, own.body_bytes_per_s_min)
        self._receipt = Receipt(patience, self)
        self._delivery = Delivery(self.loop, transport, own.lease_s)
        super().connection_made(_CountingTransport(transport, self))  # type: ignore[arg-type]
        self.metrics.connections.inc()
        if len(self.connections) > self.limit.most + SILENT_MAX:
            self.limit.refuse()
            self._refuse(problems.bare(503, self.limit.text, "connections.full", HINT_CROWDED), linger_s=0.0)
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
        self.metrics.connections.dec()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._count(len(data))
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

    def _count(self, count: int) -> None:
        self.exchange.up += count
        if self.exchange.heard is not None:
            self.exchange.heard()

    def on_message_begin(self) -> None:
        waiting: Any = self.cycle
        if waiting is not None and not waiting.response_complete:
            # What is behind it would be read no more, a goodbye included, and its bytes could not be told from others.
            raise PipelinedError
        super().on_message_begin()
        self.exchange.begun = time.perf_counter()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope[SCOPE_KEY], scope[LEND_KEY], scope[BREAK_KEY] = self.exchange, self._lend, self.transport.close
        scope[WITHIN_KEY] = self._receipt.within
        if self._certified is not None:
            scope[CERTIFIED_KEY] = self._certified
        if len(self.connections) > self.limit.most:
            self.exchange.crowded = self.limit.text
            self.limit.refuse()

    def send_400_response(self, msg: str) -> None:
        """What could not be parsed; uvicorn would say so in plain text. Nothing is said in the midst of an answer."""
        if self._refused:  # `on_headers_complete` has said why
            return
        waiting: Any = self.cycle
        if waiting is not None and waiting.response_started and not waiting.response_complete:
            self.transport.close()
            return
        self.transport.write(problems.bare(400, msg.rstrip("."), "request.malformed", "speak HTTP/1.1"))
        self.transport.close()

    def _is_refused(self) -> bool:
        return self._refused  # also while the parser calls

    def _refuse_head(self) -> None:
        """Answer 431, read nothing more, and keep nothing of the head."""
        if not self._refused:
            self._refuse(problems.bare(431, "the head of the request is too large", "head.too-large", HINT), LINGER_S)

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

    def _lend(self) -> Intake:
        """Give the connection away for the rest of the body in hand."""
        intake = Intake(self, self._due, self.intakes)
        self.intakes.add(intake)
        self.transport.set_protocol(intake)
        return intake

    def came(self, count: int) -> None:
        """Bytes of a body that the parser did not see."""
        self._count(count)
        self.exchange.up_body += count
        self._receipt.came(count)

    def take_back(self) -> None:
        """The body is complete. The old parser waits for what went past it, so a new one takes its place."""
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
        """The transport has taken these bytes. The first write of a response is its head: whether this was one."""
        count = len(data)
        if self.exchange.welcomes:
            self.exchange.welcomes = False
            if count == CONTINUE_BYTES:
                return False
        is_head = self.exchange.down == 0
        if is_head:
            self.exchange.down_head = count
        if self.exchange.status < 200 and data[9:12].isdigit():  # else it is a part of a body
            self.exchange.status = int(data[9:12])
        self.exchange.down += count
        if self.exchange.heard is not None and self.exchange.down > WATCHED_BYTES:
            self._delivery.watch(self.exchange.heard)
        return is_head

    def _settle(self) -> None:
        """Book the exchange, and begin the next one."""
        done = self.exchange
        if (done.up or done.down) and not done.elsewhere:
            self.ledger.book(done)
        if done.status:
            self._measure(done)
        self.exchange = Exchange()

    def _measure(self, done: Exchange) -> None:
        scope: Any = self.scope  # None before the first request, whatever uvicorn's annotation says
        scope = scope or {}
        route = FORWARDED if done.elsewhere else route_of(scope)
        seconds = time.perf_counter() - done.begun if done.begun else 0.0
        self.metrics.answered(scope.get("method", ""), route, done.status, seconds)

    def _between_requests(self) -> bool:
        cycle: Any = self.cycle  # None before the first request, whatever uvicorn's annotation says
        return cycle is None or not cycle.more_body
