"""Versions as the coordinator vouches for them; and a job that goes on from what its nodes have kept of it.

A manifest names a version's model by its SHA-256, and is signed. So whatever a node kept, a coordinator with an empty
disk can tell whether it is that version: all that must have been saved elsewhere is the key.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass

from sqlalchemy import select

from shoal.checkpoint import TERMS_MAX
from shoal.core.algorithm import tree_slot
from shoal.core.errors import Refused, StorageFailed
from shoal.core.message import Ref
from shoal.core.tree import Slots
from shoal.spec import JobSpec
from shoal.trust.keys import Key
from shoal.trust.papers import Manifest, Roster, config_sha, open_charter, schema_sha, seal, unseal
from shoal.wire import payload_pieces
from shoal_coordinator.database import Database
from shoal_coordinator.driver import Driver
from shoal_coordinator.papers import LEAP, Papers, Sealed
from shoal_coordinator.tables import versions


@dataclass(frozen=True)
class Told:
    """What the nodes' word is taken for: who had kept the model, the highest term, and when the job was begun."""

    node: str = ""
    term: int = 0
    created_at: float | None = None


@dataclass(frozen=True)
class Given:
    """What a job goes on from, every signature checked."""

    papers: Sealed
    manifest: Manifest
    told: Told = Told()

    @property
    def term(self) -> int:
        """Terms of the coordinator that goes on are above this one: whatever was signed, told or begun since."""
        return max(self.manifest.term, self.told.term) + LEAP


class Manifests:
    """The newest version of each job, signed when somebody asks for it."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, bytes]] = {}

    def forget(self, job: str) -> None:
        """Know nothing of a job that was removed."""
        self._newest.pop(job, None)

    async def newest(self, driver: Driver, papers: Papers, database: Database) -> tuple[int, bytes]:
        """(version, the sealed manifest). Raises what `Papers.of` raises; `StorageFailed` a moment after a close."""
        sealed = await papers.of(driver, database)
        await driver.settled()
        number, slots, term = driver.hub.version, driver.hub.slots, driver.hub.plan.term + 1
        known = self._newest.get(driver.name)
        if known is None or known[0] != number:
            manifest = await _manifest(driver, number, slots, term, database)
            text = await asyncio.to_thread(seal, manifest, await papers.key(), sealed.charter)
            known = self._newest[driver.name] = number, text
        return known


async def _manifest(driver: Driver, number: int, slots: Slots, term: int, database: Database) -> Manifest:
    """The same whenever it is made: of the term in which the version's orders were given."""
    where = (versions.c.job == driver.name, versions.c.number.in_((number - 1, number)))
    async with database.reader.connect() as connection:
        rows = {row.number: row for row in await connection.execute(select(versions).where(*where))}
    if number not in rows:
        raise StorageFailed(f"version {number} has not been written down yet", hint="ask again in a moment")
    reports = rows[number].reports
    before = [rows[number - 1].digest] if number - 1 in rows else []
    boot = max((order[0] for _, order, _, _ in reports), default=term)
    digest = await asyncio.to_thread(model_sha, slots)
    parents = (*before, *(digest for _, _, _, digest in reports))
    return Manifest(driver.name, boot, boot, number, digest, parents, number)


def model_sha(slots: Slots) -> str:
    """The SHA-256 of a body with the model alone, as nodes hold it."""
    digest = hashlib.sha256()
    for piece in payload_pieces({"model": tree_slot(slots, "model")}):
        digest.update(piece)
    return digest.hexdigest()


def checked(spec: JobSpec, start: Ref, slots: Slots, texts: dict[str, bytes], told: Told, key: Key) -> Given:
    """What `texts` (charter, roster, manifest) say, if this coordinator's key has signed it of this job and model.

    Raises what papers raise, and `Refused`: `restore.key`, `restore.job`, `restore.model`, `restore.over`,
    `restore.term`.
    """
    charter = open_charter(texts["charter"])
    if charter.coordinator_pub != key.pub:
        raise _refused("key", "another coordinator's key has signed this job", "put its coordinator.pem in the folder")
    if (charter.job, charter.config_sha) != (spec.name, config_sha(spec.model_dump(mode="json"))):
        raise _refused("job", "the charter is of another job, or of another form of it", "give the job's very own spec")
    roster, manifest = unseal(texts["roster"], Roster, charter), unseal(texts["manifest"], Manifest, charter)
    model = tree_slot(slots, "model")
    if start.digest != manifest.model_sha256 or schema_sha(model) != charter.schema_sha:
        text = f"the model is not that of version {manifest.version}"
        raise _refused("model", text, f"upload the body of SHA-256 {manifest.model_sha256}")
    if manifest.version >= spec.plan().versions:
        raise _refused("over", "the job has made its last version", "that version is its result: keep the model")
    if told.term > manifest.term + TERMS_MAX:
        text = f"term {told.term} is too far above the signed one, which is {manifest.term}"
        raise _refused("term", text, "terms rise by one at a time: leave out who has told it")
    return Given(Sealed(charter, roster, texts["charter"], texts["roster"]), manifest, told)


def _refused(what: str, text: str, hint: str) -> Refused:
    return Refused(text, code=f"restore.{what}", hint=hint)
