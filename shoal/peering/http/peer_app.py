"""The HTTP server of a peer. With `admin_routes` it is the only module of a peer that imports Starlette.

FastAPI is left to the coordinator: each batch would pass through layers of it that do nothing here.

    POST /p2p/{job}              a message batch of another peer; the answer is another, or empty
    GET  /p2p/{job}/status       how it goes, for people and programs
    GET  /                       the same as a page (`status_page`)
    any  /p2p/{job}/relay/{path}   what another says to the coordinator, whose own way there is broken (`relay_server`)
    and those of `admin_routes`, for holders of the operator's key

A batch passes these checks in order: the socket's deadlines (`MeteredProtocol`); length and form of the request
(`PeerRequestLimits`); the sender, by the signed headers, before the body is read (a sender that waits for "100
Continue" receives the refusal instead); the batch's head against the signed digest; its model, piece by piece. Only
then the machine receives it. Refusals are problem documents (RFC 9457) and are not signed.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.core.errors import Refused, ShoalError, Unreachable
from shoal.core.protocol.peer_message import PeerMessage
from shoal.peering.http.admin_routes import admin_routes
from shoal.peering.http.connections import PeerConnections, PeerExchange
from shoal.peering.http.hosted_peer import (
    DISCONNECTED,
    HostedJobs,
    HostedPeer,
    answer,
    problem,
    signed_headers,
    unknown_job,
)
from shoal.peering.http.message_receiver import MessageReceiver
from shoal.peering.http.node_overview import overview
from shoal.peering.http.peer_link import OutgoingMessage, wall_s
from shoal.peering.http.relay_server import MODELS_MAX, RelayedCall
from shoal.peering.http.status_page import HEADERS, render
from shoal.peering.roster.example_claims import check_claims
from shoal.peering.state.byte_counts import STRANGER
from shoal.peering.state.progress_report import TELL_S, TransferProgress
from shoal.runtime.http.client import PROTOCOL_HEADER
from shoal.runtime.http.server import problem_documents
from shoal.runtime.http.server.allowed_hosts import KnownHosts, host_of, names_of
from shoal.runtime.http.server.body_limits import RequestBody, check_body
from shoal.runtime.http.server.body_receiver import pieces
from shoal.runtime.http.server.connection_limit import CODE, HINT
from shoal.runtime.http.server.exchange import SCOPE_KEY
from shoal.runtime.http.server.serving import serve
from shoal.runtime.threads import in_thread
from shoal.trust.envelope import SignedRequest as Signed
from shoal.trust.envelope import sha256
from shoal.wire import peer_codec
from shoal.wire.codec import PROTOCOLS
from shoal.wire.peer_codec import MessageBatch

GRACE_S = 2
PIECE_BYTES = 256 * 1024

_HEADERS = [(PROTOCOL_HEADER.lower().encode(), str(PROTOCOLS[-1]).encode()), (b"x-content-type-options", b"nosniff")]
# The outermost layer


class PeerRequestLimits:
    """An ASGI middleware that checks requests by their headers; a refused request is not read further."""

    def __init__(self, app: ASGIApp, hosted: HostedJobs) -> None:
        self._app, self._hosted = app, hosted
        self._hosts = KnownHosts(names_of(""), addresses=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = RequestBody(scope, receive)

        exchange: PeerExchange = scope[SCOPE_KEY]
        length = dict(scope["headers"]).get(b"content-length", b"")

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                is_whole = not body.is_unread or str(exchange.up_body).encode() == length
                hung_up = [] if is_whole else [(b"connection", b"close")]
                message["headers"] = [*message["headers"], *_HEADERS, *hung_up]
            await send(message)

        if exchange.crowded:
            await problem_documents.problem(503, exchange.crowded, CODE, HINT, retry_after_s=2)(scope, receive, sending)
            return
        job, _, rest = scope["path"].removeprefix("/p2p/").partition("/")
        peer = self._hosted.find(job)
        try:
            self._check_host(scope)
            check_body(scope, _bytes_max(peer, is_relayed=rest.startswith("relay/")), "send this job's model")
        except ShoalError as error:
            refuse = self._hosted.record_refusal if peer is None else peer.record_refusal
            refuse(error.code, error.message, STRANGER)
            await problem(error)(scope, receive, sending)
            return
        await self._app(scope, body.receive, sending)

    def _check_host(self, scope: Scope) -> None:
        """Refuse a GET of a web page from another site, whose name resolves to this peer. The peer's own names are the
        machine's and those of its addresses in rosters. Signed requests come from no browser."""
        headers = dict(scope["headers"])
        if scope["method"] not in ("GET", "HEAD") or _SIGNATURE in headers or b"host" not in headers:
            return
        host = headers[b"host"].decode("latin-1")
        peers = [found for job in self._hosted.jobs() if (found := self._hosted.find(job)) is not None]
        own = {urlsplit(url).hostname for one in peers for url in one.documents.me.urls}
        if not self._hosts.knows(host) and host_of(host) not in own:
            text = f"this peer is not known as {host[:100]!r}"
            raise Refused(text, code="host.unknown", hint="use its address, or the name that the roster has for it")


def _bytes_max(peer: HostedPeer | None, *, is_relayed: bool) -> int:
    """Return the longest body of a request to the peer of a job. `is_relayed`: on its way to the coordinator."""
    if peer is None:
        return peer_codec.HEAD_BYTES_MAX
    expected = peer.expected_model
    return expected.batch_bytes_max + ((MODELS_MAX - 1) * expected.body_bytes if is_relayed else 0)


_SIGNATURE = b"shoal-signature"

# The routes


def create_app(hosted: HostedJobs) -> Starlette:
    """Return the application without its limits."""

    async def batch(request: Request) -> Response:
        """Handle a message batch."""
        job = request.path_params["job"]
        peer = hosted.find(job)
        return unknown_job(hosted, job) if peer is None else await MessageHandler(peer, request).answer()

    async def status(request: Request) -> Response:
        """Return the state of a job."""
        job = request.path_params["job"]
        peer = hosted.find(job)
        return unknown_job(hosted, job) if peer is None else JSONResponse(peer.status())

    async def page(_: Request) -> Response:
        """Return the status page."""
        peers = [peer for job in hosted.jobs() if (peer := hosted.find(job)) is not None]
        shown = render(hosted.peer_id, [overview(peer.status()) for peer in peers])
        return Response(shown, 200, HEADERS, media_type="text/html")

    async def hub(request: Request) -> Response:
        """Relay a signed request to the coordinator, and its answer back."""
        return await answer(hosted, request.path_params["job"], request, partial(_relay, request))

    routes = [
        Route("/p2p/{job}", batch, methods=["POST"]),
        Route("/p2p/{job}/status", status),
        Route("/", page),
        Route("/p2p/{job}/relay/{path:path}", hub, methods=["GET", "HEAD", "POST", "PUT"]),
    ]
    return Starlette(routes=[*routes, *admin_routes(hosted)])


async def _relay(request: Request, peer: HostedPeer) -> Response:
    scope, relay = request.scope, peer.relay
    if relay is None:
        hint = "ask another peer of the job"
        raise Refused("this peer does not relay to a coordinator", code="relay.none", hint=hint)
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    path = scope["raw_path"].decode("latin-1").partition("?")[0].removeprefix(f"/p2p/{peer.expected_model.job}/relay")
    call = relay.examine(request.method, path, scope["query_string"].decode("latin-1"), headers)
    exchange = scope[SCOPE_KEY]
    exchange.peer, exchange.byte_counts = call.node, relay.byte_counts
    head = await call.start(request.stream())
    if request.method == "HEAD":
        await call.end()
        return Response(b"", head.status, head.headers)
    return StreamingResponse(_pieces_of(call), head.status, head.headers)


async def _pieces_of(call: RelayedCall) -> AsyncIterator[bytes]:
    try:
        async for piece in call.pieces():
            yield piece
    finally:
        await call.end()


class MessageHandler:
    """One request of a peer, from its headers to its answer."""

    def __init__(self, node: HostedPeer, request: Request) -> None:
        self._node, self._request = node, request
        self._claim: Any = None
        self._sender = STRANGER

    async def answer(self) -> Response:
        """Authenticate and handle the request; return the answer."""
        try:
            signed = self._authenticate()
            messages, receiver = await self._receive()
        except Unreachable:
            return problem(DISCONNECTED)
        except ShoalError as error:
            self._node.record_refusal(error.code, error.message, self._sender)
            return problem(error)
        answers = await self._node.handle_messages(messages, receiver)
        count = peer_codec.fitting([message for message, _ in answers])
        if answers[count:]:
            self._node.router.post(self._sender, answers[count:])
        return self._sign_answer(signed, answers[:count])

    def _authenticate(self) -> Signed:
        """Return the signed headers after identifying the sender."""
        signed, scope = signed_headers(self._request), self._request.scope
        with self._node.verifier_lock:
            self._claim = self._node.verifier.examine(signed, wall_s())
        self._sender = self._claim.node
        scope[SCOPE_KEY].peer, scope[SCOPE_KEY].byte_counts = self._sender, self._node.byte_counts
        return signed

    async def _receive(self) -> tuple[Sequence[PeerMessage], MessageReceiver]:
        nbytes = int(self._request.headers.get("content-length", "0"))
        with MessageReceiver(self._node.expected_model, self._sender, nbytes, self._admit) as receiver:
            async with contextlib.aclosing(pieces(self._request, TELL_S / 2)) as body:
                async for piece in body:
                    rest = receiver.feed_head(piece)
                    if receiver.is_quick:
                        receiver.feed(rest)
                    elif rest:  # it is written, hashed and in the end synced: others must not wait for that
                        await in_thread(partial(receiver.feed, rest))
            return receiver.finish(), receiver

    def _admit(self, digest: str, batch: MessageBatch) -> None:
        """Check the batch's head against the signed digest, and use up the request number."""
        node = self._node
        with node.verifier_lock:
            check_claims(batch, self._sender, node.verifier.members())
            node.verifier.admit(self._claim, digest, wall_s())

    def _sign_answer(self, signed: Signed, messages: Sequence[OutgoingMessage]) -> Response:
        """Return the messages for the sender as a signed batch; an empty body without messages."""
        batch = MessageBatch(self._node.expected_model.job, tuple(message for message, _ in messages))
        head = peer_codec.encode(batch) if messages else b""
        headers = self._node.signer.answer(signed, 200, sha256(head)).headers()
        sources = [source for _, source in messages if source is not None]
        if not sources:
            return Response(head, 200, headers, peer_codec.MEDIA_TYPE)

        async def content() -> AsyncIterator[bytes]:
            yield head
            for message, source in messages:
                progress = TransferProgress(self._node.expected_model.on_transfer, self._sender, message, leaving=True)
                for start in range(0, len(source) if source is not None else 0, PIECE_BYTES):
                    assert source is not None
                    piece = await in_thread(partial(source.__getitem__, slice(start, start + PIECE_BYTES)))
                    progress.add(len(piece))
                    yield piece

        headers["Content-Length"] = str(len(head) + sum(map(len, sources)))
        return StreamingResponse(content(), 200, headers, peer_codec.MEDIA_TYPE)


# The server


@contextlib.asynccontextmanager
async def serve_peer(node: HostedPeer, sock: socket.socket) -> AsyncIterator[None]:
    """Answer requests to the peer of one job while the block runs."""
    job = node.documents.spec.name
    only = HostedJobs(
        lambda name: node if name == job else None,
        node.byte_counts,
        node.record_refusal,
        node.verifier.peer_id,
        lambda: [job],
    )
    async with serve_jobs(only, sock):
        yield


@contextlib.asynccontextmanager
async def serve_jobs(hosted: HostedJobs, sock: socket.socket) -> AsyncIterator[None]:
    """Answer requests to all jobs while the block runs."""
    app = PeerRequestLimits(create_app(hosted), hosted)
    async with serve(app, PeerConnections(hosted.stranger_bytes), sock, grace_s=GRACE_S):
        yield
