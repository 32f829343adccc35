"""The choice of a version from which a coordinator that lost its disk restores a job.

Nodes are not trusted: a charter, a roster and a manifest are valid if this coordinator's key has signed them, and a
model if the manifest names its SHA-256. The valid version of the highest (term, number) is the newest; each invalid
checkpoint is rejected with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import InvalidJob, InvalidPayload, Refused, ShoalError
from shoal.jobs.spec import parse_job
from shoal.trust.documents import Charter, Manifest, Roster, config_sha, open_charter, verify_document
from shoal.validation import strict_json

MANIFESTS_MAX = 8
OFFER_BYTES_MAX = 2 * (Charter.BYTES_MAX + Roster.BYTES_MAX + MANIFESTS_MAX * Manifest.BYTES_MAX)
"""As JSON in JSON: quotation marks are escaped."""
TERMS_MAX = 1_000_000
"""Greatest distance of a node's claimed term above the signed one: no node can use the numbers up."""


@dataclass(frozen=True)
class CheckpointOffer:
    """A node's unverified checkpoint of a job. `source` is the node's folder or address."""

    source: str
    node: str
    job: str
    spec: Mapping[str, Any]
    created_at: str
    term: int
    charter: bytes
    roster: bytes
    manifests: tuple[bytes, ...]

    def values(self) -> dict[str, Any]:
        """Return the offer as JSON values, without the source."""
        texts = {"charter": self.charter.decode("ascii"), "roster": self.roster.decode("ascii")}
        more = {"spec": dict(self.spec), "created_at": self.created_at, "term": self.term}
        manifests = [one.decode("ascii") for one in self.manifests]
        return {"node": self.node, "job": self.job, **more, **texts, "manifests": manifests}


def offer_of(data: bytes, source: str) -> CheckpointOffer:
    """Return the offer for JSON values. Raises `InvalidPayload`."""
    try:
        found = strict_json.loads(data)
        node, job, created_at = (str(found[name]) for name in ("node", "job", "created_at"))
        charter, roster = (str(found[name]).encode("ascii") for name in ("charter", "roster"))
        manifests = tuple(str(one).encode("ascii") for one in found["manifests"][:MANIFESTS_MAX])
        spec, term = dict(found["spec"]), int(found["term"])
        return CheckpointOffer(source, node, job, spec, created_at, term, charter, roster, manifests)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidPayload(f"{source}: what it has kept cannot be read: {str(error)[:100]}") from None


@dataclass(frozen=True)
class RejectedOffer:
    """A part of an offer that was rejected, and the reason."""

    source: str
    node: str
    job: str
    what: str
    code: str
    why: str


@dataclass(frozen=True)
class RecoveryChoice:
    """The version from which to restore a job. `holders` are the nodes that claim to have the model."""

    job: str
    manifest: Manifest
    sealed: bytes
    charter: bytes
    roster: bytes
    peers: tuple[str, ...]
    spec: Mapping[str, Any]
    created_at: str
    term: int
    """The highest that any node has seen."""
    holders: tuple[CheckpointOffer, ...]

    def restore_request(self, node: str) -> dict[str, Any]:
        """Return the JSON values for the coordinator, besides spec and model. `node` supplied the model."""
        texts = {"charter": self.charter, "roster": self.roster, "manifest": self.sealed}
        claim = {"node": node, "term": self.term, "created_at": self.created_at}
        return {name: text.decode("ascii") for name, text in texts.items()} | claim


@dataclass(frozen=True)
class _SignedVersion:
    """A valid manifest and the nodes that have it."""

    manifest: Manifest
    sealed: bytes
    offer: CheckpointOffer

    @property
    def rank(self) -> tuple[int, int, str]:
        return self.manifest.term, self.manifest.version, self.manifest.model_sha256


def choose(offers: Iterable[CheckpointOffer], public_key: str) -> tuple[list[RecoveryChoice], list[RejectedOffer]]:
    """Return, per job, the newest version signed by the key `public_key`, and the rejected parts."""
    checks: dict[str, _OfferCheck] = {}
    for offer in offers:
        checks.setdefault(offer.job, _OfferCheck(offer.job, public_key)).add(offer)
    found = [choice for check in checks.values() if (choice := check.choice()) is not None]
    return found, [one for check in checks.values() for one in check.rejected]


class _OfferCheck:
    """All offers of one job."""

    def __init__(self, job: str, public_key: str) -> None:
        self._job, self._public_key = job, public_key
        self.rejected: list[RejectedOffer] = []
        self._versions: list[_SignedVersion] = []
        self._rosters: list[tuple[str, Roster, CheckpointOffer]] = []  # with the digest of the charter
        self._digests: dict[int, str] = {}  # by offer, that of its charter
        self._terms: list[tuple[int, CheckpointOffer]] = []

    def add(self, offer: CheckpointOffer) -> None:
        try:
            charter = self._charter(offer)
        except ShoalError as error:
            self._reject(offer, "charter", error)
            return
        self._terms.append((offer.term, offer))
        self._digests[id(offer)] = charter.digest
        try:
            self._rosters.append((charter.digest, verify_document(offer.roster, Roster, charter), offer))
        except ShoalError as error:
            self._reject(offer, "roster", error)
        for sealed in offer.manifests:
            try:
                self._versions.append(_SignedVersion(verify_document(sealed, Manifest, charter), sealed, offer))
            except ShoalError as error:
                self._reject(offer, f"manifest{_claimed(sealed)}", error)

    def _charter(self, offer: CheckpointOffer) -> Charter:
        charter = open_charter(offer.charter)
        if charter.coordinator_public_key != self._public_key:
            raise Refused("another coordinator's key has signed this job", code="restore.key")
        try:
            shown = parse_job(dict(offer.spec)).model_dump(mode="json")
        except InvalidJob as error:
            raise Refused(f"this release cannot run the job: {error.message}", code="restore.job") from None
        if (charter.job, charter.config_sha) != (self._job, config_sha(shown)):
            raise Refused("the charter is of another job, or of another form of it", code="restore.job")
        return charter

    def _reject(self, offer: CheckpointOffer, what: str, error: ShoalError) -> None:
        self.rejected.append(RejectedOffer(offer.source, offer.node, offer.job, what, error.code, error.message))

    def choice(self) -> RecoveryChoice | None:
        """Return the newest valid version, or None."""
        if not self._versions:
            return None
        best = max(self._versions, key=lambda one: one.rank)
        same = [one for one in self._versions if one.manifest == best.manifest]
        self._see_forks(best)
        digest = self._digests[id(best.offer)]
        rosters = [(roster.version, offer.roster, roster) for of, roster, offer in self._rosters if of == digest]
        if not rosters:
            text = "its roster is not valid, and no other node has one"
            self._reject(best.offer, f"version {best.manifest.version}", Refused(text, code="restore.roster"))
            return None
        _, text_of, roster = max(rosters, key=lambda one: one[0])
        return RecoveryChoice(
            self._job,
            best.manifest,
            best.sealed,
            best.offer.charter,
            text_of,
            tuple(peer.node for peer in roster.peers),
            best.offer.spec,
            best.offer.created_at,
            self._highest_term(best.manifest.term),
            tuple(one.offer for one in same),
        )

    def _see_forks(self, best: _SignedVersion) -> None:
        for one in self._versions:
            if one.rank[:2] == best.rank[:2] and one.manifest.model_sha256 != best.manifest.model_sha256:
                text = f"another model of version {one.manifest.version} was signed in the same term"
                self._reject(one.offer, f"version {one.manifest.version}", Refused(text, code="restore.fork"))

    def _highest_term(self, signed: int) -> int:
        found = signed
        for term, offer in self._terms:
            if term > signed + TERMS_MAX:
                text = f"term {term} is too far above the signed one, which is {signed}"
                self._reject(offer, "term", Refused(text, code="restore.term"))
            else:
                found = max(found, term)
        return found


def _claimed(sealed: bytes) -> str:
    """Return the version that an invalid manifest claims."""
    try:
        return f" of version {int(strict_json.loads(sealed)['document']['version'])}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
