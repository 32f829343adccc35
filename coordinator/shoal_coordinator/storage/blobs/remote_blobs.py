"""Blobs of a job in a remote store, with local copies of those that were made or read here.

    put, adopt     write here -> put into the store -> rename here      a blob that has its name here is in the store
                   (a blob that a node has put into the store itself is copied there, and never sent to it again)
    open           copy from the store, hashed on the way -> read here
    delete         deleted here at once, in the store by `reap`, unless it is put again before
    trim           delete the least recently used copies beyond `blob_cache_bytes_max` of all jobs together

So sums, models and updates are read from files with every kind of store, and no blob is held in memory as a whole.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from shoal.core.errors import StorageFailed
from shoal.core.protocol.message import BlobRef
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import CrashPoint, FileSource, no_crash, storing, write_new
from shoal.runtime.partial_blobs import PartialBlobs
from shoal_coordinator.storage.blobs.store import BlobStore

INCOMING = ".incoming"

REST_S = 60.0
"""Seconds for which a copy stays after its last use, because it may be opened; and the interval of trims."""

T = TypeVar("T")
P = ParamSpec("P")


async def call_blobs(blobs: FileBlobs, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a method of these blobs, in a thread if it may take time."""
    return await asyncio.to_thread(call, *arguments, **named) if blobs.far else call(*arguments, **named)


class RemoteStore(BlobStore):
    """A store outside this machine's files. It makes one `RemoteBlobs` per job, which knows pending deletions."""

    def __init__(self, blob_cache_bytes_max: int) -> None:
        self.blob_cache_bytes_max = blob_cache_bytes_max
        self._of_job: dict[tuple[str, Path], RemoteBlobs] = {}
        self.using = threading.Lock()
        self._trim_at = 0.0

    def blobs_of(self, job: str, near: Path, at: CrashPoint = no_crash) -> RemoteBlobs:
        known = self._of_job.get((job, near))
        if known is None or not near.is_dir():  # without its folder: another coordinator has owned the job since
            known = self._of_job[job, near] = RemoteBlobs(self, job, near, at)
        return known

    def trim(self) -> None:
        """Delete the least recently used copies beyond the limit, if `REST_S` have passed since the last time."""
        if time.monotonic() < self._trim_at:
            return
        self._trim_at = time.monotonic() + REST_S
        copies = sorted(copy for blobs in list(self._of_job.values()) for copy in blobs.copies.list())
        surplus = sum(nbytes for _, nbytes, _ in copies) - self.blob_cache_bytes_max
        for _, nbytes, path in copies:
            if surplus <= 0:
                return
            with self.using, storing(path):
                if path.exists() and path.stat().st_mtime < time.time() - REST_S:
                    path.unlink()
                    surplus -= nbytes


class LocalCopies:
    """The copies of one job's blobs as files. `using`: held while a copy is marked as used or deleted."""

    def __init__(self, files: FileBlobs, using: threading.Lock) -> None:
        self._files, self._using = files, using

    def list(self) -> list[tuple[float, int, Path]]:
        """Return each copy's time of last use, its length and its path."""
        found = []
        for digest in FileBlobs.digests(self._files) if self._files.folder.is_dir() else ():
            path = self._files.path(digest)
            with suppress(FileNotFoundError):
                about = path.stat()
                found.append((about.st_mtime, about.st_size, path))
        return found

    def touch(self, digest: str) -> bool:
        """Mark a copy as used; return whether there is one."""
        with self._using, storing(self._files.folder):
            try:
                os.utime(self._files.path(digest))
            except FileNotFoundError:
                return False
            return True


class PendingDeletions:
    """Blobs that are deleted here, but not yet in the store. Any thread may call."""

    def __init__(self) -> None:
        self._doomed: set[str] = set()
        self._going: set[str] = set()  # being deleted in the store at the moment
        self._changed = threading.Condition()

    def add(self, digest: str) -> None:
        """Delete a blob at the next `carry_out`."""
        with self._changed:
            self._doomed.add(digest)

    def withdraw(self, digest: str) -> None:
        """Keep a blob that is put again; wait if it is being deleted at the moment."""
        with self._changed:
            self._doomed.discard(digest)
            self._changed.wait_for(lambda: digest not in self._going)

    def digests(self) -> set[str]:
        """Return the digests of all of them."""
        with self._changed:
            return self._doomed | self._going

    def carry_out(self, delete: Callable[[str], None]) -> None:
        """Call `delete` for each of them; one that fails with `StorageFailed` stays."""
        while True:
            with self._changed:
                if not self._doomed:
                    return
                digest = self._doomed.pop()
                self._going.add(digest)
            try:
                delete(digest)
            except StorageFailed:
                self.add(digest)
                raise
            finally:
                with self._changed:
                    self._going.discard(digest)
                    self._changed.notify_all()


class RemotePartials(PartialBlobs):
    """Blobs on their way in: through this coordinator, or put into the store by nodes and not yet checked."""

    def __init__(self, folder: Path, adopt: Callable[[Path, BlobRef], None], store: BlobStore, job: str) -> None:
        super().__init__(folder, adopt)
        self._store, self._prefix = store, f"{INCOMING}/{job}"

    def key(self, owner: str, digest: str) -> str:
        """Return the key under which a node puts a blob into the store. (No job can be called `.incoming`.)"""
        return f"{self._prefix}/{owner}/{digest}"

    def drop(self, older_s: float) -> int:
        before = time.time() - older_s
        gone = [one.key for one in self._store.list(self._prefix) if one.since < before]
        for key in gone:
            self._store.delete(key)
        return len(gone) + super().drop(older_s)


class RemoteBlobs(FileBlobs):
    """Blobs under `JOB/` of a store. `folder` has the copies, and belongs to this object alone."""

    far = True

    def __init__(self, store: RemoteStore, job: str, folder: Path, at: CrashPoint = no_crash) -> None:
        super().__init__(folder, at)
        self.store, self.job = store, job
        self.partials: RemotePartials = RemotePartials(folder / "partial", self.adopt, store, job)
        self.copies, self._deletions = LocalCopies(self, store.using), PendingDeletions()
        self._sources: dict[str, tuple[str, str]] = {}  # blobs that the store has under another key: that, and a mark

    @contextmanager
    def comes_from(self, digest: str, key: str, mark: str) -> Iterator[None]:
        """Copy a blob within the store from that key, if its contents still have that mark, while the block runs."""
        self._sources[digest] = key, mark
        try:
            yield
        finally:
            del self._sources[digest]

    def key(self, digest: str) -> str:
        """Return the key of a blob in the store."""
        return f"{self.job}/{digest}"

    def size(self, digest: str) -> int | None:
        found = super().size(digest)
        if found is not None:
            return found
        return None if digest in self._deletions.digests() else self.store.size(self.key(digest))

    def digests(self) -> list[str]:
        doomed = self._deletions.digests()
        return sorted({kept.key.rpartition("/")[2] for kept in self.store.list(self.job)} - doomed)

    def open(self, ref: BlobRef) -> FileSource:
        self._copy(ref)
        return super().open(ref)

    def fetch(self, refs: Collection[BlobRef]) -> None:
        for ref in refs:
            self._copy(ref)

    def _copy(self, ref: BlobRef) -> None:
        """Copy a blob from the store, if it is there and not here."""
        if self.copies.touch(ref.digest) or self.size(ref.digest) != ref.nbytes:
            return
        temporary = self.temporary()
        try:
            if write_new(temporary, self.store.get(self.key(ref.digest))).digest != ref.digest:
                raise StorageFailed(
                    f"body {ref.digest[:12]}… is damaged in {self.store.name}",
                    code="storage.damaged",
                    hint="bring it back from a backup of the store",
                )
            with storing(temporary):
                temporary.rename(self.path(ref.digest))
        finally:
            temporary.unlink(missing_ok=True)

    def check(self, ref: BlobRef) -> bool:
        self._copy(ref)
        return super().check(ref)

    def delete(self, digest: str) -> None:
        super().delete(digest)
        self._deletions.add(digest)

    def reap(self) -> None:
        self.store.trim()
        self._deletions.carry_out(lambda digest: self.store.delete(self.key(digest)))

    def old(self, age_s: float) -> set[str]:
        before = time.time() - age_s
        there = {kept.key.rpartition("/")[2]: kept.since for kept in self.store.list(self.job)}
        for digest in super().old(age_s) - there.keys():  # another coordinator has deleted it
            super().delete(digest)
        return {digest for digest, since in there.items() if since < before}

    def _publish(self, temporary: Path, ref: BlobRef) -> None:
        self._deletions.withdraw(ref.digest)
        source = self._sources.get(ref.digest)
        if source is None or not self.store.copy(source[0], self.key(ref.digest), source[1]):
            self.store.put(self.key(ref.digest), FileSource(temporary))
        self._at("body.stored")

    def _is_there(self, ref: BlobRef) -> bool:
        return FileBlobs.size(self, ref.digest) == ref.nbytes
