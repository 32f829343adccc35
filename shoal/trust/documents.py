"""Papers: what the coordinator or the operator of a job has signed. Whoever holds the charter can check them, offline.

    paper        signed by                 says
    Charter      operator                  the job, its configuration and model, whose word counts, its policy
    JoinCert     coordinator               this key is that node, until then: its bearer may come in
    Roster       coordinator               who is in, and who is out for good
    Invitation   operator                  its bearer may have a key of its own put into the roster
    ModeRecord   coordinator or operator   from here on with the server, or by gossip
    Manifest     coordinator               this version is official, and what it was made of
    Lease        coordinator               I am alive, in this term

A paper travels as canonical JSON (sorted keys, no space, ASCII, no floats):

    {"paper":{…},"signature":"…","type":"roster"}

What is signed are four lines: `shoal-paper-1`, the type, the SHA-256 of the charter's canonical JSON (of the charter
itself: `root`) and the paper's canonical JSON. So a paper of one type, or of an earlier job of the same name, never
passes for another. The charter is the root of trust: it must come by a way that is trusted already, and never changes.

`not_after`, of a `JoinCert` and an `Invitation`, is the only wall-clock time, compared with the verifier's own clock.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from shoal import strict_json
from shoal.core.machine import HUB
from shoal.core.tree import Tree
from shoal.trust.codes import refusal
from shoal.trust.keys import PEER_ID, PUBLIC, SIGNATURE, Key, peer_id_of, verifies

PEERS_MAX = 4096
REVOKED_MAX = 16_384
CLOCK_SLACK_S = 86_400
"""A certificate is taken for so long after its end: a verifier whose clock is up to a day ahead refuses nobody wrongly,
and one whose clock is a day behind takes certificates for at most two days too long."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Sha = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Pub = Annotated[str, Field(pattern=f"^{PUBLIC}$")]
PeerId = Annotated[str, Field(pattern=f"^{PEER_ID}$")]
Whole = Annotated[int, Field(ge=0, le=2**53)]
Url = Annotated[str, Field(pattern=r"^https?://[!-~]{1,200}$")]
Text = Annotated[str, Field(max_length=200)]
Mode = Literal["gossip", "server"]


@dataclass(frozen=True)
class Charter:
    """The root of a job's trust. Whoever changes anything in it has made another job."""

    TYPE: ClassVar = "charter"
    BYTES_MAX: ClassVar = 256 * 1024

    job: Name
    config_sha: Sha
    """SHA-256 of the job's configuration."""
    schema_sha: Sha
    """SHA-256 of the model's header: names, types, shapes."""
    coordinator_pub: Pub
    operator_pub: Pub
    policy: Annotated[dict[Name, Text | Whole | bool], Field(max_length=64)] = field(default_factory=dict)
    """What the operator has settled for the time without a server."""

    @cached_property
    def digest(self) -> str:
        """Names this charter, and so this life of the job."""
        return hashlib.sha256(canonical(asdict(self))).hexdigest()


@dataclass(frozen=True)
class JoinCert:
    """Admits a node while no coordinator answers."""

    TYPE: ClassVar = "joincert"
    BYTES_MAX: ClassVar = 4 * 1024

    job: Name
    node: Name
    peer_id: PeerId
    pub: Pub
    examples_max: Whole
    """The greatest weight that the node may claim."""
    not_after: Whole
    """Seconds since 1970, UTC."""

    def expired(self, wall_s: int) -> bool:
        """Whether it has run out, by this machine's clock and with `CLOCK_SLACK_S`."""
        return wall_s > self.not_after + CLOCK_SLACK_S


@dataclass(frozen=True)
class Peer:
    """A member of the roster."""

    node: Name
    peer_id: PeerId
    pub: Pub
    urls: Annotated[tuple[Url, ...], Field(max_length=4)]
    inbound: bool
    """Whether others can reach it there; if not, it is the one that calls."""
    examples: Whole
    """Its weight."""


@dataclass(frozen=True)
class Roster:
    """Who is in, by name; and which keys are out for good (at least until their last certificate has run out)."""

    TYPE: ClassVar = "roster"
    BYTES_MAX: ClassVar = 8 * 1024 * 1024

    job: Name
    version: Whole
    peers: Annotated[tuple[Peer, ...], Field(max_length=PEERS_MAX)]
    revoked: Annotated[tuple[PeerId, ...], Field(max_length=REVOKED_MAX)] = ()


@dataclass(frozen=True)
class Invitation:
    """Lets its bearers have keys of their own put into the roster, up to `uses` of them, until `not_after`."""

    TYPE: ClassVar = "invitation"
    BYTES_MAX: ClassVar = 4 * 1024

    job: Name
    serial: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Names this invitation: its uses are counted under it."""
    uses: Annotated[int, Field(ge=1, le=PEERS_MAX)]
    examples_max: Whole
    """The greatest weight that a newcomer may claim; 0: any."""
    not_after: Whole
    """Seconds since 1970, UTC, by the clock of the peer that admits."""


@dataclass(frozen=True)
class ModeRecord:
    """From this on the job runs like that. Of two, the one of the higher (term, seq) holds."""

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
    """An official version. It is (term, boot, version, model_sha256); a number alone names none."""

    TYPE: ClassVar = "manifest"
    BYTES_MAX: ClassVar = 512 * 1024

    job: Name
    term: Whole
    boot: Whole
    version: Whole
    model_sha256: Sha
    parents: Annotated[tuple[Sha, ...], Field(max_length=PEERS_MAX)]
    """SHA-256 of the models that it was made of."""
    round: Whole


@dataclass(frozen=True)
class Lease:
    """The coordinator is alive. It proves nothing about when: it counts in the signed answer to one's own question."""

    TYPE: ClassVar = "lease"
    BYTES_MAX: ClassVar = 4 * 1024

    job: Name
    term: Whole
    boot: Whole
    seq: Whole
    """Rises with every lease of this boot."""
    round: Whole
    mode: Mode
    ttl_s: Whole


Paper = Charter | JoinCert | Roster | Invitation | ModeRecord | Manifest | Lease
P = TypeVar("P", bound=Paper)
Ranked = Roster | ModeRecord | Lease
KINDS: dict[str, type[Paper]] = {
    kind.TYPE: kind for kind in (Charter, JoinCert, Roster, Invitation, ModeRecord, Manifest, Lease)
}

SIGNED_BY = {
    kind.TYPE: "operator"
    if kind in (Charter, Invitation)
    else "coordinator or operator"
    if kind is ModeRecord
    else "coordinator"
    for kind in KINDS.values()
}


def canonical(values: Any) -> bytes:
    """The one JSON text of these values."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def config_sha(spec: Mapping[str, Any]) -> str:
    """What names a job's configuration, `spec` being what the coordinator shows of it, as JSON values."""
    return hashlib.sha256(canonical(spec)).hexdigest()


def schema_sha(model: Tree) -> str:
    """What names a model's form: its names, types and shapes."""
    return hashlib.sha256(model.layout.header).hexdigest()


# Signing and reading


def seal(paper: Paper, key: Key, charter: Charter) -> bytes:
    """A paper as it travels. Raises `trust.signer` for a key whose word does not count, `trust.paper` and the like for
    a paper that no reader would take."""
    body = canonical(asdict(paper))
    if key.pub != _signer(paper, charter):
        raise refusal("trust.signer", f"{key.pub} may not sign a {paper.TYPE} of {charter.job}")
    signature = key.sign(_signed(paper, charter, body))
    data = canonical({"paper": asdict(paper), "signature": signature, "type": paper.TYPE})
    unseal(data, type(paper), charter)
    return data


def unseal(data: bytes, kind: type[P], charter: Charter) -> P:
    """The paper of those bytes, which is of this kind, of this job, and signed by whose word counts.

    Raises `Refused` (`trust.too-large`, `trust.paper`, `trust.job`) or `NotAllowed` (`trust.signature`).
    """
    paper, signature, body = _read(data, kind)
    if paper.job != charter.job:
        raise refusal("trust.job", f"a {kind.TYPE} of job {paper.job}; this is {charter.job}")
    if not verifies(_signer(paper, charter), signature, _signed(paper, charter, body)):
        raise refusal("trust.signature", f"nobody whose word counts in {charter.job} has signed this {kind.TYPE}")
    return paper


def open_charter(data: bytes) -> Charter:
    """A charter as it came. It is whole and its operator's; that it is the right operator's, its bearer must vouch."""
    charter, _, _ = _read(data, Charter)
    return unseal(data, Charter, charter)


def charter_of(values: Any) -> Charter:
    """A charter that a peer shows, its signature left out. Raises `Refused` for what is none."""
    try:
        found: Charter = _adapter(Charter.TYPE).validate_json(canonical(values), strict=True, extra="forbid")
    except (ValidationError, ValueError, TypeError) as error:
        raise refusal("trust.paper", f"no charter: {str(error).splitlines()[0][:200]}") from None
    return found


def _signer(paper: Paper, charter: Charter) -> str:
    if isinstance(paper, Charter | Invitation) or (isinstance(paper, ModeRecord) and paper.signer == "operator"):
        return charter.operator_pub
    return charter.coordinator_pub


def _signed(paper: Paper, charter: Charter, body: bytes) -> bytes:
    root = "root" if isinstance(paper, Charter) else charter.digest
    return f"shoal-paper-1\n{paper.TYPE}\n{root}\n".encode() + body


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(KINDS[name])


def _read(data: bytes, kind: type[P]) -> tuple[P, str, bytes]:
    """The paper, its signature, not verified yet, and its canonical JSON."""
    if len(data) > kind.BYTES_MAX:
        raise refusal("trust.too-large", f"a {kind.TYPE} of {len(data)} bytes; at most {kind.BYTES_MAX}")
    try:
        values = strict_json.loads(data)
        body = canonical(values["paper"]) if isinstance(values, dict) and "paper" in values else b""
    except (ValueError, RecursionError) as error:
        raise refusal("trust.paper", f"a {kind.TYPE} that is no strict JSON: {str(error)[:200]}") from None
    if not body or values.keys() != {"paper", "signature", "type"}:
        raise refusal("trust.paper", f"a {kind.TYPE} has the fields paper, signature and type")
    named, signature = values["type"], values["signature"]
    if named != kind.TYPE:
        other = named if isinstance(named, str) and named in KINDS else "paper of no known type"
        raise refusal("trust.paper", f"a {kind.TYPE} was expected, not a {other}")
    if not isinstance(signature, str) or not re.fullmatch(SIGNATURE, signature):
        raise refusal("trust.paper", f"{kind.TYPE}: the signature is not 128 hexadecimal digits")
    try:
        paper: P = _adapter(kind.TYPE).validate_json(body, strict=True, extra="forbid")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "paper"
        raise refusal("trust.paper", f"{kind.TYPE}: {where[:100]}: {first['msg'][:200]}") from None
    if canonical({"paper": asdict(paper), "signature": signature, "type": kind.TYPE}) != data:
        raise refusal("trust.paper", f"a {kind.TYPE} that is not in canonical form")
    _check(paper)
    return paper, signature, body


def _check(paper: Paper) -> None:
    """What types cannot say: that names, keys and orders fit each other."""
    if isinstance(paper, JoinCert):
        _check_identity(paper)
    if not isinstance(paper, Roster):
        return
    for peer in paper.peers:
        _check_identity(peer)
    ids = [peer.peer_id for peer in paper.peers]
    if not _rises([peer.node for peer in paper.peers]) or len(set(ids)) != len(ids):
        raise refusal("trust.paper", "roster: peers stand in the order of their names, each name and key once")
    if not _rises(paper.revoked) or set(ids) & set(paper.revoked):
        raise refusal("trust.paper", "roster: the revoked stand in order, each once, and none is a peer")


def _check_identity(bearer: JoinCert | Peer) -> None:
    if peer_id_of(bearer.pub) != bearer.peer_id:
        raise refusal("trust.paper", f"{bearer.node}: {bearer.peer_id} is not the peer id of that key")
    if bearer.node == HUB:
        raise refusal("trust.paper", f"no node may be called {HUB!r}")


def _rises(names: Any) -> bool:
    return all(one < other for one, other in pairwise(names))


# Which of two holds


def supersedes(new: Ranked, held: Ranked | None) -> bool:
    """Whether `new` takes the place of `held`, both being genuine: True if it is newer, False if it is the same.

    Raises `Refused`: `trust.roster-old`, `trust.mode-old`, `trust.lease-old` where the one held is newer;
    `trust.…-forked` where two differ that cannot both be.
    """
    if held is None or new == held:
        return held is None
    assert type(new) is type(held)
    what = {"roster": "roster", "moderecord": "mode", "lease": "lease"}[new.TYPE]
    if isinstance(new, Lease) and isinstance(held, Lease) and new.term == held.term and new.boot != held.boot:
        raise refusal("trust.lease-forked", f"term {new.term} is held by boot {held.boot}; this is boot {new.boot}")
    ours, theirs = _rank(held), _rank(new)
    if theirs < ours:
        raise refusal(f"trust.{what}-old", f"{new.TYPE} {theirs} of {new.job}; {ours} is held")
    if theirs == ours:
        raise refusal(f"trust.{what}-forked", f"another {new.TYPE} {ours} of {new.job} is held")
    return True


def _rank(paper: Ranked) -> tuple[int, ...]:
    return (paper.version,) if isinstance(paper, Roster) else (paper.term, paper.seq)
