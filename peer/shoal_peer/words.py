"""The routes for who is no peer (yet): with a certificate, or an operator's or coordinator's key. Served by `peer.app`.

    GET  /p2p                              who listens here, and the jobs that it takes part in; anybody may ask
    GET  /p2p/{job}/charter                whose word counts in a job; anybody may ask
    POST /p2p/{job}/enter                  a newcomer shows its certificate; the answer is a roster
    POST /p2p/{job}/join                   a newcomer shows an invitation; the answer is the job's papers
    GET  /p2p/{job}/roster?newer=N         the roster, for members; nothing if its version is not above N
    POST /p2p/{job}/mode                   an operator's signed word on how the job runs
    GET  /p2p/{job}/checkpoint             what this node has kept for a coordinator that loses its disk
    GET  /p2p/{job}/checkpoint/{sha256}    a model of that

The last two are requests signed by the coordinator's key, to this node: each is taken once.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

from shoal.core.errors import Refused, ShoalError, Unreachable
from shoal.core.machine import HUB
from shoal.runtime.store import FileSource
from shoal.runtime.threads import in_thread
from shoal.trust.codes import refusal
from shoal.trust.envelope import Request as Signed
from shoal.trust.envelope import read_request, sha256
from shoal.trust.gatekeeper import Gatekeeper
from shoal.trust.papers import ModeRecord
from shoal_peer.entry import ENTRY_BYTES_MAX
from shoal_peer.folder import Papers
from shoal_peer.invitation import JOIN_BYTES_MAX
from shoal_peer.ledger import STRANGER, Ledger
from shoal_peer.link import wall_s
from shoal_peer.metered import EXCHANGE
from shoal_peer.rosters import Rosters

PIECE_BYTES = 256 * 1024

Minded = Callable[[str, Callable[["Keeper"], Awaitable[Response]]], Awaitable[Response]]
"""`(job, act)`: what the peer of that job answers; its refusals become problems."""


class Kept(Protocol):
    """What a node has kept of one job for a coordinator that loses its disk. Blocks; raises `ShoalError`."""

    def offer(self) -> bytes:
        """An offer (`shoal.checkpoint`), as JSON."""
        ...

    def model(self, digest: str) -> FileSource:
        """The model of that SHA-256 that belongs to it."""
        ...


class Keeper(Protocol):
    """A peer of one job, as these routes need it."""

    gate: Gatekeeper
    gate_lock: threading.Lock
    ledger: Ledger

    @property
    def papers(self) -> Papers: ...

    @property
    def kept(self) -> Kept | None: ...

    def refuse(self, code: str, why: str, sender: str) -> None: ...

    async def decree(self, sealed: bytes) -> None: ...

    async def enter(self, request: Signed, text: bytes) -> bytes: ...

    @property
    def rosters(self) -> Rosters | None:
        """The rosters of a job without a coordinator; None where a coordinator keeps them."""
        ...


class Listener(Protocol):
    """Who lives behind an address."""

    @property
    def find(self) -> Callable[[str], Keeper | None]: ...

    @property
    def peer_id(self) -> str: ...

    @property
    def jobs(self) -> Callable[[], Sequence[str]]: ...


def take_words(
    app: FastAPI, home: Listener, unknown: Callable[[str], Response], problem: Callable[[ShoalError], Response]
) -> None:
    """Serve these routes. `unknown`: the answer about a job that nobody here takes part in."""

    async def minded(job: str, act: Callable[[Keeper], Awaitable[Response]]) -> Response:
        keeper = home.find(job)
        if keeper is None:
            return unknown(job)
        try:
            return await act(keeper)
        except ShoalError as error:
            keeper.refuse(error.code, error.message, STRANGER)
            return problem(error)
        except ClientDisconnect:
            return problem(Unreachable("the connection broke", code="body.short"))

    @app.get("/p2p")
    async def about() -> Response:
        """Who listens here, and the jobs that it takes part in; no secret."""
        return JSONResponse({"peer_id": home.peer_id, "jobs": list(home.jobs())})

    @app.get("/p2p/{job}/charter")
    async def charter(job: str) -> Response:
        """Whose word counts in this job; no secret."""
        keeper = home.find(job)
        return unknown(job) if keeper is None else JSONResponse(asdict(keeper.papers.charter))

    @app.post("/p2p/{job}/mode", status_code=204)
    async def mode(job: str, request: Request) -> Response:
        """An operator's signed word on how the job runs; anybody may bring it."""
        return await minded(job, partial(_decree, request))

    @app.post("/p2p/{job}/enter")
    async def enter(job: str, request: Request) -> Response:
        """A newcomer, whom a certificate lets in without the coordinator."""
        return await minded(job, partial(_enter, request))

    _take_newcomers(app, minded)

    @app.get("/p2p/{job}/checkpoint")
    async def checkpoint(job: str, request: Request) -> Response:
        """What this node has kept of the job."""
        return await minded(job, partial(_offer, request))

    @app.get("/p2p/{job}/checkpoint/{digest}")
    async def model(job: str, digest: str, request: Request) -> Response:
        """A model that it has kept."""
        return await minded(job, partial(_model, request, digest))


def _take_newcomers(app: FastAPI, minded: Minded) -> None:
    """Serve the routes by which rosters grow and spread."""

    @app.post("/p2p/{job}/join")
    async def join(job: str, request: Request) -> Response:
        """A newcomer, whom an invitation lets in."""
        return await minded(job, partial(_join, request))

    @app.get("/p2p/{job}/roster")
    async def roster(job: str, request: Request, newer: int = 0) -> Response:
        """The roster, for members."""
        return await minded(job, partial(_roster, request, newer))


async def _decree(request: Request, keeper: Keeper) -> Response:
    await keeper.decree(await _word(request, ModeRecord.BYTES_MAX))
    return Response(status_code=204)


async def _enter(request: Request, keeper: Keeper) -> Response:
    roster = await keeper.enter(_signed(request), await _word(request, ENTRY_BYTES_MAX))
    return Response(roster, media_type="application/json")


async def _join(request: Request, keeper: Keeper) -> Response:
    papers = await _rosters_of(keeper).join(_signed(request), await _word(request, JOIN_BYTES_MAX))
    return Response(papers, media_type="application/json")


async def _roster(request: Request, newer: int, keeper: Keeper) -> Response:
    rosters = _rosters_of(keeper)
    with keeper.gate_lock:
        claim = keeper.gate.examine(_signed(request), wall_s())
        keeper.gate.admit(claim, sha256(b""), wall_s())
    exchange = request.scope[EXCHANGE]
    exchange.peer, exchange.ledger = claim.node, keeper.ledger
    found = rosters.newer(newer)
    return Response(found, 200 if found else 204, media_type="application/json")


def _rosters_of(keeper: Keeper) -> Rosters:
    if keeper.rosters is None:
        hint = "its coordinator admits nodes: shoal join URL --token TOKEN"
        raise Refused("a coordinator keeps the roster of this job", code="peer.coordinated", hint=hint)
    return keeper.rosters


async def _word(request: Request, most: int) -> bytes:
    """What is short, whoever sends it."""
    if int(request.headers.get("content-length", "0")) > most:
        raise Refused(f"a word has at most {most} bytes", code="body.too-large", hint="send a record")
    return await request.body()


def _signed(request: Request) -> Signed:
    """What the head of a request claims."""
    scope: dict[str, Any] = request.scope  # type: ignore[assignment]
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
    return read_request(scope["method"], path.partition("?")[0], query, headers)


async def _offer(request: Request, keeper: Keeper) -> Response:
    return Response(await in_thread(_let_in(request, keeper).offer), media_type="application/json")


async def _model(request: Request, digest: str, keeper: Keeper) -> Response:
    kept = _let_in(request, keeper)
    source = await in_thread(partial(kept.model, digest))

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(source), PIECE_BYTES):
            yield await in_thread(partial(source.__getitem__, slice(start, start + PIECE_BYTES)))

    headers = {"Content-Length": str(len(source))}
    return StreamingResponse(pieces(), 200, headers, "application/octet-stream")


def _let_in(request: Request, keeper: Keeper) -> Kept:
    """What is kept, for the holder of the coordinator's key, whose request is used up with this."""
    signed = _signed(request)
    with keeper.gate_lock:
        claim = keeper.gate.examine(signed, wall_s())
        if claim.node != HUB:
            raise refusal("trust.signer", f"{claim.node} may not ask for what is kept for the coordinator")
        keeper.gate.admit(claim, sha256(b""), wall_s())
    if keeper.kept is None:
        hint = "a job that never had a coordinator has nothing to be rebuilt"
        raise Refused("nothing is kept here for a coordinator", code="restore.nothing", hint=hint)
    return keeper.kept
