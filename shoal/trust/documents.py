"""Trust documents: signed by the coordinator or the operator of a job, verified offline with the job's charter.

    document     signed by                 content
    Charter      operator                  the job, its configuration and model, the trusted keys, its policy
    JoinCert     coordinator               admits a node's key until a given time
    Roster       coordinator               the members and the revoked keys
    Invitation   operator                  permission to add keys to the roster
    ModeRecord   coordinator or operator   the mode of the job: server or gossip
    Manifest     coordinator               an official model version and its parents

A document travels as canonical JSON (sorted keys, no spaces, ASCII, no floats):

    {"document":{…},"signature":"…","type":"roster"}

The signature covers four lines: `shoal-document-1`, the type, the SHA-256 of the charter's canonical JSON (for the
charter itself: `root`) and the document's canonical JSON. A document is therefore invalid as another type or for an
earlier job of the same name. The charter is the root of trust: it must arrive over a trusted channel, and
never changes.

`not_after`, of a `JoinCert` and an `Invitation`, is the only wall-clock time, compared with the verifier's own clock.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import Field, ValidationError

from shoal.core.model.tree import Tree
from shoal.core.protocol.machine import HUB
from shoal.trust.codes import refusal
from shoal.trust.keys import PEER_ID, PUBLIC, SIGNATURE, SigningKey, peer_id_of, verifies
from shoal.validation import strict_json
from shoal.validation.validators import validator_of

PEERS_MAX = 4096
REVOKED_MAX = 16_384
CLOCK_SLACK_S = 86_400
"""Tolerance for expired certificates: a verifier whose clock is up to a day ahead refuses no valid certificate, and one
whose clock is a day behind accepts certificates for at most two days too long."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Sha = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
PublicKey = Annotated[str, Field(pattern=f"^{PUBLIC}$")]
PeerId = Annotated[str, Field(pattern=f"^{PEER_ID}$")]
Whole = Annotated[int, Field(ge=0, le=2**53)]
Url = Annotated[str, Field(pattern=r"^https?://[!-~]{1,200}$")]
Text = Annotated[str, Field(max_length=200)]
Mode = Literal["gossip", "server"]


@dataclass(frozen=True)
class Charter:
    """The root of a job's trust. A changed charter is another job."""

    TYPE: ClassVar = "charter"
    BYTES_MAX: ClassVar = 256 * 1024

    job: Name
    config_sha: Sha
    """SHA-256 of the job's configuration."""
    schema_sha: Sha
    """SHA-256 of the model's header: names, types, shapes."""
    coordinator_public_key: PublicKey
    operator_public_key: PublicKey
    policy: Annotated[dict[Name, Text | Whole | bool], Field(max_length=64)] = field(default_factory=dict)
    """The operator's settings for the time without a server."""

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 that identifies this charter."""
        return hashlib.sha256(canonical(asdict(self))).hexdigest()


@dataclass(frozen=True)
class JoinCert:
    """Admission of a node while no coordinator answers."""

    TYPE: ClassVar = "joincert"
    BYTES_MAX: ClassVar = 4 * 1024

    job: Name
    node: Name
    peer_id: PeerId
    public_key: PublicKey
    examples_max: Whole
    """The greatest weight that the node may claim."""
    not_after: Whole
    """Seconds since 1970, UTC."""

    def expired(self, wall_s: int) -> bool:
        """Return whether it has expired by this machine's clock, with `CLOCK_SLACK_S`."""
        return wall_s > self.not_after + CLOCK_SLACK_S


@dataclass(frozen=True)
class RosterEntry:
    """A member of the roster."""

    node: Name
    peer_id: PeerId
    public_key: PublicKey
    urls: Annotated[tuple[Url, ...], Field(max_length=4)]
    is_reachable: bool
    """True if other peers can connect to it; otherwise it connects to them."""
    examples: Whole
    """Its weight."""


@dataclass(frozen=True)
class Roster:
    """The members by name, and the revoked keys (at least until their last certificate has expired)."""

    TYPE: ClassVar = "roster"
    BYTES_MAX: ClassVar = 8 * 1024 * 1024

    job: Name
    version: Whole
    peers: Annotated[tuple[RosterEntry, ...], Field(max_length=PEERS_MAX)]
    revoked_peer_ids: Annotated[tuple[PeerId, ...], Field(max_length=REVOKED_MAX)] = ()


@dataclass(frozen=True)
class Invitation:
    """Permission for its holders to add up to `uses` keys to the roster, until `not_after`."""

    TYPE: ClassVar = "invitation"
    BYTES_MAX: ClassVar = 4 * 1024

    job: Name
    serial: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Identifies this invitation; its uses are counted under it."""
    uses: Annotated[int, Field(ge=1, le=PEERS_MAX)]
    examples_max: Whole
    """The greatest weight that a newcomer may claim; 0: any."""
    not_after: Whole
    """Seconds since 1970, UTC, by the clock of the peer that admits."""


@dataclass(frozen=True)
class ModeRecord:
    """The mode of the job from now on. The record with the higher (term, seq) is valid."""

    TYPE: ClassVar = "moderecord"
    BYTES_MAX: ClassVar = 4 * 1024

    job: Name
    term: Whole
    seq: Whole
    mode: Mode
    base_version: Whole
    base_sha256: Sha
    why: Text
    signer: Literal["coordinator", "operator"]


@dataclass(frozen=True)
class Manifest:
    """An official model version, identified by (term, version, model_sha256)."""

    TYPE: ClassVar = "manifest"
    BYTES_MAX: ClassVar = 512 * 1024

    job: Name
    term: Whole
    version: Whole
    model_sha256: Sha
    parents: Annotated[tuple[Sha, ...], Field(max_length=PEERS_MAX)]
    """SHA-256 of the models from which it was made."""
    round: Whole


Document = Charter | JoinCert | Roster | Invitation | ModeRecord | Manifest
P = TypeVar("P", bound=Document)
Ranked = Roster | ModeRecord
KINDS: dict[str, type[Document]] = {kind.TYPE: kind for kind in get_args(Document)}

SIGNED_BY = {
    kind.TYPE: "operator"
    if kind in (Charter, Invitation)
    else "coordinator or operator"
    if kind is ModeRecord
    else "coordinator"
    for kind in KINDS.values()
}


def canonical(values: Any) -> bytes:
    """Return the canonical JSON text of values."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def config_sha(spec: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a job's configuration. `spec`: the coordinator's view of it, as JSON values."""
    return hashlib.sha256(canonical(spec)).hexdigest()


def schema_sha(model: Tree) -> str:
    """Return the SHA-256 of a model's layout: names, types and shapes."""
    return hashlib.sha256(model.layout.header).hexdigest()


# Signing and reading


def sign_document(document: Document, key: SigningKey, charter: Charter) -> bytes:
    """Return a signed document. Raises `trust.signer` for a key that may not sign it."""
    body = canonical(asdict(document))
    if key.public_key != _signer(document, charter):
        raise refusal("trust.signer", f"{key.public_key} may not sign a {document.TYPE} of {charter.job}")
    signature = key.sign(_signed(document, charter, body))
    data = canonical({"document": asdict(document), "signature": signature, "type": document.TYPE})
    verify_document(data, type(document), charter)
    return data


def verify_document(data: bytes, kind: type[P], charter: Charter) -> P:
    """Return the document in these bytes, of this kind and job, with a valid signature of its issuer.

    Raises `Refused` (`trust.too-large`, `trust.document`, `trust.job`) or `NotAllowed` (`trust.signature`).
    """
    document, signature, body = _read(data, kind)
    if document.job != charter.job:
        raise refusal("trust.job", f"a {kind.TYPE} of job {document.job}; this is {charter.job}")
    if not verifies(_signer(document, charter), signature, _signed(document, charter, body)):
        raise refusal("trust.signature", f"no key that {charter.job} trusts has signed this {kind.TYPE}")
    return document


def open_charter(data: bytes) -> Charter:
    """Return a charter whose signature is valid. The caller must check that its signer is the right operator."""
    charter, _, _ = _read(data, Charter)
    return verify_document(data, Charter, charter)


def charter_of(values: Any) -> Charter:
    """Return a charter that a peer shows, without its signature. Raises `Refused` for a malformed one."""
    try:
        found = validator_of(Charter).validate_json(canonical(values), strict=True, extra="forbid")
    except (ValidationError, ValueError, TypeError) as error:
        raise refusal("trust.document", f"no charter: {str(error).splitlines()[0][:200]}") from None
    return found


def _signer(document: Document, charter: Charter) -> str:
    if isinstance(document, Charter | Invitation) or (
        isinstance(document, ModeRecord) and document.signer == "operator"
    ):
        return charter.operator_public_key
    return charter.coordinator_public_key


def _signed(document: Document, charter: Charter, body: bytes) -> bytes:
    root = "root" if isinstance(document, Charter) else charter.digest
    return f"shoal-document-1\n{document.TYPE}\n{root}\n".encode() + body


def _read(data: bytes, kind: type[P]) -> tuple[P, str, bytes]:
    """Return the document, its unverified signature, and its canonical JSON."""
    if len(data) > kind.BYTES_MAX:
        raise refusal("trust.too-large", f"a {kind.TYPE} of {len(data)} bytes; at most {kind.BYTES_MAX}")
    try:
        values = strict_json.loads(data)
        body = canonical(values["document"]) if isinstance(values, dict) and "document" in values else b""
    except (ValueError, RecursionError) as error:
        raise refusal("trust.document", f"a {kind.TYPE} that is not strict JSON: {str(error)[:200]}") from None
    if not body or values.keys() != {"document", "signature", "type"}:
        raise refusal("trust.document", f"a {kind.TYPE} has the fields document, signature and type")
    named, signature = values["type"], values["signature"]
    if named != kind.TYPE:
        other = named if isinstance(named, str) and named in KINDS else "document of no known type"
        raise refusal("trust.document", f"a {kind.TYPE} was expected, not a {other}")
    if not isinstance(signature, str) or not re.fullmatch(SIGNATURE, signature):
        raise refusal("trust.document", f"{kind.TYPE}: the signature is not 128 hexadecimal digits")
    try:
        document = validator_of(kind).validate_json(body, strict=True, extra="forbid")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "document"
        raise refusal("trust.document", f"{kind.TYPE}: {where[:100]}: {first['msg'][:200]}") from None
    if canonical({"document": asdict(document), "signature": signature, "type": kind.TYPE}) != data:
        raise refusal("trust.document", f"a {kind.TYPE} that is not in canonical form")
    _check(document)
    return document, signature, body


def _check(document: Document) -> None:
    """Check that names, keys and tasks fit each other."""
    if isinstance(document, JoinCert):
        _check_identity(document)
    if not isinstance(document, Roster):
        return
    for peer in document.peers:
        _check_identity(peer)
    ids = [peer.peer_id for peer in document.peers]
    if not _rises([peer.node for peer in document.peers]) or len(set(ids)) != len(ids):
        raise refusal("trust.document", "roster: peers stand in the order of their names, each name and key once")
    if not _rises(document.revoked_peer_ids) or set(ids) & set(document.revoked_peer_ids):
        raise refusal("trust.document", "roster: the revoked stand in order, each once, and none is a peer")


def _check_identity(bearer: JoinCert | RosterEntry) -> None:
    if peer_id_of(bearer.public_key) != bearer.peer_id:
        raise refusal("trust.document", f"{bearer.node}: {bearer.peer_id} is not the peer id of that key")
    if bearer.node == HUB:
        raise refusal("trust.document", f"no node may be called {HUB!r}")


def _rises(names: Any) -> bool:
    return all(one < other for one, other in pairwise(names))


# Which of two holds


def supersedes(new: Ranked, held: Ranked | None) -> bool:
    """Return whether the verified document `new` replaces `held`: True if it is newer, False if it is the same.

    Raises `Refused`: `trust.roster-old`, `trust.mode-old` where the one held is newer; `trust.…-forked`
    where two differ that cannot both be.
    """
    if held is None or new == held:
        return held is None
    assert type(new) is type(held)
    what = {"roster": "roster", "moderecord": "mode"}[new.TYPE]
    ours, theirs = _rank(held), _rank(new)
    if theirs < ours:
        raise refusal(f"trust.{what}-old", f"{new.TYPE} {theirs} of {new.job}; {ours} is held")
    if theirs == ours:
        raise refusal(f"trust.{what}-forked", f"another {new.TYPE} {ours} of {new.job} is held")
    return True


def _rank(document: Ranked) -> tuple[int, ...]:
    return (document.version,) if isinstance(document, Roster) else (document.term, document.seq)
