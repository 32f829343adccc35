"""Blobs of a peer: files, and in memory those that no saved state names, such as the chunks of an open round.

After a crash a round is given up, so to write its chunks to the disk, and to wait for it, would save nothing.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.core.model.tree import Slots
from shoal.core.protocol.message import BlobRef
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import CrashPoint, no_crash
from shoal.runtime.partial_blobs import IncomingBlob, IncomingBytes
from shoal.wire.payload import ByteSource, layouts_of, open_payload, payload_layout, payload_pieces

TRANSIENT_BYTES_MAX = 64 << 20
"""Memory for transient blobs of one job, incoming ones included. All further ones are files."""


class ChunkMemory:
    """Blobs in memory, together of at most `bytes_max` bytes. Any thread may call."""

    def __init__(self, bytes_max: int) -> None:
        self._blobs: dict[str, memoryview] = {}
        self._free_bytes = bytes_max
        self._lock = threading.Lock()

    def reserve(self, nbytes: int) -> bool:
        """Reserve memory for a blob; return whether there is room."""
        with self._lock:
            if nbytes > self._free_bytes:
                return False
            self._free_bytes -= nbytes
            return True

    def release(self, nbytes: int) -> None:
        """Release reserved memory."""
        with self._lock:
            self._free_bytes += nbytes

    def add(self, ref: BlobRef, data: memoryview) -> None:
        """Store a blob whose memory is reserved and whose hash is checked."""
        with self._lock:
            known = self._blobs.setdefault(ref.digest, data.toreadonly())
            self._free_bytes += 0 if known.obj is data.obj else ref.nbytes

    def find(self, digest: str) -> memoryview | None:
        """Return the bytes of a blob; None if it is not here. They stay valid when it is removed."""
        return self._blobs.get(digest)

    def remove(self, digest: str) -> None:
        """Remove a blob, if it is here."""
        with self._lock:
            self._free_bytes += len(self._blobs.pop(digest, b""))

    def keep_only(self, digests: Collection[str]) -> int:
        """Remove all other blobs; return how many."""
        gone = [digest for digest in list(self._blobs) if digest not in digests]
        for digest in gone:
            self.remove(digest)
        return len(gone)


class PeerBlobs(FileBlobs):
    """Files, and transient blobs in memory (`GossipBlobs`). Any thread may call."""

    def __init__(self, folder: Path, at: CrashPoint = no_crash) -> None:
        super().__init__(folder, at)
        self.memory = ChunkMemory(TRANSIENT_BYTES_MAX)

    def put_transient(self, slots: Slots) -> BlobRef:
        """Store slots that may be gone after a crash: in memory while there is room. Raises `StorageFailed`."""
        layout = payload_layout(layouts_of(slots))
        nbytes = len(layout.header) + layout.nbytes
        if not self.memory.reserve(nbytes):
            return self.put(slots)
        data, at = memoryview(bytearray(nbytes)), 0
        for piece in payload_pieces(slots):
            data[at : at + len(piece)] = piece
            at += len(piece)
        ref = BlobRef(hashlib.sha256(data).hexdigest(), nbytes)
        self.memory.add(ref, data)
        return ref

    def incoming(self, owner: str, ref: BlobRef, *, transient: bool) -> IncomingBlob | IncomingChunk:
        """Receive a blob from a peer, into memory if it is transient and there is room. Use it as a context manager."""
        if transient and self.memory.reserve(ref.nbytes):
            return IncomingChunk(self.memory, ref)
        return self.partials.incoming(owner, ref)

    def source(self, ref: BlobRef) -> ByteSource:
        """Return the bytes of a blob. Raises `StorageFailed` if it is missing or has another length."""
        return self.memory.find(ref.digest) or self.open(ref)

    def get(self, ref: BlobRef) -> Slots:
        return open_payload(self.source(ref))

    def delete(self, digest: str) -> None:
        self.memory.remove(digest)
        super().delete(digest)

    def keep_only(self, digests: Collection[str]) -> int:
        return self.memory.keep_only(digests) + super().keep_only(digests)


class IncomingChunk(IncomingBytes):
    """A transient blob on its way in, in memory. Left before `finish`, it is dropped."""

    def __init__(self, memory: ChunkMemory, ref: BlobRef) -> None:
        super().__init__(ref)
        self._memory, self._data, self._stored = memory, memoryview(bytearray(ref.nbytes)), False

    def _append(self, piece: bytes | memoryview) -> None:
        self._data[self.offset : self.offset + len(piece)] = piece

    def _store(self) -> None:
        self._memory.add(self.ref, self._data)
        self._stored = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not self._stored:
            self._memory.release(self.ref.nbytes)
