"""Signed manifests of versions, and the recovery of a job from the documents that its nodes kept.

A signed manifest names a version's model by its SHA-256. So a coordinator with an empty disk can verify a model that a
node kept; only the key must have been saved elsewhere.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sqlalchemy import select

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import Refused, StorageFailed
from shoal.core.model.tree import Slots
from shoal.core.protocol.message import BlobRef
from shoal.jobs.spec import JobSpec
from shoal.recovery.checkpoint import TERMS_MAX
from shoal.trust.documents import Manifest, Roster, config_sha, open_charter, schema_sha, sign_document, verify_document
from shoal.trust.keys import SigningKey
from shoal_coordinator.peers.trust_documents import LEAP, SignableJob, SignedDocuments, TrustDocuments
from shoal_coordinator.storage.tables import versions
from shoal_coordinator.storage.writer import Database


@dataclass(frozen=True)
class RecoveryClaim:
    """Unverified claims of nodes: the holder of the model, the highest term, and the job's start."""

    node: str = ""
    term: int = 0
    created_at: float | None = None


@dataclass(frozen=True)
class RecoveredJob:
    """A job to continue, every signature checked."""

    documents: SignedDocuments
    manifest: Manifest
    claim: RecoveryClaim = RecoveryClaim()

    @property
    def term(self) -> int:
        """Return a term below all terms of this coordinator, and above all that the lost one can have used."""
        return max(self.manifest.term, self.claim.term) + LEAP


class SignedCheckpoints:
    """The newest version of each job, signed on request."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, bytes]] = {}

    def forget(self, job: str) -> None:
        """Forget a removed job."""
        self._newest.pop(job, None)

    async def newest(self, runner: SignableJob, documents: TrustDocuments, database: Database) -> tuple[int, bytes]:
        """Return (version, the signed manifest). Raises what `TrustDocuments.up_to_date` raises; `StorageFailed`
        for a moment after a close."""
        signed = await documents.up_to_date(runner, database)
        await runner.gate.wait_consistent()
        number, term = runner.hub.progress.version, runner.hub.settings.plan.term + 1
        known = self._newest.get(runner.name)
        if known is None or known[0] != number:
            manifest = await _manifest(runner, number, term, database)
            text = await asyncio.to_thread(sign_document, manifest, await documents.key(), signed.charter)
            known = self._newest[runner.name] = number, text
        return known


async def _manifest(runner: SignableJob, number: int, term: int, database: Database) -> Manifest:
    """Return the manifest, always the same: of the term in which the version's tasks were given."""
    where = (versions.c.job == runner.name, versions.c.number.in_((number - 1, number)))
    async with database.reader.connect() as connection:
        rows = {row.number: row for row in await connection.execute(select(versions).where(*where))}
    if number not in rows:
        text, hint = f"version {number} is not committed yet", "retry in a moment"
        raise StorageFailed(text, code="storage.pending", hint=hint)
    reports = rows[number].reports
    before = [rows[number - 1].digest] if number - 1 in rows else []
    term = max((task[0] for _, task, _, _ in reports), default=term)
    parents = (*before, *(digest for _, _, _, digest in reports))
    return Manifest(runner.name, term, number, rows[number].digest, parents, number)


def verify_recovery(
    spec: JobSpec, start: BlobRef, slots: Slots, texts: dict[str, bytes], claim: RecoveryClaim, key: SigningKey
) -> RecoveredJob:
    """Verify `texts` (charter, roster, manifest): signed by this coordinator's key, of this job and model.

    Raises what documents raise, and `Refused`: `restore.key`, `restore.job`, `restore.model`, `restore.over`,
    `restore.term`.
    """
    charter = open_charter(texts["charter"])
    if charter.coordinator_public_key != key.public_key:
        raise _refused("key", "another coordinator's key has signed this job", "put its coordinator.pem in the folder")
    if (charter.job, charter.config_sha) != (spec.name, config_sha(spec.model_dump(mode="json"))):
        raise _refused("job", "the charter is of another job, or of another form of it", "give the job's very own spec")
    roster, manifest = (
        verify_document(texts["roster"], Roster, charter),
        verify_document(texts["manifest"], Manifest, charter),
    )
    model = tree_slot(slots, "model")
    if start.digest != manifest.model_sha256 or schema_sha(model) != charter.schema_sha:
        text = f"the model is not that of version {manifest.version}"
        raise _refused("model", text, f"upload the body of SHA-256 {manifest.model_sha256}")
    if manifest.version >= spec.plan().versions:
        raise _refused("over", "the job has made its last version", "that version is its result: keep the model")
    if claim.term > manifest.term + TERMS_MAX:
        text = f"term {claim.term} is too far above the signed one, which is {manifest.term}"
        raise _refused("term", text, "terms rise by one at a time: leave out who has claim it")
    return RecoveredJob(SignedDocuments(charter, roster, texts["charter"], texts["roster"]), manifest, claim)


def _refused(what: str, text: str, hint: str) -> Refused:
    return Refused(text, code=f"restore.{what}", hint=hint)
