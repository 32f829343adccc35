"""Who speaks, when a node's word is carried by another: known by its signature, and taken once.

The coordinator itself signed the roster, so a member's key is looked up there. The numbers of requests are remembered
in memory alone: in another life the coordinator is of another term, and what was meant for this one is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from coordinator.papers import Papers, Sealed
from shoal.core.errors import Refused
from shoal.trust.codes import refusal
from shoal.trust.envelope import Answer, check_digest, check_request, read_request
from shoal.trust.envelope import Request as Signed
from shoal.trust.keys import Key, peer_id_of
from shoal.trust.papers import Charter
from shoal.trust.window import Window

MARK = "shoal-signature"
"""The header that tells a carried request from others."""


@dataclass(frozen=True)
class Claim:
    """A request that was in order when its head had come: `node` says this, if the body is the signed one."""

    node: str
    signed: Signed


class Relays:
    """What was carried for whom. Everything here belongs to the event loop."""

    def __init__(self, papers: Papers) -> None:
        self._papers = papers
        self._windows: dict[tuple[str, str], Window] = {}

    def examine(self, job: str, carrier: str, request: Request) -> Claim:
        """Everything that the request's head can show; changes nothing.

        Raises `Refused` (`relay.stranger`, `trust.head`, `trust.addressee`, `trust.job`) and `NotAllowed`
        (`trust.revoked`, `trust.stranger`, `trust.signature`, `trust.boot-old`, `trust.replayed`).
        """
        held = self._papers.held(job)
        if held is None or carrier not in self._papers.peers(job):
            hint = "say hello with a key, and poll for the job: then its roster names you"
            raise Refused(f"{carrier} is no peer in job {job}", code="relay.stranger", hint=hint)
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.scope["headers"]]
        path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
        signed = read_request(request.method, path.partition("?")[0], query, headers)
        hub = peer_id_of(held.charter.coordinator_pub)
        if signed.to != hub:
            raise refusal("trust.addressee", f"for {signed.to}; this is {hub}")
        if signed.job != job:
            raise refusal("trust.job", f"about job {signed.job}; this is {job}")
        node = self._sender(held, signed)
        self._window(signed)
        return Claim(node, signed)

    def admit(self, claim: Claim, digest: str) -> str:
        """Take a request whose body is known to have this SHA-256, once; the node that says it.

        Raises `Refused` (`trust.digest`), and what `examine` raises: much may have happened while the body came.
        """
        check_digest(claim.signed.digest, digest)
        held = self._papers.held(claim.signed.job)
        assert held is not None
        node = self._sender(held, claim.signed)
        self._windows[claim.signed.job, claim.signed.sender] = self._window(claim.signed)
        return node

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


def answer_headers(claim: Claim, charter: Charter, key: Key, status: int, digest: str) -> dict[str, str]:
    """What makes an answer the coordinator's own, whoever brings it."""
    bare = Answer(status, key.peer_id, digest)
    return Answer(status, key.peer_id, digest, key.sign(bare.lines(claim.signed, charter))).headers()
