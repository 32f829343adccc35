"""Blobs as files named by the SHA-256 of their contents, and small files that a crash leaves whole.

    write to a temporary file -> fsync -> rename -> fsync the folder          before anything names the file

A blob is never held in memory as a whole: it is hashed while it is written, and a `FileSource` reads the parts that are
needed. A blob that comes over the network is an `IncomingBlob`: it has one writer, its hash is checked at the end, and
after a broken connection the received bytes are kept for a resumption.

    FOLDER/DIGEST                 a blob
    FOLDER/tmp/…                  being written here
    FOLDER/partial/OWNER/DIGEST   interrupted on its way in; DIGEST.….tmp while it is being received
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import StorageFailed
from shoal.core.model.tree import Slots
from shoal.core.protocol.message import BlobRef
from shoal.runtime.durable_files import (
    CrashPoint,
    FileSource,
    digest_of,
    make_folder,
    no_crash,
    rename_durably,
    same_digest,
    storage_failed,
    storing,
    sync_folder,
    write_new,
)
from shoal.runtime.partial_blobs import PartialBlobs, settled
from shoal.validation.message_checks import is_digest
from shoal.wire.payload import open_payload, payload_pieces

SHARED_S = 3600.0
"""Seconds for which a file in a shared folder may still be in use after it was touched."""


@dataclass(frozen=True)
class FileBlob:
    """A complete blob as a file in another folder, to be moved."""

    path: Path
    ref: BlobRef


class FileBlobs:
    """Blobs in one folder: `shoal.core.protocol.message.Blobs`, and what shells need besides. Any thread may call."""

    far = False
    """True if the files are copies from a remote store: then calls are slow and belong in a thread."""

    def __init__(self, folder: Path, at: CrashPoint = no_crash, *, shared: bool = False) -> None:
        self.folder, self._at = folder, at
        self._busy_s = SHARED_S if shared else 0.0
        self._lent: dict[str, bytes] = {}
        for path in (folder, folder / "tmp"):
            make_folder(path)
        self.partials = PartialBlobs(folder / "partial", self.adopt)

    # Methods for the core

    def put(self, slots: Slots) -> BlobRef:
        """Store a tree as a blob, durably. Raises `StorageFailed`."""
        return self._store(payload_pieces(slots))

    def keep(self, ref: BlobRef, data: bytes) -> None:
        """Store a blob that was received whole, durably. Raises `InvalidPayload` if its hash is another."""
        with storing(self.folder):
            if self._is_there(ref):
                same_digest(digest_of([data]), ref)
            else:
                self._store([data], ref)

    def _store(self, pieces: Iterable[bytes | memoryview], wanted: BlobRef | None = None) -> BlobRef:
        temporary = self.temporary()
        try:
            ref = write_new(temporary, pieces)
            if wanted is not None:
                same_digest(ref.digest, wanted)
            self.adopt(temporary, ref)
            return ref
        finally:
            temporary.unlink(missing_ok=True)

    def get(self, ref: BlobRef) -> Slots:
        """Open a blob; its tensors are read on use. Raises `StorageFailed` if it is missing or incomplete."""
        return open_payload(self._lent.get(ref.digest) or self.open(ref))

    # Further methods for shells

    @contextlib.contextmanager
    def lent(self, blobs: dict[str, bytes]) -> Iterator[None]:
        """Let `get` also return these blobs while the block runs. One thread at a time."""
        self._lent = blobs
        try:
            yield
        finally:
            self._lent = {}

    def path(self, digest: str) -> Path:
        """Return the path of a blob, whether it exists or not."""
        assert is_digest(digest), digest
        return self.folder / digest

    def open(self, ref: BlobRef) -> FileSource:
        """Return the bytes of a blob. Raises `StorageFailed` if it is missing or has another length."""
        size = self.size(ref.digest)
        if size != ref.nbytes:
            fault, code = ("is missing", "missing") if size is None else (f"has {size} bytes", "damaged")
            raise StorageFailed(f"blob {ref.digest[:12]}… {fault} in {self.folder}", code=f"storage.{code}")
        return FileSource(self.path(ref.digest))

    def size(self, digest: str) -> int | None:
        """Return the length of a blob; None if it is missing."""
        assert is_digest(digest), digest
        try:
            return os.stat(f"{self.folder}{os.sep}{digest}").st_size  # noqa: PTH116 - a third of what a Path takes
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_failed(error, self.folder) from error

    def has(self, digest: str) -> bool:
        """Return whether the blob exists."""
        return self.size(digest) is not None

    def check(self, ref: BlobRef) -> bool:
        """Read a whole blob; return whether its hash is right."""
        if self.size(ref.digest) != ref.nbytes:
            return False
        sha = hashlib.sha256()
        for piece in FileSource(self.path(ref.digest)).pieces():
            sha.update(piece)
        return sha.hexdigest() == ref.digest

    def digests(self) -> list[str]:
        """Return the digests of all blobs, sorted."""
        with storing(self.folder):
            return sorted(entry.name for entry in os.scandir(self.folder) if is_digest(entry.name))

    def delete(self, digest: str) -> None:
        """Remove a blob, if it is there. Open sources of it stay readable."""
        with storing(self.folder):
            self.path(digest).unlink(missing_ok=True)

    def reap(self) -> None:
        """Delete blobs in the remote store too, if there is one. Raises `StorageFailed`."""

    def fetch(self, refs: Collection[BlobRef]) -> None:
        """Copy blobs from the remote store, so that opening them takes no time. Raises `StorageFailed`."""

    def old(self, age_s: float) -> set[str]:
        """Return the digests of the blobs that are older than that."""
        before, found = time.time() - age_s, set()
        for digest in FileBlobs.digests(self):
            path = self.path(digest)
            if path.exists() and path.stat().st_mtime < before:
                found.add(digest)
        return found

    def keep_only(self, digests: Collection[str]) -> int:
        """Remove all other blobs; return how many."""
        gone = [digest for digest in self.digests() if digest not in digests]
        for digest in gone:
            self.delete(digest)
        return len(gone)

    def temporary(self) -> Path:
        """Return a path for a new temporary file."""
        return self.folder / "tmp" / f"{secrets.token_hex(8)}.tmp"

    def adopt(self, temporary: Path, ref: BlobRef) -> None:
        """Rename a complete file on the same disk to a blob, durably. The caller has checked its hash."""
        with storing(self.folder):
            if self._is_there(ref):
                temporary.unlink(missing_ok=True)
                return
            self._publish(temporary, ref)
            descriptor = os.open(temporary, os.O_RDONLY)
            try:
                rename_durably(descriptor, temporary, self.path(ref.digest), "blob", self._at)
            finally:
                os.close(descriptor)

    def take(self, blob: Slots | FileBlob) -> BlobRef:
        """Store slots, or adopt a file; one of another disk is copied, and removed there."""
        if not isinstance(blob, FileBlob):
            return self.put(blob)
        try:
            self.adopt(blob.path, blob.ref)
        except StorageFailed as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EXDEV:
                raise
            self._store(FileSource(blob.path).pieces(), blob.ref)
            blob.path.unlink(missing_ok=True)
        return blob.ref

    def _publish(self, temporary: Path, ref: BlobRef) -> None:
        """Put a complete file into the remote store, if there is one, before it gets its name here."""

    def _is_there(self, ref: BlobRef) -> bool:
        """Return whether the blob is stored; sync its folder, in case another writer has not yet."""
        if self.size(ref.digest) != ref.nbytes:
            return False
        sync_folder(self.folder)
        return True

    def sweep(self, older_s: float = 0.0) -> None:
        """Remove temporary files after a crash, and make partly received blobs resumable.

        Files that were touched in the last `older_s` seconds stay: 0 at a start, an hour while others write. In a
        shared folder it is always an hour.
        """
        before = time.time() - max(older_s, self._busy_s)
        with storing(self.folder):
            for path in settled((self.folder / "tmp").iterdir(), before):
                path.unlink(missing_ok=True)
            self.partials.sweep(before)
