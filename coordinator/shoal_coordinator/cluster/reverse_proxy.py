"""Requests that one coordinator passes on to another, the owner, and its answers: byte for byte, piece by piece, both
ways at once.

Nothing is kept whole: a body is passed on as it comes, an answer too, be it a poll held open or a stream of events.
What is added is one header:

    shoal-forwarded: EPOCH HOST PORT SCHEME [WHO] MAC         who asked, as the one that passes on saw him

MAC is HMAC-SHA-256 over that, the method and the target, with the secret that the owner has left in the database for
its epoch. The secret itself never travels. Only the lead passes such a request on again, to a deputy, so that none can
go in circles. The owner counts the bytes of such a request without the header: as if it had come by itself.

WHO is there when a coordinator asks something itself (`inside`): then it vouches for who that is, and nothing of the
exchange is counted.

Everything that fails becomes a 503 with `Retry-After`, before anything was answered; or it breaks the connection.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import structlog
from httptools import HttpParserError, HttpResponseParser

from shoal.core.tenure import Elsewhere
from shoal_coordinator.certificates import CERTIFIED_KEY
from shoal_coordinator.protocol import BREAK_KEY, SCOPE_KEY

log = structlog.get_logger()

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HEADER = b"shoal-forwarded"
VOUCHED_KEY = "shoal.vouched"
"""Where a request's scope has what another coordinator says of who asks: `operator`, or `node:NAME`."""
PASSED_ON_KEY = "shoal.passed-on"
"""In the scope of a request that another coordinator has signed and passed on."""
CONNECT_S = 2.0
IDLE_S = 30.0
"""A connection that rests for longer is not used again: the owner ends it after twice as long."""
IDLE_MAX = 64
PIECE_BYTES = 1 << 16
ASK_BYTES = 1 << 16
"""A body that is larger is sent when the owner has said that it wants it."""

_CONTINUE, _OWN_CONTINUE = b"100-continue", b"100-Continue"
"""What a request says whose body waits for a welcome: when it came so, and when who passes it on has made it so."""

_HOP = {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", HEADER}
_OURS = {b"connection", b"keep-alive", b"transfer-encoding", b"date"}


class Unanswered(Exception):
    """The owner gave no answer, and nothing was answered yet."""


NONE = "-"
"""In what is signed of who asked: there is nothing of that kind."""


# Who asked


def stamp(scope: Scope, to: Elsewhere) -> bytes:
    """The header's value for a request that is passed on."""
    host, port = scope.get("client") or ("-", 0)
    vouched, names = scope.get(VOUCHED_KEY) or NONE, scope.get(CERTIFIED_KEY)
    certified = NONE if names is None else f"={','.join(names)}"
    said = f"{to.epoch} {host} {port} {scope['scheme']} {vouched} {certified}"
    return f"{said} {_mac(to.secret, scope, said)}".encode("latin-1")


def accept(scope: Scope, epoch: int, secret: str) -> bool:
    """Make of a request that was passed on the one that was asked. False: it was not meant for this epoch's owner."""
    value = next(value for name, value in scope["headers"] if name == HEADER)
    said, _, mac = value.decode("latin-1").rpartition(" ")
    words = said.split(" ")
    if not secret or not hmac.compare_digest(mac.encode(), _mac(secret, scope, said).encode()):
        return False
    if len(words) != 6 or words[0] != str(epoch):
        return False
    scope[PASSED_ON_KEY] = True
    scope["client"] = None if words[1] == "-" else (words[1], int(words[2]))
    scope["scheme"] = words[3]
    scope["headers"] = [(name, held) for name, held in scope["headers"] if name != HEADER]
    exchange = scope.get(SCOPE_KEY)
    if words[4] != NONE:
        scope[VOUCHED_KEY] = words[4]
    scope.pop(CERTIFIED_KEY, None)  # of the coordinator that has passed it on, if any
    if words[5] != NONE:
        scope[CERTIFIED_KEY] = tuple(filter(None, words[5][1:].split(",")))
    if exchange is not None:
        exchange.up -= len(HEADER) + 2 + len(value) + 2
        if (b"expect", _OWN_CONTINUE) in scope["headers"]:
            exchange.up -= len(b"expect: 100-Continue\r\n")
            exchange.welcomes = True
        exchange.elsewhere = words[4] != NONE
    return True


def is_forwarded(scope: Scope) -> bool:
    """Whether a request says that it was passed on."""
    return any(name == HEADER for name, _ in scope["headers"])


def _mac(secret: str, scope: Scope, said: str) -> str:
    asked = f"{scope['method']} {_target(scope).decode('latin-1')} {said}"
    return hmac.new(secret.encode(), asked.encode("latin-1"), hashlib.sha256).hexdigest()


def _target(scope: Scope) -> bytes:
    query: bytes = scope["query_string"]
    path: bytes = scope["raw_path"]
    return path + (b"?" + query if query else b"")


def head_of(scope: Scope, to: Elsewhere) -> bytes:
    """The bytes of the request's head, as it is passed on."""
    lines = [b"%s %s HTTP/1.1" % (scope["method"].encode("ascii"), _target(scope))]
    lines += [b"%s: %s" % (name, value) for name, value in scope["headers"] if name not in (*_HOP, b"expect")]
    if asks_first(scope):
        lines.append(b"expect: " + (_CONTINUE if expects(scope) else _OWN_CONTINUE))
    lines += [b"connection: keep-alive", HEADER + b": " + stamp(scope, to)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def asks_first(scope: Scope) -> bool:
    """Whether the owner is to say that it wants the body before any of it is sent. One that refuses a large body hangs
    up, and what is still being sent then makes the network throw its answer away."""
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"0")
    is_large = b"transfer-encoding" in headers or (length.isdigit() and int(length) > ASK_BYTES)
    return is_large or expects(scope)


def expects(scope: Scope) -> bool:
    """Whether who asks has said that he waits for that."""
    return any(name == b"expect" and value.lower() == _CONTINUE for name, value in scope["headers"])


# The connection to the owner


class _Answer:
    """What httptools finds in the bytes that come."""

    def __init__(self, *, is_head: bool) -> None:
        self._is_head = is_head
        self._parser = HttpResponseParser(self)
        self.status, self.headers, self.pieces = 0, list[tuple[bytes, bytes]](), list[bytes]()
        self.goes_on = False  # "100 Continue" has come
        self.begun = self.complete = self.keeps_alive = False

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            raise ConnectionError(f"no HTTP: {error}") from None

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self.begun, self.keeps_alive = True, self._parser.should_keep_alive()
            self.complete = self._is_head  # its Content-Length is of another answer's body

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        if self.begun:
            self.complete = True
        else:
            self.goes_on, self.headers = True, []


class _Line:
    """A connection to an owner."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.since = 0.0
        self.is_fresh = True

    def close(self) -> None:
        with suppress(OSError, RuntimeError):
            self.writer.transport.abort()


class Forwarder:
    """All requests that are on their way. `lost` is called when an owner was not to be reached."""

    def __init__(self, lost: Callable[[Elsewhere], None]) -> None:
        self._lost = lost
        self._idle: defaultdict[str, list[_Line]] = defaultdict(list)
        self._busy: defaultdict[Elsewhere, set[_Line]] = defaultdict(set)
        self.count = 0
        self.failures = 0

    def cut(self, *, but: Collection[Elsewhere] = ()) -> None:
        """Break off what is under way to all others: they will not answer any more, or in another epoch."""
        for owner in [owner for owner in self._busy if owner not in but]:
            for line in self._busy.pop(owner):
                line.close()
        for address in self._idle.keys() - {owner.address for owner in but}:
            for line in self._idle.pop(address):
                line.close()

    async def forward(self, scope: Scope, receive: Receive, send: Send, to: Elsewhere) -> None:
        """Pass a request on, and its answer back. Raises `Unanswered`, when none of it has come yet."""
        self.count += VOUCHED_KEY not in scope
        exchange = scope.get(SCOPE_KEY)
        if exchange is not None:
            exchange.elsewhere = True
        bodiless = not any(name == b"content-length" and value != b"0" for name, value in scope["headers"])
        while True:
            line = await self._line(to)
            journey = _Journey(scope, receive, send, line, head_of(scope, to), bodiless=bodiless)
            self._busy[to].add(line)
            try:
                if await journey.run():
                    self._rest(to, line)
                return
            except (OSError, asyncio.IncompleteReadError) as error:
                if not line.is_fresh and not journey.answer.begun and bodiless:
                    continue  # it rested for so long that the owner had ended it
                self._failed(to, error)
                if not journey.started:
                    raise Unanswered from None
                await _break(scope, receive)
                return
            finally:
                self._busy[to].discard(line)
                if not self._busy[to]:
                    del self._busy[to]
                if line not in self._idle[to.address]:
                    line.close()

    def _failed(self, to: Elsewhere, error: Exception) -> None:
        self.failures += 1
        log.warning("the owner does not answer", address=to.address, error=str(error) or type(error).__name__)

    async def _line(self, to: Elsewhere) -> _Line:
        """A connection that rests, or a new one. Raises `Unanswered`."""
        resting, now = self._idle[to.address], asyncio.get_running_loop().time()
        while resting:
            line = resting.pop()
            if now - line.since < IDLE_S and not line.reader.at_eof() and not line.writer.is_closing():
                line.is_fresh = False
                return line
            line.close()
        place = urlsplit(to.address)
        secure = _trust(place.fragment) if place.scheme == "https" else None
        try:
            async with asyncio.timeout(CONNECT_S):
                made = await asyncio.open_connection(place.hostname, place.port, ssl=secure, limit=PIECE_BYTES)
            _check(made[1], place.fragment)
        except (OSError, TimeoutError, ssl.SSLError) as error:
            self._failed(to, error)
            self._lost(to)
            raise Unanswered from None
        return _Line(*made)

    def _rest(self, to: Elsewhere, line: _Line) -> None:
        line.since = asyncio.get_running_loop().time()
        if len(self._idle[to.address]) < IDLE_MAX:
            self._idle[to.address].append(line)


class _Journey:
    """One request to the owner, and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, line: _Line, head: bytes, *, bodiless: bool) -> None:
        self._receive, self._send, self._line, self._head = receive, send, line, head
        self._waits = asks_first(scope)
        self._welcome = asyncio.Event()
        self.answer = _Answer(is_head=scope["method"] == "HEAD")
        self.started = self._gone = False
        self._sent, self._over = bodiless, asyncio.Event()

    async def run(self) -> bool:
        """Whether the connection can be used again. Raises `OSError` when it broke before the answer was whole."""
        self._line.writer.write(self._head)
        sending = asyncio.create_task(self._pass_up())
        try:
            await self._pass_down()
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sending
        return self._sent and self.answer.keeps_alive and not self._gone

    async def _pass_up(self) -> None:
        """The body, as it comes; then see whether who asked hangs up."""
        try:
            if self._waits:
                await self._welcome.wait()  # the owner says whether it wants it
            while (message := await self._receive())["type"] == "http.request":
                self._line.writer.write(message.get("body", b""))
                await self._line.writer.drain()
                if not message.get("more_body", False):
                    self._sent = True
                    self._over.set()
            self._gone = True
            self._line.close()
        finally:
            self._over.set()

    async def _pass_down(self) -> None:
        answer = self.answer
        while not answer.complete:
            data = await self._line.reader.read(PIECE_BYTES)
            if self._gone:
                return
            if not data:
                raise ConnectionError("the owner hung up")
            answer.feed(data)
            if answer.goes_on:
                self._welcome.set()
            if answer.begun and not self.started:
                await self._begin()
            if not answer.complete:
                await self._pieces()
        if not self._sent and not self._waits and answer.keeps_alive:  # the owner still reads what it does not want
            await self._over.wait()
        await self._pieces()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self) -> None:
        self.started = True
        headers = [header for header in self.answer.headers if header[0] not in _OURS]
        if not self._sent and (self._waits or not self.answer.keeps_alive):
            headers.append((b"connection", b"close"))  # what is left of the body goes nowhere
        await self._send({"type": "http.response.start", "status": self.answer.status, "headers": headers})

    async def _pieces(self) -> None:
        pieces, self.answer.pieces = self.answer.pieces, []
        for piece in pieces:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})


async def _break(scope: Scope, receive: Receive) -> None:
    """An answer that has begun and will not end: hang up."""
    hang_up = scope.get(BREAK_KEY)
    if hang_up is not None:
        hang_up()
        while (await receive())["type"] != "http.disconnect":
            continue


# Certificates: the owner has left the fingerprint of its own in the database


def fingerprint(pem: str) -> str:
    """What stands behind the # of an owner's https address."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem[: pem.index("-----END CERTIFICATE-----") + 26])).hexdigest()


def _trust(pinned: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if pinned:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _check(writer: asyncio.StreamWriter, pinned: str) -> None:
    """Raise `ssl.SSLError` unless the other side has the pinned certificate, if one is."""
    if not pinned:
        return
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    if hashlib.sha256(shown or b"").hexdigest() != pinned:
        writer.transport.abort()
        raise ssl.SSLError("the owner's certificate is not the one that it has told")
