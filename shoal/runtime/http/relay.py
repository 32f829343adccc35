"""Relayed requests of a node to the coordinator through a peer, and the responses.

    POST /api/v1/jobs/JOB/relay?term=TERM       the `Shoal-*` headers of the node that says it (`shoal.trust.envelope`),
                                                Authorization of the one that carries it

The body is a message batch (`shoal.wire.peer_codec`) with one RelayRequest, then the blob that a Report names, if any:
at most 256 KiB. As always `Shoal-Digest` is the SHA-256 of the batch's head. The answer is a frame
(`shoal.wire.codec`), or nothing, signed with the coordinator's key and tied to the request. So a relay can neither
forge nor change a request or an answer, only lose it.

A request is for one term of the coordinator: what was said in an earlier life of it cannot be played to the next. The
answer to one of another term is a Lease with the present one, and nothing else has happened: say it again, if it holds.
Longer bodies travel as ever, by their SHA-256, under headers of the same kind: `digest_of_body` says which digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.errors import InvalidPayload, Refused
from shoal.core.protocol.message import Message
from shoal.core.protocol.peer_message import RelayRequest
from shoal.runtime.http.client import ANY, Link
from shoal.trust.envelope import SignedRequest, Signer, check_answer, check_digest, read_answer, sha256
from shoal.trust.keys import peer_id_of
from shoal.validation import strict_json
from shoal.wire import codec, peer_codec
from shoal.wire.peer_codec import MessageBatch


@dataclass(frozen=True)
class RelayedRequest:
    """A request in another's name: what its carrier sends on as it is."""

    request: SignedRequest
    content: bytes = b""


@dataclass(frozen=True)
class RelayedAnswer:
    """An answer as its carrier has got it."""

    status: int
    headers: Mapping[str, str]
    content: bytes


def send(
    link: Link, carried: RelayedRequest, content_type: str = peer_codec.MEDIA_TYPE, read_s: float | None = None
) -> RelayedAnswer:
    """Send a request of this node through a peer, or one of another node to the coordinator; return the answer,
    whatever its status."""
    request = carried.request
    headers = {**request.headers(), "Content-Type": content_type}
    path = f"{request.path}?{request.query}"
    with link.exchange(
        request.method, path, headers=headers, content=carried.content, read_s=read_s, own=True, accept=ANY
    ) as answer:
        return RelayedAnswer(answer.status, dict(answer.headers), answer.read(codec.FRAME_BYTES_MAX))


def hub_request(
    signer: Signer, method: str, route: str, query: str, digest: str, content: bytes = b""
) -> RelayedRequest:
    """Return a signed request to the coordinator. `route`: its path below the job; job names need no escaping."""
    charter = signer.charter
    path, hub = f"/api/v1/jobs/{charter.job}/{route}", peer_id_of(charter.coordinator_public_key)
    return RelayedRequest(signer.request(hub, method, path, query, digest), content)


def seal(
    signer: Signer, node: str, term: int, message: Message, payload: bytes = b"", query: str = ""
) -> RelayedRequest:
    """Return a message of `node` to the coordinator of that term, signed. `query`: parameters of a poll."""
    head = peer_codec.encode(MessageBatch(signer.charter.job, (RelayRequest(node, message),)))
    query = f"term={term}{'&' if query else ''}{query}"
    return hub_request(signer, "POST", "relay", query, sha256(head), head + payload)


def seal_body(signer: Signer, method: str, digest: str) -> RelayedRequest:
    """Return a signed request for a blob: GET, HEAD or PUT."""
    return hub_request(signer, method, f"blobs/{digest}", "", digest_of_body(method, digest))


def digest_of_body(method: str, digest: str) -> str:
    """Return the digest that a request signs: of its blob, or of an empty body."""
    return digest if method == "PUT" else sha256(b"")


def verify(carried: RelayedRequest, answer: RelayedAnswer, signer: Signer) -> None:
    """Raise `NotAllowed` or `Refused` (`trust.…`) unless the coordinator signed this answer to the request."""
    signed = read_answer(answer.status, list(answer.headers.items()))
    check_answer(signed, carried.request, signer.charter.coordinator_public_key, signer.charter)
    check_digest(signed.digest, sha256(answer.content))


def opened(carried: RelayedRequest, answer: RelayedAnswer, signer: Signer) -> codec.Frame | None:
    """Return the coordinator's answer; None for an empty one.

    Raises `Refused` for a refusal, the errors of `verify`, and `InvalidPayload` for an invalid frame, which the carrier
    must have changed; another may do better.
    """
    content = answered(carried, answer, signer)
    return codec.decode(content) if content else None


def answered(carried: RelayedRequest, answer: RelayedAnswer, signer: Signer) -> bytes:
    """Verify an answer and return its content. Raises as `opened`."""
    verify(carried, answer, signer)
    if answer.status >= 300:
        raise _refusal(answer.content)
    return answer.content


def _refusal(content: bytes) -> Refused:
    """Return the error of a problem document."""
    try:
        found = strict_json.loads(content)
        return Refused(str(found["detail"])[:2000], code=str(found["code"])[:100], hint=str(found["hint"])[:2000])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidPayload("a refusal that gives no reason", code="head.json") from None
