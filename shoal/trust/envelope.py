"""A signed request and its signed answer: sender, receiver, job, and proof that nothing was changed.

    Shoal-From       peer id of the sender                    Shoal-Job     the job's name
    Shoal-To         peer id of the receiver                  Shoal-Process the number of its process, rising
    Shoal-Digest     SHA-256 of the body                      Shoal-Seq     which request of that process, rising
    Shoal-Signature  Ed25519, of these lines:

        shoal-request-1, the charter's digest, method, path, query, From, To, Job, Process, Seq, Digest

An answer has From, Digest and Signature, the last of these lines:

        shoal-answer-1, SHA-256 of the lines that the request's signature is of, status, From, Digest

so it is an answer to that one request. Path and query are as they stand on the request line, percent signs and all.
Nothing else is signed: no other header, and not the network address. Nothing is hidden: TLS does that.

RFC 9421 says how to sign parts of HTTP in general. It is not used: what it leaves open (numbers instead of clocks, the
receiver, the answer's tie to the request, bodies that are hashed while they arrive) is most of what is here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count

from shoal.trust.codes import refusal
from shoal.trust.documents import Charter
from shoal.trust.keys import PEER_ID, PROCESS_NUMBER_MAX, SIGNATURE, SigningKey, verifies
from shoal.validation.message_checks import NAME

LINE_MAX = 2048
NUMBER_MAX = 2**63 - 1
PREFIX = "shoal-"

_COUNT = r"[1-9][0-9]{0,18}"
_DIGEST = r"[0-9a-f]{64}"
_LINE = {
    "method": re.compile(r"[A-Z]{1,16}"),
    "path": re.compile(r"/[!-\"$->@-~]*"),  # printable, without # and ?
    "query": re.compile(r"[!-\"$-~]*"),
}
_FIELDS = {
    "from": re.compile(PEER_ID),
    "to": re.compile(PEER_ID),
    "job": NAME,
    "process": re.compile(_COUNT),
    "seq": re.compile(_COUNT),
    "digest": re.compile(_DIGEST),
    "signature": re.compile(SIGNATURE),
}
_ANSWER_FIELDS = {name: _FIELDS[name] for name in ("from", "digest", "signature")}

Headers = Iterable[tuple[str, str]]
"""Names and values in the order in which they came; a mapping would hide that one came twice."""


@dataclass(frozen=True)
class SignedRequest:
    """The signed part of a request."""

    method: str
    path: str
    query: str
    sender: str
    to: str
    job: str
    process_number: int
    seq: int
    digest: str
    signature: str = ""

    def lines(self, charter: Charter) -> bytes:
        """Return the bytes that are signed."""
        numbers = (str(self.process_number), str(self.seq))
        fields = (self.method, self.path, self.query, self.sender, self.to, self.job, *numbers, self.digest)
        return "\n".join(("shoal-request-1", charter.digest, *fields)).encode("ascii")

    def headers(self) -> dict[str, str]:
        return {
            "Shoal-From": self.sender,
            "Shoal-To": self.to,
            "Shoal-Job": self.job,
            "Shoal-Process": str(self.process_number),
            "Shoal-Seq": str(self.seq),
            "Shoal-Digest": self.digest,
            "Shoal-Signature": self.signature,
        }


@dataclass(frozen=True)
class SignedAnswer:
    """The signed part of an answer."""

    status: int
    sender: str
    digest: str
    signature: str = ""

    def lines(self, request: SignedRequest, charter: Charter) -> bytes:
        """Return the bytes that are signed."""
        asked = sha256(request.lines(charter))
        return "\n".join(("shoal-answer-1", asked, str(self.status), self.sender, self.digest)).encode("ascii")

    def headers(self) -> dict[str, str]:
        return {"Shoal-From": self.sender, "Shoal-Digest": self.digest, "Shoal-Signature": self.signature}


class Signer:
    """Signer of one process's requests in one job. `process_number`: from `keys.next_process_number`."""

    def __init__(self, key: SigningKey, charter: Charter, process_number: int) -> None:
        assert 1 <= process_number <= PROCESS_NUMBER_MAX, process_number
        self.key, self.charter, self.process_number = key, charter, process_number
        self._next = count(1)

    def request(self, to: str, method: str, path: str, query: str, digest: str) -> SignedRequest:
        """Return the next signed request. Sign each repetition again. Any thread may call.

        Raises `Refused` (`trust.head`) for a path or query that must be percent-encoded first.
        """
        _check_line(method, path, query)
        job, number, seq = self.charter.job, self.process_number, next(self._next)
        bare = SignedRequest(method, path, query, self.key.peer_id, to, job, number, seq, digest)
        return replace(bare, signature=self.key.sign(bare.lines(self.charter)))

    def answer(self, request: SignedRequest, status: int, digest: str) -> SignedAnswer:
        """Return the signed answer to a request, also to a refused one."""
        bare = SignedAnswer(status, self.key.peer_id, digest)
        return replace(bare, signature=self.key.sign(bare.lines(request, self.charter)))


def sha256(body: bytes) -> str:
    """Return the digest of bytes in memory."""
    return hashlib.sha256(body).hexdigest()


def read_request(method: str, path: str, query: str, headers: Headers) -> SignedRequest:
    """Parse the signed headers of a request, unverified. Raises `Refused`: `trust.head`."""
    _check_line(method, path, query)
    found = _fields(headers, _FIELDS)
    process, seq = int(found["process"]), int(found["seq"])
    if max(process, seq) > NUMBER_MAX:
        raise refusal("trust.head", f"Shoal-Process and Shoal-Seq are at most {NUMBER_MAX}")
    return SignedRequest(
        method, path, query, found["from"], found["to"], found["job"], process, seq, found["digest"], found["signature"]
    )


def read_answer(status: int, headers: Headers) -> SignedAnswer:
    """Parse the signed headers of an answer, unverified. Raises `Refused`: `trust.head`."""
    found = _fields(headers, _ANSWER_FIELDS)
    return SignedAnswer(status, found["from"], found["digest"], found["signature"])


def check_request(request: SignedRequest, public_key: str, charter: Charter) -> None:
    """Raise `NotAllowed` (`trust.signature`) unless the owner of that public key has signed this request."""
    if not verifies(public_key, request.signature, request.lines(charter)):
        raise refusal("trust.signature", f"{request.sender} has not signed this request")


def check_answer(answer: SignedAnswer, request: SignedRequest, public_key: str, charter: Charter) -> None:
    """Raise `NotAllowed` (`trust.signature`) unless the owner of that public key gave this answer to that request."""
    if not verifies(public_key, answer.signature, answer.lines(request, charter)):
        raise refusal("trust.signature", f"{answer.sender} has not given this answer to this request")


def check_digest(signed: str, found: str) -> None:
    """Raise `Refused` (`trust.digest`) unless the received body is the signed one."""
    if found != signed:
        raise refusal("trust.digest", f"a body of SHA-256 {found[:16]}…; {signed[:16]}… was signed")


def _check_line(method: str, path: str, query: str) -> None:
    for name, value in (("method", method), ("path", path), ("query", query)):
        if len(value) > LINE_MAX or not _LINE[name].fullmatch(value):
            raise refusal("trust.head", f"{value[:40]!r} is not a {name} as it stands on a request line")


def _fields(headers: Headers, wanted: dict[str, re.Pattern[str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for header, value in headers:
        name = header.lower().removeprefix(PREFIX)
        if not header.lower().startswith(PREFIX) or name not in wanted:
            continue
        if name in found:
            raise refusal("trust.head", f"Shoal-{name.title()} stands twice")
        if not wanted[name].fullmatch(value):
            raise refusal("trust.head", f"Shoal-{name.title()}: {value[:40]!r} is malformed")
        found[name] = value
    missing = [name for name in wanted if name not in found]
    if missing:
        raise refusal("trust.head", f"Shoal-{missing[0].title()} is missing")
    return found
