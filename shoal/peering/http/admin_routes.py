"""The routes of a peer for newcomers, operators and coordinators.

    GET  /p2p                              the peer id and the names of the jobs; public
    GET  /p2p/{job}/charter                the charter of a job; public
    POST /p2p/{job}/join-by-certificate                  admit a newcomer by its certificate; the answer is the roster
    POST /p2p/{job}/join                   admit a newcomer by an invitation; the answer is all trust documents
    GET  /p2p/{job}/roster?newer=N         the roster, for members; nothing if its version is not above N
    POST /p2p/{job}/mode                   apply a mode record signed by the operator
    GET  /p2p/{job}/checkpoint             an offer of checkpoints, for a coordinator that has lost its disk
    GET  /p2p/{job}/checkpoint/{sha256}    a model of that offer

The last two need a request signed by the coordinator's key, to this node; each counts once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from shoal.core.errors import Refused
from shoal.core.protocol.machine import HUB
from shoal.peering.http.hosted_peer import CheckpointSource, HostedJobs, HostedPeer, answer, signed_headers, unknown_job
from shoal.peering.http.peer_link import wall_s
from shoal.peering.http.roster_updates import RosterSync
from shoal.peering.roster.invitation import JOIN_BYTES_MAX
from shoal.peering.roster.join_certificate import ENTRY_BYTES_MAX
from shoal.runtime.http.server.exchange import SCOPE_KEY
from shoal.runtime.threads import in_thread
from shoal.trust.codes import refusal
from shoal.trust.documents import ModeRecord
from shoal.trust.envelope import sha256

PIECE_BYTES = 256 * 1024


def admin_routes(hosted: HostedJobs) -> list[Route]:
    """Return these routes."""

    async def about(_: Request) -> Response:
        """Return the peer id and the jobs of this listener; no authentication."""
        return JSONResponse({"peer_id": hosted.peer_id, "jobs": list(hosted.jobs())})

    async def charter(request: Request) -> Response:
        """Return the job's charter; no authentication."""
        job = request.path_params["job"]
        peer = hosted.find(job)
        return unknown_job(hosted, job) if peer is None else JSONResponse(asdict(peer.documents.charter))

    def guarded(path: str, act: Callable[[Request, HostedPeer], Awaitable[Response]], method: str = "GET") -> Route:
        """Return the route of an action; its refusals become problems."""

        async def answered(request: Request) -> Response:
            return await answer(hosted, request.path_params["job"], request, partial(act, request))

        return Route(path, answered, methods=[method])

    return [
        Route("/p2p", about),
        Route("/p2p/{job}/charter", charter),
        guarded("/p2p/{job}/mode", _force_mode, "POST"),
        guarded("/p2p/{job}/join-by-certificate", _enter, "POST"),
        guarded("/p2p/{job}/join", _join, "POST"),
        guarded("/p2p/{job}/roster", _roster),
        guarded("/p2p/{job}/checkpoint", _offer),
        guarded("/p2p/{job}/checkpoint/{digest}", _model),
    ]


async def _force_mode(request: Request, peer: HostedPeer) -> Response:
    await peer.force_mode(await _read_body(request, ModeRecord.BYTES_MAX))
    return Response(status_code=204)


async def _enter(request: Request, peer: HostedPeer) -> Response:
    roster = await peer.admit_by_certificate(signed_headers(request), await _read_body(request, ENTRY_BYTES_MAX))
    return Response(roster, media_type="application/json")


async def _join(request: Request, peer: HostedPeer) -> Response:
    documents = await _rosters_of(peer).join(signed_headers(request), await _read_body(request, JOIN_BYTES_MAX))
    return Response(documents, media_type="application/json")


async def _roster(request: Request, peer: HostedPeer) -> Response:
    newer = _version(request.query_params.get("newer", "0"))
    rosters = _rosters_of(peer)
    with peer.verifier_lock:
        claim = peer.verifier.examine(signed_headers(request), wall_s())
        peer.verifier.admit(claim, sha256(b""), wall_s())
    exchange = request.scope[SCOPE_KEY]
    exchange.peer, exchange.byte_counts = claim.node, peer.byte_counts
    found = rosters.newer_than(newer)
    return Response(found, 200 if found else 204, media_type="application/json")


def _version(text: str) -> int:
    """Return the version of a roster. Raises `Refused` for anything else."""
    if not text.isdecimal() or len(text) > 18:
        raise Refused(f"newer={text[:40]!r} is not a version", code="request.malformed", hint="give a whole number")
    return int(text)


def _rosters_of(peer: HostedPeer) -> RosterSync:
    if peer.roster_sync is None:
        hint = "its coordinator admits nodes: shoal join URL --token TOKEN"
        raise Refused("a coordinator keeps the roster of this job", code="peer.coordinated", hint=hint)
    return peer.roster_sync


async def _read_body(request: Request, most: int) -> bytes:
    """Return the body of a short request. Raises `Refused` for a longer one."""
    if int(request.headers.get("content-length", "0")) > most:
        raise Refused(f"the body has at most {most} bytes", code="body.too-large", hint="send a record")
    return await request.body()


async def _offer(request: Request, peer: HostedPeer) -> Response:
    return Response(await in_thread(_authorized_checkpoints(request, peer).offer), media_type="application/json")


async def _model(request: Request, peer: HostedPeer) -> Response:
    checkpoints = _authorized_checkpoints(request, peer)
    source = await in_thread(partial(checkpoints.model, request.path_params["digest"]))

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(source), PIECE_BYTES):
            yield await in_thread(partial(source.__getitem__, slice(start, start + PIECE_BYTES)))

    headers = {"Content-Length": str(len(source))}
    return StreamingResponse(pieces(), 200, headers, "application/octet-stream")


def _authorized_checkpoints(request: Request, peer: HostedPeer) -> CheckpointSource:
    """Return the checkpoints to a holder of the coordinator's key; the request number is used up."""
    signed = signed_headers(request)
    with peer.verifier_lock:
        claim = peer.verifier.examine(signed, wall_s())
        if claim.node != HUB:
            raise refusal("trust.signer", f"{claim.node} may not ask for what is kept for the coordinator")
        peer.verifier.admit(claim, sha256(b""), wall_s())
    if peer.checkpoints is None:
        hint = "a job that never had a coordinator cannot be restored"
        raise Refused("this peer keeps no checkpoint for a coordinator", code="restore.nothing", hint=hint)
    return peer.checkpoints
