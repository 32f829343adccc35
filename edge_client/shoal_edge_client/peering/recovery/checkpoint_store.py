"""The newest versions that the coordinator has signed: a coordinator that has lost its disk can continue from them.

A checkpoint is a signed manifest and the model that it names, as the version's tasks brought it. Two are stored, so
that one is whole while the other is written. Checkpoints are optional: damaged ones are logged and discarded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import NotAllowed, Refused, ShoalError
from shoal.core.protocol.message import BlobRef
from shoal.runtime.http.retry import Backoff, call_with_retries
from shoal.runtime.threads import in_thread
from shoal.trust.documents import Charter, Manifest, verify_document
from shoal_edge_client.peering.node_state import NodeState

KEPT = 2
SOON = Backoff(first_s=0.2, most_s=1.0, give_up_s=5.0)
"""A coordinator that has just closed a version asks for a moment until it is written down."""


class ManifestSource(Protocol):
    """The part of the coordinator's API that signs versions. It blocks and raises `ShoalError`."""

    def manifest(self, job: str, held: int) -> bytes | None: ...


@dataclass(frozen=True)
class SignedCheckpoint:
    """A version that the coordinator has signed, and the blob of its model."""

    sealed: bytes
    manifest: Manifest
    model: BlobRef

    @property
    def rank(self) -> tuple[int, int]:
        """Return the (term, version) by which checkpoints are ordered."""
        return self.manifest.term, self.manifest.version


class CheckpointStore:
    """The checkpoints of one job, newest first. One call at a time."""

    def __init__(self, job: str, state: NodeState) -> None:
        self._job, self._state = job, state
        self._charter: Charter | None = None
        self.checkpoints: list[SignedCheckpoint] = []
        self._sought = -1
        self.log: Any = structlog.get_logger("edge_client.peering").bind(job=job)

    @property
    def version(self) -> int:
        """Return the newest stored version; -1 without any."""
        return self.checkpoints[0].manifest.version if self.checkpoints else -1

    def is_due(self, version: int) -> bool:
        """Return whether the coordinator has not been asked yet to sign this version."""
        return version > self._sought

    async def request(self, charter: Charter, version: int, model: BlobRef, hub: ManifestSource) -> None:
        """Fetch the manifest of a version whose model is here, and store both. Raises `NotAllowed`."""
        self._sought = version
        with self._state.holds.holding(model):
            try:
                sealed = await call_with_retries(SOON, partial(hub.manifest, self._job, self.version))
                if sealed is not None:
                    await in_thread(partial(self._store, charter, sealed, model))
            except NotAllowed as error:
                if not error.code.startswith("trust."):
                    raise
                self.log.warning("a manifest was refused", code=error.code, why=error.message)
            except ShoalError as error:
                self.log.debug(
                    "no signed manifest of this version", version=version, code=error.code, why=error.message
                )

    def _store(self, charter: Charter, sealed: bytes, model: BlobRef) -> None:
        """Verify and store a manifest; blocks. Raises what `verify_document` raises, and `StorageFailed`."""
        self.load(charter)
        manifest = verify_document(sealed, Manifest, charter)
        if self.checkpoints and (manifest.term, manifest.version) <= self.checkpoints[0].rank:
            return
        with self._state.holds.holding(BlobRef(manifest.model_sha256, 0)):
            found = self._body(manifest.model_sha256, model)
            if found is None:  # the job has gone on meanwhile
                return
            self.checkpoints = [SignedCheckpoint(sealed, manifest, found), *self.checkpoints][:KEPT]
            self._state.save_checkpoints([(one.sealed, one.model) for one in self.checkpoints])
        self.log.debug("checkpoint stored", version=manifest.version)

    def _body(self, digest: str, model: BlobRef) -> BlobRef | None:
        """Return the model of that SHA-256 if it is the one received; a task's blob may hold more than the model."""
        if model.digest == digest:
            return model
        alone = self._state.blobs.put({"model": tree_slot(self._state.blobs.get(model), "model")})
        return alone if alone.digest == digest else None

    def load(self, charter: Charter) -> None:
        """Load the checkpoints that an earlier process stored under this charter; blocks."""
        if self._charter == charter:
            return
        self._charter, self.checkpoints = charter, []
        for sealed, model in self._state.checkpoints():
            try:
                manifest = verify_document(sealed, Manifest, charter)
            except (Refused, NotAllowed) as error:
                self.log.warning("a checkpoint is discarded", code=error.code, why=error.message)
                continue
            if manifest.model_sha256 == model.digest and self._state.blobs.check(model):
                self.checkpoints.append(SignedCheckpoint(sealed, manifest, model))
            else:
                self.log.warning("a checkpoint is discarded", version=manifest.version, why="its model is damaged")
        self.checkpoints.sort(key=lambda one: one.rank, reverse=True)
