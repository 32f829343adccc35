"""Reverse proxy from one coordinator to another, byte for byte, in both directions at once.

Bodies and answers are forwarded as they arrive, including open polls and event streams. One header is added:

shoal-forwarded: TERM HOST PORT SCHEME WHO NAMES MAC      the client, as the forwarding coordinator saw it

MAC is HMAC-SHA-256 over that, the method and the target, with the secret that the owner leaves in the database for its
term. The secret itself never travels. Only the leader forwards such a request again, to a follower, so there are no
loops. The owner counts the bytes of such a request without the header.

The field WHO is set in a coordinator's own requests (`rpc`): it vouches for that identity, and they are not counted.
NAMES are those of the client's certificate.

A failure before the answer begins becomes a 503 with `Retry-After`; a later one breaks the connection.

The client is written by hand because HTTP libraries do not wait for `100 Continue` before they send a body, and cannot
check a certificate's fingerprint before they send a request.
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

from shoal.core.cluster.leader_lease import RemoteLeader
from shoal.runtime.http.server.exchange import BREAK_KEY, SCOPE_KEY
from shoal_coordinator.http.client_certificates import CERTIFIED_KEY, PASSED_ON_KEY, VOUCHED_KEY

log = structlog.get_logger()

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HEADER = b"shoal-forwarded"
CONNECT_S = 2.0
IDLE_S = 30.0
"""An idle connection is not used again after that time: the owner closes it after twice as long."""
IDLE_MAX = 64
PIECE_BYTES = 1 << 16
CONTINUE_BYTES = 1 << 16
"""A larger body is sent only after the owner has answered 100 Continue."""

_CONTINUE, _OWN_CONTINUE = b"100-continue", b"100-Continue"
"""Expect headers of a request whose body waits for 100 Continue: from the client, and from the forwarder."""

_HOP = {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", HEADER}
_DROPPED = {b"connection", b"keep-alive", b"transfer-encoding", b"date"}


class Unanswered(Exception):
    """The owner gave no answer, and the client has received none either."""


MISSING = "-"
"""Placeholder for a missing part in the signed text."""


# The signed header


def stamp(scope: Scope, to: RemoteLeader) -> bytes:
    """Return the header's value for a forwarded request."""
    host, port = scope.get("client") or ("-", 0)
    vouched, names = scope.get(VOUCHED_KEY) or MISSING, scope.get(CERTIFIED_KEY)
    certified = MISSING if names is None else f"={','.join(names)}"
    signed_text = f"{to.term} {host} {port} {scope['scheme']} {vouched} {certified}"
    return f"{signed_text} {_mac(to.secret, scope, signed_text)}".encode("latin-1")


def accept(scope: Scope, term: int, secret: str) -> bool:
    """Unwrap a forwarded request. Return False if it was not meant for the owner of this term."""
    value = next(value for name, value in scope["headers"] if name == HEADER)
    signed_text, _, mac = value.decode("latin-1").rpartition(" ")
    parts = signed_text.split(" ")
    if not secret or not hmac.compare_digest(mac.encode(), _mac(secret, scope, signed_text).encode()):
        return False
    if len(parts) != 6 or parts[0] != str(term):
        return False
    scope[PASSED_ON_KEY] = True
    scope["client"] = None if parts[1] == "-" else (parts[1], int(parts[2]))
    scope["scheme"] = parts[3]
    scope["headers"] = [(name, held) for name, held in scope["headers"] if name != HEADER]
    exchange = scope.get(SCOPE_KEY)
    if parts[4] != MISSING:
        scope[VOUCHED_KEY] = parts[4]
    scope.pop(CERTIFIED_KEY, None)  # of the coordinator that has passed it on, if any
    if parts[5] != MISSING:
        scope[CERTIFIED_KEY] = tuple(filter(None, parts[5][1:].split(",")))
    if exchange is not None:
        exchange.up -= len(HEADER) + 2 + len(value) + 2
        if (b"expect", _OWN_CONTINUE) in scope["headers"]:
            exchange.up -= len(b"expect: 100-Continue\r\n")
            exchange.welcomes = True
        exchange.elsewhere = parts[4] != MISSING
    return True


def is_forwarded(scope: Scope) -> bool:
    """Return True if a request says that it was forwarded."""
    return any(name == HEADER for name, _ in scope["headers"])


def _mac(secret: str, scope: Scope, signed_text: str) -> str:
    asked = f"{scope['method']} {_target(scope).decode('latin-1')} {signed_text}"
    return hmac.new(secret.encode(), asked.encode("latin-1"), hashlib.sha256).hexdigest()


def _target(scope: Scope) -> bytes:
    query: bytes = scope["query_string"]
    path: bytes = scope["raw_path"]
    return path + (b"?" + query if query else b"")


def head_of(scope: Scope, to: RemoteLeader) -> bytes:
    """Return the bytes of the forwarded request's head."""
    lines = [b"%s %s HTTP/1.1" % (scope["method"].encode("ascii"), _target(scope))]
    lines += [b"%s: %s" % (name, value) for name, value in scope["headers"] if name not in (*_HOP, b"expect")]
    if waits_for_continue(scope):
        lines.append(b"expect: " + (_CONTINUE if expects_continue(scope) else _OWN_CONTINUE))
    lines += [b"connection: keep-alive", HEADER + b": " + stamp(scope, to)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def waits_for_continue(scope: Scope) -> bool:
    """Return True if the owner must accept the body before any of it is sent.

    An owner that refuses a large body closes the connection; bytes still in flight would make the network drop its
    answer.
    """
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"0")
    is_large = b"transfer-encoding" in headers or (length.isdigit() and int(length) > CONTINUE_BYTES)
    return is_large or expects_continue(scope)


def expects_continue(scope: Scope) -> bool:
    """Return True if the client waits for that."""
    return any(name == b"expect" and value.lower() == _CONTINUE for name, value in scope["headers"])


# The connection to the owner


class _ResponseParser:
    """Callbacks of httptools for the response's bytes."""

    def __init__(self, *, is_head: bool) -> None:
        self._is_head = is_head
        self._parser = HttpResponseParser(self)
        self.status, self.headers, self.pieces = 0, list[tuple[bytes, bytes]](), list[bytes]()
        self.may_continue = False  # "100 Continue" has come
        self.has_head = self.is_complete = self.keeps_alive = False

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
            self.has_head, self.keeps_alive = True, self._parser.should_keep_alive()
            self.is_complete = self._is_head  # its Content-Length is of another answer's body

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        if self.has_head:
            self.is_complete = True
        else:
            self.may_continue, self.headers = True, []


class _Connection:
    """A connection to an owner."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.since = 0.0
        self.is_fresh = True

    def close(self) -> None:
        with suppress(OSError, RuntimeError):
            self.writer.transport.abort()


class ReverseProxy:
    """Forwarder of requests to other coordinators. `on_unreachable`: called with an owner that cannot be reached."""

    def __init__(self, on_unreachable: Callable[[RemoteLeader], None]) -> None:
        self._on_unreachable = on_unreachable
        self._idle: defaultdict[str, list[_Connection]] = defaultdict(list)
        self._busy: defaultdict[RemoteLeader, set[_Connection]] = defaultdict(set)
        self.count = 0
        self.failures = 0

    def close_all(self, *, but: Collection[RemoteLeader] = ()) -> None:
        """Close the connections to all other owners, which are gone or lead in another term."""
        for owner in [owner for owner in self._busy if owner not in but]:
            for connection in self._busy.pop(owner):
                connection.close()
        for address in self._idle.keys() - {owner.address for owner in but}:
            for connection in self._idle.pop(address):
                connection.close()

    async def forward(self, scope: Scope, receive: Receive, send: Send, to: RemoteLeader) -> None:
        """Forward a request, and its answer back. Raises `Unanswered` if no part of the answer has arrived."""
        self.count += VOUCHED_KEY not in scope
        exchange = scope.get(SCOPE_KEY)
        if exchange is not None:
            exchange.elsewhere = True
        bodiless = not any(name == b"content-length" and value != b"0" for name, value in scope["headers"])
        while True:
            connection = await self._connect(to)
            forwarded = _ForwardedRequest(scope, receive, send, connection, head_of(scope, to), bodiless=bodiless)
            self._busy[to].add(connection)
            try:
                if await forwarded.run():
                    self._release(to, connection)
                return
            except (OSError, asyncio.IncompleteReadError) as error:
                if not connection.is_fresh and not forwarded.answer.has_head and bodiless:
                    continue  # it was idle for so long that the owner has closed it
                self._failed(to, error)
                if not forwarded.started:
                    raise Unanswered from None
                await _break_response(scope, receive)
                return
            finally:
                self._busy[to].discard(connection)
                if not self._busy[to]:
                    del self._busy[to]
                if connection not in self._idle[to.address]:
                    connection.close()

    def _failed(self, to: RemoteLeader, error: Exception) -> None:
        self.failures += 1
        log.warning("the owner does not answer", address=to.address, error=str(error) or type(error).__name__)

    async def _connect(self, to: RemoteLeader) -> _Connection:
        """Return an idle connection, or a new one. Raises `Unanswered`."""
        idle, now = self._idle[to.address], asyncio.get_running_loop().time()
        while idle:
            connection = idle.pop()
            if (
                now - connection.since < IDLE_S
                and not connection.reader.at_eof()
                and not connection.writer.is_closing()
            ):
                connection.is_fresh = False
                return connection
            connection.close()
        place = urlsplit(to.address)
        secure = _tls_context(place.fragment) if place.scheme == "https" else None
        try:
            async with asyncio.timeout(CONNECT_S):
                made = await asyncio.open_connection(place.hostname, place.port, ssl=secure, limit=PIECE_BYTES)
            _check_fingerprint(made[1], place.fragment)
        except (OSError, TimeoutError, ssl.SSLError) as error:
            self._failed(to, error)
            self._on_unreachable(to)
            raise Unanswered from None
        return _Connection(*made)

    def _release(self, to: RemoteLeader, connection: _Connection) -> None:
        connection.since = asyncio.get_running_loop().time()
        if len(self._idle[to.address]) < IDLE_MAX:
            self._idle[to.address].append(connection)


class _ForwardedRequest:
    """One request to the owner, and its answer."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, connection: _Connection, head: bytes, *, bodiless: bool
    ) -> None:
        self._receive, self._send, self._connection, self._head = receive, send, connection, head
        self._waits = waits_for_continue(scope)
        self._continue = asyncio.Event()
        self.answer = _ResponseParser(is_head=scope["method"] == "HEAD")
        self.started = self._disconnected = False
        self._sent, self._body_done = bodiless, asyncio.Event()

    async def run(self) -> bool:
        """Run, and return whether the connection can be used again. Raises `OSError` if it broke before the answer
        ended."""
        self._connection.writer.write(self._head)
        sending = asyncio.create_task(self._send_body())
        try:
            await self._receive_response()
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sending
        return self._sent and self.answer.keeps_alive and not self._disconnected

    async def _send_body(self) -> None:
        """Send the body as it comes; then watch whether the client hangs up."""
        try:
            if self._waits:
                await self._continue.wait()  # the owner says whether it wants it
            while (message := await self._receive())["type"] == "http.request":
                self._connection.writer.write(message.get("body", b""))
                await self._connection.writer.drain()
                if not message.get("more_body", False):
                    self._sent = True
                    self._body_done.set()
            self._disconnected = True
            self._connection.close()
        finally:
            self._body_done.set()

    async def _receive_response(self) -> None:
        answer = self.answer
        while not answer.is_complete:
            data = await self._connection.reader.read(PIECE_BYTES)
            if self._disconnected:
                return
            if not data:
                raise ConnectionError("the owner hung up")
            answer.feed(data)
            if answer.may_continue:
                self._continue.set()
            if answer.has_head and not self.started:
                await self._start_response()
            if not answer.is_complete:
                await self._send_pieces()
        if not self._sent and not self._waits and answer.keeps_alive:  # the owner still reads what it does not want
            await self._body_done.wait()
        await self._send_pieces()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start_response(self) -> None:
        self.started = True
        headers = [header for header in self.answer.headers if header[0] not in _DROPPED]
        if not self._sent and (self._waits or not self.answer.keeps_alive):
            headers.append((b"connection", b"close"))  # the rest of the body is not sent
        await self._send({"type": "http.response.start", "status": self.answer.status, "headers": headers})

    async def _send_pieces(self) -> None:
        pieces, self.answer.pieces = self.answer.pieces, []
        for piece in pieces:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})


async def _break_response(scope: Scope, receive: Receive) -> None:
    """Break the connection of an answer that has begun and cannot end."""
    hang_up = scope.get(BREAK_KEY)
    if hang_up is not None:
        hang_up()
        while (await receive())["type"] != "http.disconnect":
            continue


# Certificates: the owner has left the fingerprint of its own in the database


def fingerprint(pem: str) -> str:
    """Return the text behind the # of an owner's https address."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem[: pem.index("-----END CERTIFICATE-----") + 26])).hexdigest()


def _tls_context(pinned: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if pinned:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _check_fingerprint(writer: asyncio.StreamWriter, pinned: str) -> None:
    """Raise `ssl.SSLError` unless the other side has the pinned certificate, if one is."""
    if not pinned:
        return
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    if hashlib.sha256(shown or b"").hexdigest() != pinned:
        writer.transport.abort()
        raise ssl.SSLError("the owner's certificate is not the one that it has announced")
