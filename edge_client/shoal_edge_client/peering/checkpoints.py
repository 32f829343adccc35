"""The newest versions as the coordinator vouches for them: what a coordinator whose disk is lost can go on from.

A checkpoint is a signed manifest and the model that it names, as the version's orders brought it. Two are kept: while
the newer one is being written the other one is whole. Nothing here is needed to take part, so what is damaged is named
in the log and given up, and what cannot be had is done without.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog

from shoal.core.algorithm import tree_slot
from shoal.core.errors import NotAllowed, Refused, ShoalError
from shoal.core.message import Ref
from shoal.runtime.backoff import Backoff, patiently
from shoal.runtime.threads import in_thread
from shoal.trust.papers import Charter, Manifest, unseal
from shoal_edge_client.peering.desk import Desk

KEPT = 2
SOON = Backoff(first_s=0.2, most_s=1.0, give_up_s=5.0)
"""A coordinator that has just closed a version asks for a moment until it is written down."""


class Vouching(Protocol):
    """What is asked of the coordinator. Blocks, and raises the tree's errors."""

    def manifest(self, job: str, held: int) -> bytes | None: ...


@dataclass(frozen=True)
class Checkpoint:
    """A version that the coordinator has signed, and where its model is."""

    sealed: bytes
    manifest: Manifest
    model: Ref

    @property
    def rank(self) -> tuple[int, int]:
        """Of two versions, the later one has the higher rank."""
        return self.manifest.term, self.manifest.version


class Checkpoints:
    """Those of one job, newest first. One call at a time."""

    def __init__(self, job: str, desk: Desk) -> None:
        self._job, self._desk = job, desk
        self._charter: Charter | None = None
        self.kept: list[Checkpoint] = []
        self._sought = -1
        self.log: Any = structlog.get_logger("edge_client.peering").bind(job=job)

    @property
    def version(self) -> int:
        """The newest that is kept; -1: none is."""
        return self.kept[0].manifest.version if self.kept else -1

    def is_due(self, version: int) -> bool:
        """Whether the coordinator has not been asked yet to vouch for this version, which has come."""
        return version > self._sought

    async def seek(self, charter: Charter, version: int, model: Ref, hub: Vouching) -> None:
        """Ask the coordinator to vouch for a version whose model is here. Raises `NotAllowed`."""
        self._sought = version
        with self._desk.awaiting(model):
            try:
                sealed = await patiently(SOON, partial(hub.manifest, self._job, self.version))
                if sealed is not None:
                    await in_thread(partial(self._take, charter, sealed, model))
            except NotAllowed as error:
                if not error.code.startswith("trust."):
                    raise
                self.log.warning("a manifest was refused", code=error.code, why=error.message)
            except ShoalError as error:
                self.log.debug("nobody vouches for this version", version=version, code=error.code, why=error.message)

    def _take(self, charter: Charter, sealed: bytes, model: Ref) -> None:
        """In a thread. Raises what `unseal` raises, and `StorageFailed`."""
        self.load(charter)
        manifest = unseal(sealed, Manifest, charter)
        if self.kept and (manifest.term, manifest.version) <= self.kept[0].rank:
            return
        with self._desk.awaiting(Ref(manifest.model_sha256, 0)):
            found = self._body(manifest.model_sha256, model)
            if found is None:  # the job has gone on meanwhile
                return
            self.kept = [Checkpoint(sealed, manifest, found), *self.kept][:KEPT]
            self._desk.keep_checkpoints([(one.sealed, one.model) for one in self.kept])
        self.log.debug("kept for a coordinator that loses its disk", version=manifest.version)

    def _body(self, digest: str, model: Ref) -> Ref | None:
        """The model of that SHA-256, if it is the one that has come. (An order may bring more beside the model.)"""
        if model.digest == digest:
            return model
        alone = self._desk.bodies.put({"model": tree_slot(self._desk.bodies.get(model), "model")})
        return alone if alone.digest == digest else None

    def load(self, charter: Charter) -> None:
        """Take up what an earlier process has kept under this charter; blocks."""
        if self._charter == charter:
            return
        self._charter, self.kept = charter, []
        for sealed, model in self._desk.checkpoints():
            try:
                manifest = unseal(sealed, Manifest, charter)
            except (Refused, NotAllowed) as error:
                self.log.warning("a checkpoint is given up", code=error.code, why=error.message)
                continue
            if manifest.model_sha256 == model.digest and self._desk.bodies.check(model):
                self.kept.append(Checkpoint(sealed, manifest, model))
            else:
                self.log.warning("a checkpoint is given up", version=manifest.version, why="its model is damaged")
        self.kept.sort(key=lambda one: one.rank, reverse=True)
