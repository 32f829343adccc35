"""What a node says to the coordinator through another, when its own way there is broken; and what it is answered.

    POST /api/v1/jobs/JOB/relay?term=TERM       the `Shoal-*` headers of the node that says it (`shoal.trust.envelope`),
                                                Authorization of the one that carries it

The body is a letter (`shoal.peer_wire`) with one Relay, then the body that a Report names, if any: at most 256 KiB. As
always `Shoal-Digest` is the SHA-256 of the letter's head. The answer is a frame (`shoal.wire`), or nothing, signed with
the coordinator's key and tied to the request. So whoever carries it can neither forge nor change what is said or
answered, only lose it.

A request is for one term of the coordinator: what was said in an earlier life of it cannot be played to the next. The
answer to one of another term is a Lease with the present one, and nothing else has happened: say it again, if it holds.
Longer bodies travel as ever, by their SHA-256, under headers of the same kind: `digest_of_body` says which digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal import peer_wire, strict_json, wire
from shoal.core.errors import InvalidPayload, Refused
from shoal.core.message import Message
from shoal.core.peer_message import Relay
from shoal.peer_wire import Letter
from shoal.trust.envelope import Request, Signer, check_answer, check_digest, read_answer, sha256
from shoal.trust.keys import peer_id_of


@dataclass(frozen=True)
class Carried:
    """A request in another's name: what its carrier sends on as it is."""

    request: Request
    content: bytes = b""


@dataclass(frozen=True)
class Said:
    """An answer as its carrier has got it."""

    status: int
    headers: Mapping[str, str]
    content: bytes


def path_of(job: str) -> str:
    """Where such requests go, as it stands on the request line. (Names of jobs need no percent signs.)"""
    return f"/api/v1/jobs/{job}/relay"


def seal(signer: Signer, node: str, term: int, message: Message, payload: bytes = b"", query: str = "") -> Carried:
    """What `node` says to the coordinator of that term, to be carried by anybody. `query`: what a Poll waits for."""
    charter = signer.charter
    hub = peer_id_of(charter.coordinator_pub)
    head = peer_wire.encode(Letter(charter.job, (Relay(node, message),)))
    request = signer.request(
        hub, "POST", path_of(charter.job), f"term={term}{'&' if query else ''}{query}", sha256(head)
    )
    return Carried(request, head + payload)


def seal_body(signer: Signer, method: str, digest: str) -> Carried:
    """A request for the body of that SHA-256 (GET), how much of it is there (HEAD), or with it (PUT)."""
    hub = peer_id_of(signer.charter.coordinator_pub)
    path = f"/api/v1/jobs/{signer.charter.job}/bodies/{digest}"
    return Carried(signer.request(hub, method, path, "", digest_of_body(method, digest)))


def digest_of_body(method: str, digest: str) -> str:
    """What such a request signs: the body that it brings, or none."""
    return digest if method == "PUT" else sha256(b"")


def verify(carried: Carried, said: Said, signer: Signer) -> None:
    """Raise `NotAllowed` or `Refused` (`trust.…`) unless the coordinator has given this answer to what was carried."""
    answer = read_answer(said.status, list(said.headers.items()))
    check_answer(answer, carried.request, signer.charter.coordinator_pub, signer.charter)
    check_digest(answer.digest, sha256(said.content))


def opened(carried: Carried, said: Said, signer: Signer) -> wire.Frame | None:
    """The coordinator's answer to what was carried; None for an empty one.

    Raises `Refused` for what it refuses, what `verify` raises, and `InvalidPayload` for what is no frame: then the
    carrier has changed it, and another may do better.
    """
    content = answered(carried, said, signer)
    return wire.decode(content) if content else None


def answered(carried: Carried, said: Said, signer: Signer) -> bytes:
    """The same, as bytes."""
    verify(carried, said, signer)
    if said.status >= 300:
        raise _refusal(said.content)
    return said.content


def _refusal(content: bytes) -> Refused:
    """What a problem document says."""
    try:
        found = strict_json.loads(content)
        return Refused(str(found["detail"])[:2000], code=str(found["code"])[:100], hint=str(found["hint"])[:2000])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidPayload("a refusal that gives no reason", code="head.json") from None
