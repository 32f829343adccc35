"""The peers behind one listener, as its routes need them, and the answers that all routes share."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from shoal.core.errors import InvalidPayload, NotAllowed, Refused, ShoalError, StorageFailed, Unreachable
from shoal.core.protocol.peer_message import PeerMessage
from shoal.peering.http.message_receiver import ExpectedModel, MessageReceiver
from shoal.peering.http.peer_link import OutgoingMessage
from shoal.peering.http.relay_server import RelayServer
from shoal.peering.http.roster_updates import RosterSync
from shoal.peering.state.byte_counts import STRANGER, ByteCounts
from shoal.peering.state.peer_state import PeerDocuments
from shoal.runtime.durable_files import FileSource
from shoal.runtime.http.server import problem_documents
from shoal.runtime.http.server.body_limits import STATUS
from shoal.runtime.http.server.exchange import SCOPE_KEY
from shoal.trust.envelope import SignedRequest as Signed
from shoal.trust.envelope import Signer, read_request
from shoal.trust.request_verifier import RequestVerifier

_STATUS: tuple[tuple[type[ShoalError], int], ...] = (
    (InvalidPayload, 422),
    (NotAllowed, 403),
    (Refused, 409),
    (StorageFailed, 507),
    (Unreachable, 400),
)
_CODES = {
    **STATUS,
    "relay.none": 404,
    "relay.path": 404,
    "relay.budget": 429,
    "relay.busy": 429,
    "relay.unreachable": 502,
    "relay.no-way": 503,
}

DISCONNECTED = Unreachable("the connection broke", code="body.short")


class CheckpointSource(Protocol):
    """The checkpoints of one job that a node keeps. Blocks; raises `ShoalError`."""

    def offer(self) -> bytes:
        """Return an offer (`shoal.recovery.checkpoint`) as JSON."""
        ...

    def model(self, digest: str) -> FileSource:
        """Return the model of that SHA-256 if it belongs to the offer."""
        ...


class MessagePoster(Protocol):
    """A sender of messages that an answer has no room for."""

    def post(self, to: str, messages: Sequence[OutgoingMessage]) -> None:
        """Send to a peer in the background."""
        ...


class HostedPeer(Protocol):
    """A peer of one job, behind this listener."""

    expected_model: ExpectedModel
    verifier: RequestVerifier
    verifier_lock: threading.Lock
    signer: Signer
    byte_counts: ByteCounts

    @property
    def relay(self) -> RelayServer | None:
        """Return the relay to the coordinator, if there is one."""
        ...

    @property
    def documents(self) -> PeerDocuments: ...

    def record_refusal(self, code: str, why: str, sender: str) -> None:
        """Count a refused input of that sender."""
        ...

    async def handle_messages(
        self, messages: Sequence[PeerMessage], receiver: MessageReceiver
    ) -> list[OutgoingMessage]:
        """Handle the messages of a peer; return the answers."""
        ...

    @property
    def router(self) -> MessagePoster: ...

    def status(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        ...

    async def force_mode(self, sealed: bytes) -> None:
        """Apply an operator's signed mode record. Raises `NotAllowed`, `Refused`."""
        ...

    async def admit_by_certificate(self, request: Signed, text: bytes) -> bytes:
        """Admit a newcomer by its certificate; return the signed roster. Raises `NotAllowed`, `Refused`."""
        ...

    @property
    def checkpoints(self) -> CheckpointSource | None:
        """Return the checkpoints kept for a coordinator that loses its disk."""
        ...

    @property
    def roster_sync(self) -> RosterSync | None:
        """Return the roster synchronization of a job without a coordinator."""
        ...


@dataclass(frozen=True)
class HostedJobs:
    """The peers behind one listener."""

    find: Callable[[str], HostedPeer | None]
    """The peer of the job of that name, if there is one here."""
    stranger_bytes: ByteCounts
    """Bytes of unauthenticated requests."""
    record_refusal: Callable[[str, str, str], None]
    """Code, reason and sender of what was refused, and concerns none of them."""
    peer_id: str = ""
    jobs: Callable[[], Sequence[str]] = tuple


def problem(error: ShoalError) -> Response:
    """Return an error as a problem document (RFC 9457)."""
    status = _CODES.get(error.code) or next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    pause_s = getattr(error, "retry_after_s", 0.0)
    return problem_documents.problem(status, error.message, error.code, error.hint, retry_after_s=pause_s)


def unknown_job(hosted: HostedJobs, job: str) -> Response:
    """Return the answer for a path of an unknown job, and count it."""
    hint = "check the address; the node may not have joined the job yet, or may have left it"
    error = Refused(f"no job {job[:70]!r} here", code="path.unknown", hint=hint)
    hosted.record_refusal(error.code, error.message, STRANGER)
    return problem(error)


async def answer(
    hosted: HostedJobs, job: str, request: Request, act: Callable[[HostedPeer], Awaitable[Response]]
) -> Response:
    """Return the answer of the peer of a job; its refusals are counted and become problems."""
    peer = hosted.find(job)
    if peer is None:
        return unknown_job(hosted, job)
    try:
        return await act(peer)
    except ShoalError as error:
        peer.record_refusal(error.code, error.message, request.scope[SCOPE_KEY].peer)
        return problem(error)
    except ClientDisconnect:
        return problem(DISCONNECTED)


def signed_headers(request: Request) -> Signed:
    """Return the signed headers of a request, unverified."""
    scope: dict[str, Any] = request.scope  # type: ignore[assignment]
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
    return read_request(scope["method"], path.partition("?")[0], query, headers)
