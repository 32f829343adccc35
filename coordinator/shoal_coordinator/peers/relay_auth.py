"""Authentication without a credential: of a node whose requests are relayed, or that has lost its credential.

It is known by its signature, and each request is taken once. The coordinator itself signed the roster, so a node's key
is looked up there. The numbers of requests are kept in memory alone: in another incarnation the coordinator is of
another term, and requests for this one are refused.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response

from shoal.core.errors import Refused
from shoal.trust.codes import refusal
from shoal.trust.envelope import SignedAnswer, check_digest, check_request, read_request, sha256
from shoal.trust.envelope import SignedRequest as Signed
from shoal.trust.keys import peer_id_of
from shoal.trust.window import ReplayWindow
from shoal_coordinator.peers.trust_documents import SignedDocuments, TrustDocuments

RELAYED_S = 60.0
"""Seconds after its last relayed request for which a node counts as relayed."""
SIGNATURE_HEADER = "shoal-signature"
"""The header that only relayed and signed requests have."""


@dataclass(frozen=True)
class RelayClaim:
    """A request whose head is valid; it comes from `node` if its body is the signed one."""

    node: str
    signed: Signed
    relayed_by: str = ""


class RelayAuth:
    """Relayed requests by node. Use it in the event loop only."""

    def __init__(self, documents: TrustDocuments) -> None:
        self._documents = documents
        self._windows: dict[tuple[str, str], ReplayWindow] = {}
        self._relayed: dict[tuple[str, str], tuple[str, float]] = {}

    def verify_head(self, job: str, relay: str, request: Request) -> RelayClaim:
        """Check everything that the request's head can show. Changes nothing.

        Raises `Refused` (`relay.stranger`, `trust.head`, `trust.addressee`, `trust.job`) and `NotAllowed`
        (`trust.revoked`, `trust.stranger`, `trust.signature`, `trust.process-old`, `trust.replayed`).
        """
        documents = self._documents.current(job)
        if documents is None or relay not in self._documents.peers(job):
            hint = "join with a key, and poll for the job, so that its roster names you"
            raise Refused(f"{relay} is not a peer in job {job}", code="relay.stranger", hint=hint)
        return self.verify_sender(self.parse_head(job, request), relay)

    def parse_head(self, job: str, request: Request) -> Signed:
        """Parse the signed part of a request about a job; its signature is not verified yet.

        Raises `Refused` (`trust.none`, `trust.head`, `trust.addressee`, `trust.job`).
        """
        documents = self._documents.current(job)
        if documents is None:
            hint = "wait until the job has made version 0; and its file must allow gossip"
            raise Refused(f"nothing has been signed for job {job}", code="trust.none", hint=hint)
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.scope["headers"]]
        path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
        signed = read_request(request.method, path.partition("?")[0], query, headers)
        own_id = peer_id_of(documents.charter.coordinator_public_key)
        if signed.to != own_id:
            raise refusal("trust.addressee", f"for {signed.to}; this is {own_id}")
        if signed.job != job:
            raise refusal("trust.job", f"about job {signed.job}; this is {job}")
        return signed

    def verify_sender(self, signed: Signed, relay: str = "") -> RelayClaim:
        """Verify the sender by the signature. Changes nothing. Raises `NotAllowed` as `verify_head` does."""
        documents = self._documents.current(signed.job)
        assert documents is not None
        node = self._sender(documents, signed)
        self._window(signed)
        return RelayClaim(node, signed, relay)

    def accept(self, claim: RelayClaim, digest: str) -> str:
        """Accept a request whose body has this SHA-256, once, and return its node.

        Raises `Refused` (`trust.digest`), and what `verify_head` raises: the roster may have changed meanwhile.
        """
        check_digest(claim.signed.digest, digest)
        documents = self._documents.current(claim.signed.job)
        assert documents is not None
        node = self._sender(documents, claim.signed)
        self._windows[claim.signed.job, claim.signed.sender] = self._window(claim.signed)
        if claim.relayed_by:
            self._relayed[claim.signed.job, node] = claim.relayed_by, time.monotonic()
        return node

    def clear_relay(self, node: str) -> None:
        """Note that the node has sent a request without a relay."""
        self._relayed = {key: how for key, how in self._relayed.items() if key[1] != node}

    def relayed_by(self, job: str, node: str) -> str | None:
        """Return the relay that the node uses now; None if it uses none."""
        relay, at = self._relayed.get((job, node), ("", -RELAYED_S))
        return relay if time.monotonic() - at < RELAYED_S else None

    def _sender(self, documents: SignedDocuments, signed: Signed) -> str:
        if signed.sender in documents.roster.revoked_peer_ids:
            raise refusal("trust.revoked", f"{signed.sender} has been revoked in job {signed.job}")
        peer = next((peer for peer in documents.roster.peers if peer.peer_id == signed.sender), None)
        if peer is None:
            raise refusal("trust.stranger", f"{signed.sender} is not in job {signed.job}")
        check_request(signed, peer.public_key, documents.charter)
        return peer.node

    def _window(self, signed: Signed) -> ReplayWindow:
        return self._windows.get((signed.job, signed.sender), ReplayWindow()).after(signed.process_number, signed.seq)

    async def sign(self, signed: Signed, answer: Response) -> Response:
        """Sign an answer of this coordinator, so that a relay cannot change it."""
        documents, key = self._documents.current(signed.job), await self._documents.key()
        assert documents is not None
        bare = SignedAnswer(answer.status_code, key.peer_id, sha256(bytes(answer.body)))
        answer.headers.update(replace(bare, signature=key.sign(bare.lines(signed, documents.charter))).headers())
        return answer
