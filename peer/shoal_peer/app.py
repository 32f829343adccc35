"""Requests come in here: with `peer.words` the only module of a peer that knows FastAPI.

    POST /p2p/{job}              a letter of another peer; the answer is a letter, or empty
    GET  /p2p/{job}/status       how it goes, for people and programs
    GET  /                       the same as a page (`peer.page`)
    any  /p2p/{job}/hub/{path}   what another says to the coordinator, whose own way there is broken (`peer.carriage`)
    and those of `peer.words`, for whoever has the operator's key

The order of things for a letter: the socket's deadlines (`Metered`); length and form of the request (`Limits`); who
says it, by the signed head of the request, before a byte of the body is asked for (whoever sent `Expect: 100-continue`
gets the refusal instead of the "continue"); the letter's head against the signed digest; then its model, piece by
piece. Only then a machine hears of it. Refusals are problems (RFC 9457) and are not signed: they bind nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

from shoal import peer_wire
from shoal.core.errors import InvalidPayload, NotAllowed, Refused, ShoalError, StorageFailed, Unreachable
from shoal.core.peer_message import PeerMessage
from shoal.peer_wire import Letter
from shoal.runtime.http import PROTOCOL_HEADER
from shoal.runtime.known_hosts import KnownHosts, host_of, names_of
from shoal.runtime.threads import in_thread
from shoal.trust.envelope import Request as Signed
from shoal.trust.envelope import Signer, read_request, sha256
from shoal.trust.gatekeeper import Gatekeeper
from shoal.wire import PROTOCOLS
from shoal_peer.carriage import MODELS_MAX, Carriage, Errand
from shoal_peer.claims import check_claims
from shoal_peer.folder import Papers
from shoal_peer.intake import Intake, Standard
from shoal_peer.ledger import STRANGER, Ledger
from shoal_peer.link import Told, wall_s
from shoal_peer.metered import EXCHANGE, Metered
from shoal_peer.overview import overview
from shoal_peer.page import HEADERS, render
from shoal_peer.progress import Progress
from shoal_peer.rosters import Rosters
from shoal_peer.words import Kept, take_words

CONNECTIONS_MAX = 1024
KEEP_ALIVE_S = 75
GRACE_S = 2
PIECE_BYTES = 256 * 1024

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
    def carriage(self) -> Carriage | None:
        """With which it passes words on to a coordinator, if there is one."""
        ...

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

    async def enter(self, request: Signed, text: bytes) -> bytes:
        """A newcomer shows its certificate: the roster that is held, sealed. Raises `NotAllowed`, `Refused`."""
        ...

    @property
    def kept(self) -> Kept | None:
        """What is kept here for a coordinator that loses its disk."""
        ...

    @property
    def rosters(self) -> Rosters | None:
        """The rosters of a job without a coordinator."""
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
    peer_id: str = ""
    jobs: Callable[[], Sequence[str]] = tuple


# The outermost layer


class Limits:
    """What a request may be at all, decided by its head alone. Whoever is refused is hung up on, unread."""

    def __init__(self, app: App, home: Home) -> None:
        self._app, self._home = app, home
        self._hosts = KnownHosts(names_of(""), addresses=True)

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

        job, _, rest = scope["path"].removeprefix("/p2p/").partition("/")
        resident = self._home.find(job)
        try:
            self._check_host(scope)
            self._check(resident, dict(scope["headers"]), hub=rest.startswith("hub/"))
        except ShoalError as error:
            refuse = self._home.refuse if resident is None else resident.refuse
            refuse(error.code, error.message, STRANGER)
            await problem(error)(scope, receive, sending)
            return
        await self._app(scope, receiving, sending)

    def _check_host(self, scope: MutableMapping[str, Any]) -> None:
        """Refuse to show to the page of a foreign site, in a browser, what anybody may read who reaches this peer. Its
        own names are the machine's and those of its addresses in rosters. What is signed comes from no browser."""
        headers = dict(scope["headers"])
        if scope["method"] not in ("GET", "HEAD") or _SIGNATURE in headers or b"host" not in headers:
            return
        host = headers[b"host"].decode("latin-1")
        residents = [found for job in self._home.jobs() if (found := self._home.find(job)) is not None]
        own = {urlsplit(url).hostname for one in residents for url in one.papers.me.urls}
        if not self._hosts.knows(host) and host_of(host) not in own:
            text = f"this peer is not known as {host[:100]!r}"
            raise Refused(text, code="host.unknown", hint="use its address, or the name that the roster has for it")

    def _check(self, resident: Resident | None, headers: dict[bytes, bytes], *, hub: bool) -> None:
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise Refused("compressed bodies are not accepted", code="body.encoding", hint="send it as it is")
        if b"transfer-encoding" in headers:
            hint = "send a Content-Length header"
            raise Refused("the body's length must be announced", code="body.length-required", hint=hint)
        most = resident.standard.letter_bytes_max if resident is not None else peer_wire.HEAD_BYTES_MAX
        if hub and resident is not None:
            most += (MODELS_MAX - 1) * resident.standard.body_bytes
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > most:
            said = length[:20].decode("ascii", "replace")
            raise Refused(
                f"a body of {said} bytes; at most {most}", code="body.too-large", hint="send this job's model"
            )


_SIGNATURE = b"shoal-signature"
_CODES = {
    "host.unknown": 421,
    "body.encoding": 415,
    "body.length-required": 411,
    "body.too-large": 413,
    "path.unknown": 404,
    "relay.none": 404,
    "relay.path": 404,
    "relay.budget": 429,
    "relay.busy": 429,
    "relay.unreachable": 502,
    "relay.no-way": 503,
}


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
    pause_s = getattr(error, "retry_after_s", 0.0)
    headers = {"Retry-After": str(math.ceil(pause_s))} if pause_s else None
    return Response(json.dumps(body), status, headers, media_type="application/problem+json")


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

    @app.get("/")
    async def page() -> Response:
        """Show all of this as a page, for people."""
        residents = [resident for job in home.jobs() if (resident := home.find(job)) is not None]
        shown = render(home.peer_id, [overview(resident.status()) for resident in residents])
        return Response(shown, 200, HEADERS, media_type="text/html")

    take_words(app, home, partial(no_job, home), problem)
    _pass_on(app, home)
    return app


def _pass_on(app: FastAPI, home: Home) -> None:
    """The way of those who have lost theirs."""

    @app.api_route("/p2p/{job}/hub/{path:path}", methods=["GET", "HEAD", "POST", "PUT"])
    async def hub(job: str, request: Request) -> Response:
        """Pass a signed word on to the coordinator, and bring its answer back."""
        resident = home.find(job)
        if resident is None:
            return no_job(home, job)
        try:
            return await _passed_on(resident, request)
        except ShoalError as error:
            resident.refuse(error.code, error.message, request.scope[EXCHANGE].peer)
            return problem(error)
        except ClientDisconnect:
            return problem(Unreachable("the connection broke", code="body.short"))


async def _passed_on(resident: Resident, request: Request) -> Response:
    scope, carriage = request.scope, resident.carriage
    if carriage is None:
        hint = "ask another peer of the job"
        raise Refused("this peer passes nothing on to a coordinator", code="relay.none", hint=hint)
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    path = scope["raw_path"].decode("latin-1").partition("?")[0].removeprefix(f"/p2p/{resident.standard.job}/hub")
    errand = carriage.examine(request.method, path, scope["query_string"].decode("latin-1"), headers)
    exchange = scope[EXCHANGE]
    exchange.peer, exchange.ledger = errand.node, carriage.ledger
    head = await errand.begin(request.stream())
    if request.method == "HEAD":
        await errand.end()
        return Response(b"", head.status, head.headers)
    return StreamingResponse(_pieces_of(errand), head.status, head.headers)


async def _pieces_of(errand: Errand) -> AsyncIterator[bytes]:
    try:
        async for piece in errand.pieces():
            yield piece
    finally:
        await errand.end()


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
        with node.gate_lock:
            check_claims(letter, self._sender, node.gate.members())
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
            for message, source in told:
                progress = Progress(self._node.standard.moved, self._sender, message, leaving=True)
                for start in range(0, len(source) if source is not None else 0, PIECE_BYTES):
                    assert source is not None
                    piece = await in_thread(partial(source.__getitem__, slice(start, start + PIECE_BYTES)))
                    progress.add(len(piece))
                    yield piece

        headers["Content-Length"] = str(len(head) + sum(map(len, sources)))
        return StreamingResponse(pieces(), 200, headers, peer_wire.MEDIA_TYPE)


# The server


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
    only = Home(lambda name: node if name == job else None, node.ledger, node.refuse, node.gate.peer_id, lambda: [job])
    async with serving_all(only, sock):
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
