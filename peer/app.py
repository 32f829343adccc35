"""Requests come in here: the only module of a peer that knows FastAPI and uvicorn.

    POST /p2p/{job}          a letter of another peer; the answer is a letter, or empty
    GET  /p2p/{job}/status   how it goes, for people and programs

The order of things for a letter: the socket's deadlines (`Metered`); length and form of the request (`Limits`); who
says it, by the signed head of the request, before a byte of the body is asked for (whoever sent `Expect: 100-continue`
gets the refusal instead of the "continue"); the letter's head against the signed digest; then its model, piece by
piece. Only then a machine hears of it. Refusals are problems (RFC 9457) and are not signed: they bind nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from peer.folder import Papers
from peer.intake import Intake, Standard
from peer.ledger import STRANGER, Ledger
from peer.link import Told, wall_s
from shoal import peer_wire
from shoal.core.errors import InvalidPayload, NotAllowed, Refused, ShoalError, StorageFailed, Unreachable
from shoal.core.peer_message import PeerMessage
from shoal.peer_wire import Letter, claimed_weight
from shoal.runtime.http import PROTOCOL_HEADER
from shoal.runtime.threads import in_thread
from shoal.trust.envelope import Request as Signed
from shoal.trust.envelope import Signer, read_request, sha256
from shoal.trust.gatekeeper import Gatekeeper
from shoal.trust.papers import ModeRecord
from shoal.wire import PROTOCOLS

HEAD_RECEIPT_S = 10
"""Seconds for a request's head to arrive."""
BODY_GRACE_S, BODY_BYTES_PER_S_MIN = 20, 500
"""Seconds after which a body must have come at so many bytes per second, on average."""
TICK_S = 1.0
CONNECTIONS_MAX = 1024
KEEP_ALIVE_S = 75
GRACE_S = 2
PIECE_BYTES = 256 * 1024
EXCHANGE = "shoal.exchange"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_HEADERS = [(PROTOCOL_HEADER.lower().encode(), str(PROTOCOLS[-1]).encode()), (b"x-content-type-options", b"nosniff")]
_STATUS: tuple[tuple[type[ShoalError], int], ...] = (
    (InvalidPayload, 422),
    (NotAllowed, 403),
    (Refused, 409),
    (StorageFailed, 507),
    (Unreachable, 400),
)


# What is served


class Resident(Protocol):
    """A peer of one job, behind this listener."""

    standard: Standard
    gate: Gatekeeper
    gate_lock: threading.Lock
    signer: Signer
    ledger: Ledger

    @property
    def papers(self) -> Papers: ...

    def refuse(self, code: str, why: str, sender: str) -> None:
        """Something of that sender was refused."""
        ...

    async def hear(self, messages: Sequence[PeerMessage], intake: Intake) -> list[Told]:
        """Take what a peer says; what it is answered."""
        ...

    def post(self, to: str, told: Sequence[Told]) -> None:
        """Send what an answer had no room for."""
        ...

    def status(self) -> dict[str, Any]:
        """How it goes, as JSON values."""
        ...

    async def decree(self, sealed: bytes) -> None:
        """Take an operator's word on how the job runs. Raises `NotAllowed`, `Refused`."""
        ...


@dataclass(frozen=True)
class Home:
    """Who lives behind a listener."""

    find: Callable[[str], Resident | None]
    """The peer of the job of that name, if there is one here."""
    strangers: Ledger
    """Whose bytes are nobody's."""
    refuse: Callable[[str, str, str], None]
    """Code, reason and sender of what was refused, and concerns none of them."""


# The socket


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


# The outermost layer


class Limits:
    """What a request may be at all, decided by its head alone. Whoever is refused is hung up on, unread."""

    def __init__(self, app: App, home: Home) -> None:
        self._app, self._home = app, home

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        unread = any(name == b"content-length" and value != b"0" for name, value in scope["headers"])

        async def receiving() -> Message:
            nonlocal unread
            message = await receive()
            unread = unread and message.get("more_body", False)
            return message

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                hung_up = [(b"connection", b"close")] if unread else []
                message["headers"] = [*message["headers"], *_HEADERS, *hung_up]
            await send(message)

        resident = self._home.find(scope["path"].removeprefix("/p2p/").partition("/")[0])
        try:
            self._check(resident, dict(scope["headers"]))
        except ShoalError as error:
            refuse = self._home.refuse if resident is None else resident.refuse
            refuse(error.code, error.message, STRANGER)
            await problem(error)(scope, receive, sending)
            return
        await self._app(scope, receiving, sending)

    def _check(self, resident: Resident | None, headers: dict[bytes, bytes]) -> None:
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise Refused("compressed bodies are not accepted", code="body.encoding", hint="send it as it is")
        if b"transfer-encoding" in headers:
            hint = "send a Content-Length header"
            raise Refused("the body's length must be announced", code="body.length-required", hint=hint)
        most = resident.standard.letter_bytes_max if resident is not None else peer_wire.HEAD_BYTES_MAX
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > most:
            said = length[:20].decode("ascii", "replace")
            raise Refused(
                f"a body of {said} bytes; at most {most}", code="body.too-large", hint="send this job's model"
            )


_CODES = {"body.encoding": 415, "body.length-required": 411, "body.too-large": 413, "path.unknown": 404}


def problem(error: ShoalError) -> Response:
    """An error as RFC 9457 has it."""
    status = _CODES.get(error.code) or next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": error.message,
        "code": error.code,
        "hint": error.hint,
    }
    return Response(json.dumps(body), status, media_type="application/problem+json")


# The routes


def create_app(home: Home) -> FastAPI:
    """The application without its limits."""
    app = FastAPI(title="shoal peer", docs_url=None, redoc_url=None, openapi_url=None)

    @app.post("/p2p/{job}")
    async def letter(job: str, request: Request) -> Response:
        """Take a letter."""
        resident = home.find(job)
        return no_job(home, job) if resident is None else await Reception(resident, request).answer()

    @app.get("/p2p/{job}/status")
    async def status(job: str) -> Response:
        """How it goes."""
        resident = home.find(job)
        return no_job(home, job) if resident is None else JSONResponse(resident.status())

    _take_words(app, home)
    return app


def _take_words(app: FastAPI, home: Home) -> None:
    """The routes of whoever has the operator's key, and is no peer."""

    @app.get("/p2p/{job}/charter")
    async def charter(job: str) -> Response:
        """Whose word counts in this job; no secret."""
        resident = home.find(job)
        return no_job(home, job) if resident is None else JSONResponse(asdict(resident.papers.charter))

    @app.post("/p2p/{job}/mode", status_code=204)
    async def mode(job: str, request: Request) -> Response:
        """An operator's signed word on how the job runs; anybody may bring it."""
        resident = home.find(job)
        if resident is None:
            return no_job(home, job)
        try:
            await resident.decree(await _word(request))
        except ShoalError as error:
            resident.refuse(error.code, error.message, STRANGER)
            return problem(error)
        except ClientDisconnect:
            return problem(Unreachable("the connection broke", code="body.short"))
        return Response(status_code=204)


async def _word(request: Request) -> bytes:
    """A sealed record: short, whoever sends it."""
    if int(request.headers.get("content-length", "0")) > ModeRecord.BYTES_MAX:
        raise Refused(f"a word has at most {ModeRecord.BYTES_MAX} bytes", code="body.too-large", hint="send a record")
    return await request.body()


def no_job(home: Home, job: str) -> Response:
    """The answer for a path that names another job; it is counted."""
    hint = "is it the address of another node? or has this one not begun, or ended, its part?"
    error = Refused(f"no job {job[:70]!r} here", code="path.unknown", hint=hint)
    home.refuse(error.code, error.message, STRANGER)
    return problem(error)


class Reception:
    """One request of a peer, from its head to its answer."""

    def __init__(self, node: Resident, request: Request) -> None:
        self._node, self._request = node, request
        self._claim: Any = None
        self._sender = STRANGER

    async def answer(self) -> Response:
        """Let it in, have it acted on, and answer."""
        try:
            signed = self._examined()
            messages, intake = await self._received()
        except ShoalError as error:
            self._node.refuse(error.code, error.message, self._sender)
            return problem(error)
        except ClientDisconnect:
            return problem(Unreachable("the connection broke", code="body.short"))
        told = await self._node.hear(messages, intake)
        count = peer_wire.fitting([message for message, _ in told])
        if told[count:]:
            self._node.post(self._sender, told[count:])
        return self._signed(signed, told[:count])

    def _examined(self) -> Signed:
        """Who says this, by the request's head alone."""
        scope = self._request.scope
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
        signed = read_request(scope["method"], path.partition("?")[0], query, headers)
        with self._node.gate_lock:
            self._claim = self._node.gate.examine(signed, wall_s())
        self._sender = self._claim.node
        scope[EXCHANGE].peer, scope[EXCHANGE].ledger = self._sender, self._node.ledger
        return signed

    async def _received(self) -> tuple[Sequence[PeerMessage], Intake]:
        nbytes = int(self._request.headers.get("content-length", "0"))
        with Intake(self._node.standard, self._sender, nbytes, self._admit) as intake:
            async for piece in self._request.stream():
                body = intake.feed_head(piece)
                if body:  # it is written, hashed and in the end synced: others must not wait for that
                    await in_thread(partial(intake.feed, body))
            return intake.finish(), intake

    def _admit(self, digest: str, letter: Letter) -> None:
        """The letter's head has come: it is the signed one, and used up with this."""
        node = self._node
        most = next((peer.examples for peer in node.papers.roster.peers if peer.node == self._sender), 0)
        claimed = max(map(claimed_weight, letter.messages))
        if most and claimed > most:
            raise InvalidPayload(
                f"{self._sender} claims a weight of {claimed:g}; the roster allows {most}",
                code="peer.weight",
                hint="have the operator admit the node with more examples",
            )
        with node.gate_lock:
            node.gate.admit(self._claim, digest, wall_s())

    def _signed(self, signed: Signed, told: Sequence[Told]) -> Response:
        """What the machines tell the sender, as a letter; or nothing."""
        letter = Letter(self._node.standard.job, tuple(message for message, _ in told))
        head = peer_wire.encode(letter) if told else b""
        headers = self._node.signer.answer(signed, 200, sha256(head)).headers()
        sources = [source for _, source in told if source is not None]
        if not sources:
            return Response(head, 200, headers, peer_wire.MEDIA_TYPE)

        async def pieces() -> AsyncIterator[bytes]:
            yield head
            for source in sources:
                for start in range(0, len(source), PIECE_BYTES):
                    yield await in_thread(partial(source.__getitem__, slice(start, start + PIECE_BYTES)))

        headers["Content-Length"] = str(len(head) + sum(map(len, sources)))
        return StreamingResponse(pieces(), 200, headers, peer_wire.MEDIA_TYPE)


# The server


def listen(host: str, port: int) -> socket.socket:
    """The listening socket. Raises `Unreachable` when the port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        hint = "stop what uses it, or choose another address with --listen"
        text = f"cannot listen on {host}:{port}: {error.strerror}"
        raise Unreachable(text, code="port.in-use", hint=hint) from None
    return sock


class Server(uvicorn.Server):
    """uvicorn within a loop of ours, which has its own signals."""

    def __init__(self, home: Home) -> None:
        super().__init__(
            uvicorn.Config(
                Limits(create_app(home), home),
                http=Metered.bound(home.strangers),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
                limit_concurrency=CONNECTIONS_MAX,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them to whoever runs the peer."""
        yield


@contextlib.asynccontextmanager
async def serving(node: Resident, sock: socket.socket) -> AsyncIterator[None]:
    """Answer requests to the peer of one job while the block runs."""
    job = node.papers.spec.name
    async with serving_all(Home(lambda name: node if name == job else None, node.ledger, node.refuse), sock):
        yield


@contextlib.asynccontextmanager
async def serving_all(home: Home, sock: socket.socket) -> AsyncIterator[None]:
    """Answer requests to all who live there while the block runs."""
    server = Server(home)
    sock.listen(CONNECTIONS_MAX)  # from here on nobody is turned away, though uvicorn has yet to begin
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield
    finally:
        server.should_exit = True
        await task
