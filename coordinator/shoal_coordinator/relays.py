"""Who speaks, where no credential says it: a node whose word is carried by another, or that has lost its credential.
It is known by its signature, and each word is taken once.

The coordinator itself signed the roster, so a member's key is looked up there. The numbers of requests are remembered
in memory alone: in another life the coordinator is of another term, and what was meant for this one is refused.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response

from shoal.core.errors import Refused
from shoal.trust.codes import refusal
from shoal.trust.envelope import Answer, check_digest, check_request, read_request, sha256
from shoal.trust.envelope import Request as Signed
from shoal.trust.keys import peer_id_of
from shoal.trust.window import Window
from shoal_coordinator.papers import Papers, Sealed

CARRIED_S = 60.0
"""So long after its last word a node counts as one that is relayed."""
MARK = "shoal-signature"
"""The header that tells a carried request from others."""


@dataclass(frozen=True)
class Claim:
    """A request that was in order when its head had come: `node` says this, if the body is the signed one."""

    node: str
    signed: Signed
    carrier: str = ""


class Relays:
    """What was carried for whom. Everything here belongs to the event loop."""

    def __init__(self, papers: Papers) -> None:
        self._papers = papers
        self._windows: dict[tuple[str, str], Window] = {}
        self._carried: dict[tuple[str, str], tuple[str, float]] = {}

    def examine(self, job: str, carrier: str, request: Request) -> Claim:
        """Everything that the request's head can show; changes nothing.

        Raises `Refused` (`relay.stranger`, `trust.head`, `trust.addressee`, `trust.job`) and `NotAllowed`
        (`trust.revoked`, `trust.stranger`, `trust.signature`, `trust.boot-old`, `trust.replayed`).
        """
        held = self._papers.held(job)
        if held is None or carrier not in self._papers.peers(job):
            hint = "say hello with a key, and poll for the job: then its roster names you"
            raise Refused(f"{carrier} is no peer in job {job}", code="relay.stranger", hint=hint)
        return self.claim(self.read(job, request), carrier)

    def read(self, job: str, request: Request) -> Signed:
        """What is said to this coordinator about a job; who has signed it is still to be seen.

        Raises `Refused` (`papers.none`, `trust.head`, `trust.addressee`, `trust.job`).
        """
        held = self._papers.held(job)
        if held is None:
            hint = "wait until the job has made version 0; and its file must allow gossip"
            raise Refused(f"nothing has been signed for job {job}", code="papers.none", hint=hint)
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.scope["headers"]]
        path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
        signed = read_request(request.method, path.partition("?")[0], query, headers)
        hub = peer_id_of(held.charter.coordinator_pub)
        if signed.to != hub:
            raise refusal("trust.addressee", f"for {signed.to}; this is {hub}")
        if signed.job != job:
            raise refusal("trust.job", f"about job {signed.job}; this is {job}")
        return signed

    def claim(self, signed: Signed, carrier: str = "") -> Claim:
        """Who says it, by the signature. Changes nothing. Raises `NotAllowed`, as `examine` does."""
        held = self._papers.held(signed.job)
        assert held is not None
        node = self._sender(held, signed)
        self._window(signed)
        return Claim(node, signed, carrier)

    def admit(self, claim: Claim, digest: str) -> str:
        """Take a request whose body is known to have this SHA-256, once; the node that says it.

        Raises `Refused` (`trust.digest`), and what `examine` raises: much may have happened while the body came.
        """
        check_digest(claim.signed.digest, digest)
        held = self._papers.held(claim.signed.job)
        assert held is not None
        node = self._sender(held, claim.signed)
        self._windows[claim.signed.job, claim.signed.sender] = self._window(claim.signed)
        if claim.carrier:
            self._carried[claim.signed.job, node] = claim.carrier, time.monotonic()
        return node

    def found(self, node: str) -> None:
        """The node has come by itself."""
        self._carried = {key: how for key, how in self._carried.items() if key[1] != node}

    def carrier(self, job: str, node: str) -> str | None:
        """Who carries what that node says now; None: it speaks for itself, or not at all."""
        carrier, at = self._carried.get((job, node), ("", -CARRIED_S))
        return carrier if time.monotonic() - at < CARRIED_S else None

    def _sender(self, held: Sealed, signed: Signed) -> str:
        if signed.sender in held.roster.revoked:
            raise refusal("trust.revoked", f"{signed.sender} has been revoked in job {signed.job}")
        peer = next((peer for peer in held.roster.peers if peer.peer_id == signed.sender), None)
        if peer is None:
            raise refusal("trust.stranger", f"{signed.sender} is not in job {signed.job}")
        check_request(signed, peer.pub, held.charter)
        return peer.node

    def _window(self, signed: Signed) -> Window:
        return self._windows.get((signed.job, signed.sender), Window()).after(signed.boot, signed.seq)

    async def sign(self, signed: Signed, answer: Response) -> Response:
        """An answer that is this coordinator's own, whoever brings it: signed, whatever it says."""
        held, key = self._papers.held(signed.job), await self._papers.key()
        assert held is not None
        bare = Answer(answer.status_code, key.peer_id, sha256(bytes(answer.body)))
        answer.headers.update(replace(bare, signature=key.sign(bare.lines(signed, held.charter))).headers())
        return answer
