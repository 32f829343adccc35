"""Pending uploads, whose report has not arrived yet: at most one per node and job, within a byte limit per node.

A node has one task in a job, so it needs one blob. If it sends another one, the previous one is deleted: its stored
file, its interrupted part, and its open upload. The bytes of each node are summed over its jobs (`NodeByteLimit`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from shoal.core.errors import Refused, StorageFailed
from shoal.core.protocol.message import BlobRef, TaskId
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.partial_blobs import IncomingBlob

TARGETS_MAX = 4
"""Blobs that a node may be given an address for, in a task: an address that was given is good for a while."""


class NodeByteLimit:
    """The bytes of unreported blobs of each node, in all jobs of a coordinator."""

    def __init__(self, nbytes_max: int) -> None:
        self._max = nbytes_max
        self._of: defaultdict[str, int] = defaultdict(int)

    def reserve(self, node: str, nbytes: int, replaced: int = 0) -> None:
        """Count an upload that begins; `replaced`: bytes that it replaces at its end. Raises `StorageFailed`."""
        others = self._of[node] - replaced
        if others and others + nbytes > self._max:
            raise StorageFailed(
                f"{node} has {others} bytes of pending uploads; the maximum is {self._max}",
                code="storage.node-full",
                hint="raise pending_uploads_bytes_max of the coordinator; the node sends again by itself",
            )
        self._of[node] += nbytes

    def release(self, node: str, nbytes: int) -> None:
        """Stop counting an upload."""
        self._of[node] -= nbytes
        if not self._of[node]:
            del self._of[node]


class Upload:
    """A blob that is coming in."""

    def __init__(self, node: str, ref: BlobRef) -> None:
        self.node, self.ref = node, ref
        self.is_superseded, self.is_finishing = False, False
        self.ended = asyncio.Event()
        self._incoming: IncomingBlob | None = None

    def writes_to(self, incoming: IncomingBlob) -> None:
        """Note where it is written. Raises `Refused` if another has taken its place."""
        self._incoming = incoming
        self.check()

    def check(self) -> None:
        """Raise `Refused` if another has taken its place."""
        if self.is_superseded:
            hint = "a task has one body; the last one sent counts"
            raise Refused("the node has begun another upload", code="upload.superseded", hint=hint)

    def supersede(self) -> None:
        """Take no more of it, and free what it has on the disk."""
        self.is_superseded = True
        if self._incoming is not None:
            self._incoming.restart()


class PendingUploads:
    """The unreported blobs of one job. `discard` removes a stored blob unless something else needs it."""

    def __init__(self, blobs: FileBlobs, nodes: NodeByteLimit, discard: Callable[[str], None]) -> None:
        self._blobs, self._nodes, self._discard = blobs, nodes, discard
        self._open: dict[str, Upload] = {}
        self._kept: dict[str, BlobRef] = {}
        self._offered: dict[str, tuple[TaskId, list[str]]] = {}

    async def start(self, node: str, ref: BlobRef) -> Upload | None:
        """Begin to receive a blob; None if the same has just come. Raises `StorageFailed`."""
        while (before := self._open.get(node)) is not None and before.is_finishing:
            await before.ended.wait()
            if before.ref == ref and self._kept.get(node) == ref and self._blobs.has(ref.digest):
                return None
        kept = self._kept.get(node)
        self._nodes.reserve(node, ref.nbytes, kept.nbytes if kept is not None else 0)
        if before is not None:
            before.supersede()
        upload = self._open[node] = Upload(node, ref)
        return upload

    def finish(self, upload: Upload, *, kept: bool) -> None:
        """Record that a blob is stored, or (`kept`) an interrupted part of it; else it is gone."""
        node, ref = upload.node, upload.ref
        if self._open.get(node) is upload:
            del self._open[node]
        if upload.is_superseded or not kept:
            self._nodes.release(node, ref.nbytes)
        else:
            self._forget(node, but=ref)
            self._kept[node] = ref
        upload.ended.set()

    def share(self, node: str, ref: BlobRef) -> None:
        """Record that the node has the same blob as another: the blob stays for both. Raises `StorageFailed`."""
        kept = self._kept.get(node)
        if ref in self._kept.values() and kept != ref and node not in self._open:
            self._nodes.reserve(node, ref.nbytes, kept.nbytes if kept is not None else 0)
            self._forget(node, but=ref)
            self._kept[node] = ref

    def mark_reported(self, node: str) -> None:
        """Hand the node's blob over to the job: a counted report has named it."""
        ref = self._kept.pop(node, None)
        if ref is not None:
            self._nodes.release(node, ref.nbytes)

    def _forget(self, node: str, but: BlobRef) -> None:
        ref = self._kept.get(node)
        self.mark_reported(node)
        if ref is not None and ref != but and ref not in self._kept.values():
            self._discard(ref.digest)

    async def wait(self, upload: Upload) -> bool:
        """Wait for the upload of the same blob that replaced this one; return whether the blob is here then."""
        while (newer := self._open.get(upload.node)) is not None and newer.ref == upload.ref:
            await newer.ended.wait()
        return await asyncio.to_thread(self._blobs.has, upload.ref.digest)

    def add_address(self, node: str, task: TaskId, digest: str) -> list[str]:
        """Note that the node is given an address for a blob; the digests of those that this one replaces. Raises
        `Refused` when it was given many for the same order."""
        known, digests = self._offered.get(node, (task, []))
        if known != task:
            digests = []
        if digest not in digests and len(digests) == TARGETS_MAX:
            hint = "a task has one body: send the report of the last one"
            raise Refused(f"addresses for {TARGETS_MAX} blobs were given already", code="upload.again", hint=hint)
        others = [one for one in digests if one != digest]
        self._offered[node] = task, [*others, digest]
        return others
