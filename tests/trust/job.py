"""A job with three peers, a newcomer and a stranger, whose keys are always the same."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shoal.trust.documents import (
    Charter,
    Document,
    Invitation,
    JoinCert,
    Manifest,
    ModeRecord,
    Roster,
    RosterEntry,
    sign_document,
)
from shoal.trust.envelope import SignedRequest, Signer, read_request, sha256
from shoal.trust.keys import SigningKey
from shoal.trust.request_verifier import RequestVerifier

NOW = 1_800_000_000
DAY = 86_400
SHA = "0123456789abcdef" * 4
BODY = b"a model"


@cache
def key(name: str) -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest()))


CHARTER = Charter(
    "digits", SHA, SHA, key("coordinator").public_key, key("operator").public_key, {"quorum": "any", "peers": 2}
)


def peer(name: str, node: str = "") -> RosterEntry:
    mine = key(name)
    return RosterEntry(node or name, mine.peer_id, mine.public_key, (f"http://10.0.0.1:80/{name}",), True, 100)


def roster(version: int = 1, names: str = "abc", revoked: str = "") -> Roster:
    out = tuple(sorted(key(name).peer_id for name in revoked))
    return Roster("digits", version, tuple(peer(name) for name in names), out)


def cert(name: str = "d", node: str = "", not_after: int = NOW + DAY) -> JoinCert:
    return JoinCert("digits", node or name, key(name).peer_id, key(name).public_key, 500, not_after)


def mode(term: int = 3, seq: int = 1, **more: Any) -> ModeRecord:
    found = ModeRecord("digits", term, seq, "gossip", 7, SHA, "the coordinator is silent", "coordinator")
    return replace(found, **more)


def documents() -> list[Document]:
    """One of each type, and a mode record of either signer."""
    manifest = Manifest("digits", 3, 7, SHA, (SHA, SHA[::-1]), 12)
    invitation = Invitation("digits", "0f" * 16, 3, 500, NOW + DAY)
    modes = [mode(), mode(signer="operator", why="«ja»")]
    return [CHARTER, cert(), roster(revoked="e"), invitation, *modes, manifest]


def sealed(document: Document, charter: Charter = CHARTER) -> bytes:
    operators = isinstance(document, Charter | Invitation) or (
        isinstance(document, ModeRecord) and document.signer == "operator"
    )
    return sign_document(document, key("operator" if operators else "coordinator"), charter)


def gate(name: str = "a", **more: Any) -> RequestVerifier:
    """A peer's request verifier that holds the roster."""
    found = RequestVerifier(CHARTER, key(name).peer_id)
    found.update_roster(sealed(roster(**more)))
    return found


def signer(name: str = "b", process_number: int = 1, charter: Charter = CHARTER) -> Signer:
    return Signer(key(name), charter, process_number)


def ask(said: Signer, to: str = "a", body: bytes = BODY) -> SignedRequest:
    return said.request(key(to).peer_id, "PUT", "/p2p/x/b.1.7", "slot=1&q=%20", sha256(body))


def arrived(request: SignedRequest) -> SignedRequest:
    """The same request after its way through text."""
    return read_request(request.method, request.path, request.query, request.headers().items())


def come(keeper: RequestVerifier, request: SignedRequest, body: bytes = BODY, wall_s: int = NOW) -> str:
    """The whole way in."""
    return keeper.admit(keeper.examine(arrived(request), wall_s), sha256(body), wall_s)
