"""A job's bodies in a store that is not this machine's disk, with copies here of those that were made or read here.

    put, adopt     write here -> put into the store -> rename here      what has its name here is in the store
                   (what a node has put into the store itself is copied there, and never sent to it again)
    open           copy from the store, hashed on the way -> read here
    delete         gone here at once; from the store when `reap` comes to it, unless somebody has put it again
    trim           the copies that were not used for longest go here, beyond `near_bytes_max` of all jobs together

So sums, models and updates are read from files whatever the store is, none is ever in memory as a whole, and whoever
finds a body here knows without asking that the store has it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from shoal.core.errors import StorageFailed
from shoal.core.message import Ref
from shoal.runtime.store import CrashPoint, FileBodies, FileSource, no_crash, storing, write_all
from shoal_coordinator.blobs.store import BlobStore

INCOMING = ".incoming"

REST_S = 60.0
"""A copy that was used so lately stays: somebody may be about to open it. Nor are copies looked at more often."""

T = TypeVar("T")
P = ParamSpec("P")


async def asked(bodies: FileBodies, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What a method of these bodies answers: in a thread where that may take time, else at once."""
    return await asyncio.to_thread(call, *arguments, **named) if bodies.far else call(*arguments, **named)


class FarStore(BlobStore):
    """A store that is not this machine's files. A job has one `StoredBodies`: it knows what is being deleted."""

    def __init__(self, near_bytes_max: int) -> None:
        self.near_bytes_max = near_bytes_max
        self._bodies: dict[tuple[str, Path], StoredBodies] = {}
        self.using = threading.Lock()
        self._trim_at = 0.0

    def bodies(self, job: str, near: Path, at: CrashPoint = no_crash) -> StoredBodies:
        known = self._bodies.get((job, near))
        if known is None or not near.is_dir():  # without its folder: the job was another coordinator's in between
            known = self._bodies[job, near] = StoredBodies(self, job, near, at)
        return known

    def trim(self) -> None:
        """Let no more copies lie here than may, if it is time to look."""
        if time.monotonic() < self._trim_at:
            return
        self._trim_at = time.monotonic() + REST_S
        copies = sorted(copy for bodies in list(self._bodies.values()) for copy in bodies.copies())
        surplus = sum(nbytes for _, nbytes, _ in copies) - self.near_bytes_max
        for _, nbytes, path in copies:
            if surplus <= 0:
                return
            with self.using, storing(path):
                if path.exists() and path.stat().st_mtime < time.time() - REST_S:
                    path.unlink()
                    surplus -= nbytes


class StoredBodies(FileBodies):
    """Bodies under `JOB/` of a store; `folder` has the copies, and is nobody else's."""

    far = True

    def __init__(self, store: FarStore, job: str, folder: Path, at: CrashPoint = no_crash) -> None:
        super().__init__(folder, at)
        self.store, self.job = store, job
        self._doomed: set[str] = set()  # deleted, but not yet in the store
        self._going: set[str] = set()  # being deleted there just now
        self._changed = threading.Condition()
        self._sources: dict[str, tuple[str, str]] = {}  # of bodies that the store has under another key: it, and a mark

    @contextmanager
    def comes_from(self, digest: str, key: str, mark: str) -> Iterator[None]:
        """While open, a body that gets its name here is copied in the store from that key, if its content still has
        that mark."""
        self._sources[digest] = key, mark
        try:
            yield
        finally:
            del self._sources[digest]

    def key(self, digest: str) -> str:
        """What a body is called in the store."""
        return f"{self.job}/{digest}"

    def incoming_key(self, owner: str, digest: str) -> str:
        """What a body is called that its owner puts there by himself, until it was looked at. (No job is called so.)"""
        return f"{INCOMING}/{self.job}/{owner}/{digest}"

    def drop_partials(self, older_s: float) -> int:
        before = time.time() - older_s
        gone = [one.key for one in self.store.list(f"{INCOMING}/{self.job}") if one.since < before]
        for key in gone:
            self.store.delete(key)
        return len(gone) + super().drop_partials(older_s)

    def size(self, digest: str) -> int | None:
        found = super().size(digest)
        if found is not None:
            return found
        with self._changed:
            if digest in self._doomed | self._going:
                return None
        return self.store.size(self.key(digest))

    def digests(self) -> list[str]:
        with self._changed:
            doomed = self._doomed | self._going
        return sorted({kept.key.rpartition("/")[2] for kept in self.store.list(self.job)} - doomed)

    def open(self, ref: Ref) -> FileSource:
        self._copy(ref)
        return super().open(ref)

    def fetch(self, refs: Collection[Ref]) -> None:
        for ref in refs:
            self._copy(ref)

    def copies(self) -> list[tuple[float, int, Path]]:
        """When each copy was used last, and how large it is."""
        found = []
        for digest in FileBodies.digests(self) if self.folder.is_dir() else ():
            with suppress(FileNotFoundError):
                about = self.path(digest).stat()
                found.append((about.st_mtime, about.st_size, self.path(digest)))
        return found

    def _is_near(self, digest: str) -> bool:
        """Whether there is a copy; then it stays for a while."""
        with self.store.using, storing(self.folder):
            try:
                os.utime(self.path(digest))
            except FileNotFoundError:
                return False
            return True

    def _copy(self, ref: Ref) -> None:
        """Bring a body here, unless it is, and it is there."""
        if self._is_near(ref.digest) or self.size(ref.digest) != ref.nbytes:
            return
        temporary, sha = self.temporary(), hashlib.sha256()
        with storing(temporary), temporary.open("xb", buffering=0) as file:
            try:
                for piece in self.store.get(self.key(ref.digest)):
                    sha.update(piece)
                    write_all(file.fileno(), piece)
                if sha.hexdigest() != ref.digest:
                    raise StorageFailed(
                        f"body {ref.digest[:12]}… is damaged in {self.store.name}",
                        code="storage.damaged",
                        hint="bring it back from a backup of the store",
                    )
                temporary.rename(self.path(ref.digest))
            finally:
                temporary.unlink(missing_ok=True)

    def check(self, ref: Ref) -> bool:
        self._copy(ref)
        return super().check(ref)

    def delete(self, digest: str) -> None:
        super().delete(digest)
        with self._changed:
            self._doomed.add(digest)

    def reap(self) -> None:
        self.store.trim()
        while True:
            with self._changed:
                if not self._doomed:
                    return
                digest = self._doomed.pop()
                self._going.add(digest)
            try:
                self.store.delete(self.key(digest))
            except StorageFailed:
                with self._changed:
                    self._doomed.add(digest)
                raise
            finally:
                with self._changed:
                    self._going.discard(digest)
                    self._changed.notify_all()

    def old(self, age_s: float) -> set[str]:
        before = time.time() - age_s
        there = {kept.key.rpartition("/")[2]: kept.since for kept in self.store.list(self.job)}
        for digest in super().old(age_s) - there.keys():  # another coordinator has deleted it
            super().delete(digest)
        return {digest for digest, since in there.items() if since < before}

    def _publish(self, temporary: Path, ref: Ref) -> None:
        with self._changed:
            self._doomed.discard(ref.digest)
            self._changed.wait_for(lambda: ref.digest not in self._going)
        source = self._sources.get(ref.digest)
        if source is None or not self.store.copy(source[0], self.key(ref.digest), source[1]):
            self.store.put(self.key(ref.digest), FileSource(temporary))
        self._at("body.stored")

    def _is_there(self, ref: Ref) -> bool:
        return FileBodies.size(self, ref.digest) == ref.nbytes
