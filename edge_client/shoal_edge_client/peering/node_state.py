"""Durable state of a node as a peer of one job, in addition to its `spool`.

FOLDER/peer/NAME.json         see `PeerFiles`
FOLDER/peer/windows.json      request numbers of each sender
FOLDER/peer/bytes.json        bytes by peer

Blobs arrive concurrently (from tasks, training, the machine, peers), so one is kept from its arrival until its event
has been fed and the machine names the blobs that it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import TaskResult
from shoal.core.protocol.message import BlobRef, Report, ref_from_state
from shoal.peering.state.blob_holds import BlobHolds
from shoal.peering.state.peer_blobs import PeerBlobs
from shoal.runtime.blob_files import FileBlob
from shoal.runtime.durable_files import CrashPoint, no_crash, storing
from shoal.wire.payload import ByteSource
from shoal_edge_client.peering.peer_files import PeerFiles
from shoal_edge_client.spool import Spool, SpoolState


@dataclass(frozen=True)
class SavedPeer:
    """The saved state of a `FailoverPeer`, and its conservation sums."""

    peer: dict[str, Any]
    sums: list[float] | None


class NodeState(Spool):
    """The state of one job: the spool, the peer's `files`, and the blobs that either names."""

    def __init__(self, folder: Path, job: str, at: CrashPoint = no_crash) -> None:
        super().__init__(folder, job, at)
        self.blobs: PeerBlobs = PeerBlobs(folder / "blobs", at)
        self.files = PeerFiles(folder / "peer", at, self.log)
        self.holds = BlobHolds()
        self._pending: BlobRef | None = None
        self._checkpoint_models = {ref.digest for _, ref in self.checkpoints()}

    def load(self) -> SpoolState:
        kept = super().load()
        self._pending = kept.pending_memory
        if kept.report is not None and kept.report.blob is not None and kept.report.blob.digest in self._small:
            self.blobs.keep(kept.report.blob, self._small[kept.report.blob.digest])
        return kept

    # The machine

    def load_peer(self) -> SavedPeer | None:
        """Return the saved state of the machine; None, with a warning, if it is damaged."""
        return self.files.load("machine", self._parse_peer)

    def _parse_peer(self, values: dict[str, Any]) -> SavedPeer:
        peer, sums = values["peer"], values["sums"]
        if peer["gossip"] is not None:
            digest, nbytes = peer["gossip"]["slots"]
            self._checked({"digest": digest, "nbytes": nbytes})
        if peer["model"] is not None:
            model = ref_from_state(peer["model"])
            if model is None or not self.blobs.check(model):
                peer |= {"version": -1, "model": None}  # the model was not received whole
        return SavedPeer(peer, [float(one) for one in sums] if sums is not None else None)

    def save_peer(self, peer: dict[str, Any], sums: list[float] | None) -> None:
        """Replace the saved state of the machine durably."""
        self.files.save("machine", {"peer": peer, "sums": sums})

    # Signed checkpoints

    def checkpoints(self) -> list[tuple[bytes, BlobRef]]:
        """Return saved manifests and the references of their models, unverified."""
        return self.files.load("checkpoints", _checkpoints) or []

    def save_checkpoints(self, found: Sequence[tuple[bytes, BlobRef]]) -> None:
        """Replace the saved manifests and keep their models, durably."""
        named = {ref.digest for _, ref in found}
        self._checkpoint_models |= named
        rows = [{"manifest": sealed.decode("ascii"), "model": [ref.digest, ref.nbytes]} for sealed, ref in found]
        self.files.save("checkpoints", {"checkpoints": rows})
        self._checkpoint_models = named

    # Blobs

    def put_update(self, blob: Slots | FileBlob) -> BlobRef:
        return self.holds.put(self.blobs, blob)

    def put_memory(self, memory: Slots | FileBlob) -> BlobRef:
        return self.holds.put(self.blobs, memory)

    def put_base(self, base: Slots | FileBlob) -> BlobRef:
        ref = self.holds.put(self.blobs, base)
        self._base = ref
        self.holds.release([ref.digest])
        return ref

    def release_result(self, result: TaskResult | None) -> None:
        """Release the blobs of a result that the machine has received; it names those that it needs."""
        if result is not None:
            self.holds.release(ref.digest for ref in (result.blob, result.memory) if ref is not None)

    def save_report(self, report: Report | None, pending: BlobRef | None) -> None:
        self._pending = pending
        if report is not None:
            super().save_report(report, pending)
            return
        path = self.folder / "report"
        with storing(path):
            path.unlink(missing_ok=True)
        self._at("spool.removed")

    def report_blob(self, ref: BlobRef) -> ByteSource:
        return self.blobs.open(ref)

    def sweep(self, names: Iterable[BlobRef]) -> None:
        """Remove blobs that are neither named here, nor by the spool, nor held."""
        own = {ref.digest for ref in (self._memory, self._pending, self._base) if ref is not None}
        self.holds.sweep(self.blobs, own | self._checkpoint_models | {ref.digest for ref in names})


def _checkpoints(values: dict[str, Any]) -> list[tuple[bytes, BlobRef]]:
    rows = [(row["manifest"], *row["model"]) for row in values["checkpoints"]]
    return [(str(sealed).encode("ascii"), BlobRef(str(digest), int(nbytes))) for sealed, digest, nbytes in rows]
