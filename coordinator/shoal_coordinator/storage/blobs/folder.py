"""Blobs as files: `FOLDER/JOB/DIGEST`, as in `shoal.runtime.blob_files`. Several coordinators may share a folder.

There is no lock: complete files get their names by rename, names are hashes of the content, and recent incomplete files
are left alone because another process may be writing them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from shoal.core.protocol.message import BlobRef
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import CrashPoint, FileSource, make_folder, no_crash, storing, write_all
from shoal.wire.payload import PIECE_BYTES, ByteSource
from shoal_coordinator.storage.blobs.store import BlobInfo, BlobStore, missing

_DIGEST = re.compile(r"[0-9a-f]{64}")


class FolderStore(BlobStore):
    """Blobs below a folder. `shared`: other coordinators write there too."""

    def __init__(self, folder: Path, *, shared: bool) -> None:
        self.folder, self.name, self._shared = folder, str(folder), shared
        make_folder(folder)

    def put(self, key: str, source: ByteSource) -> bool:
        path = self.folder / key
        blobs = FileBlobs(path.parent)
        if blobs.has(path.name):
            return False
        temporary = blobs.temporary()
        with storing(temporary), temporary.open("xb", buffering=0) as file:
            for place in range(0, len(source), PIECE_BYTES):
                write_all(file.fileno(), source[place : place + PIECE_BYTES])
        blobs.adopt(temporary, BlobRef(path.name, len(source)))
        return True

    def get(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        path = self.folder / key
        if not path.exists():
            raise missing(key, self.name)
        source = FileSource(path)
        end = len(source) if stop is None else min(stop, len(source))
        for place in range(start, end, PIECE_BYTES):
            yield source[place : min(place + PIECE_BYTES, end)]

    def size(self, key: str) -> int | None:
        path = self.folder / key
        with storing(path):
            return path.stat().st_size if path.exists() else None

    def delete(self, key: str) -> None:
        path = self.folder / key
        with storing(path):
            path.unlink(missing_ok=True)

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        for path in list((self.folder / prefix).glob("**/*")):
            try:
                about = path.stat()
            except FileNotFoundError:
                continue
            if _DIGEST.fullmatch(path.name) and "partial" not in path.parts:
                yield BlobInfo(path.relative_to(self.folder).as_posix(), about.st_size, about.st_mtime)

    def check(self) -> None:
        if self._shared:  # else a start finds out by itself
            super().check()

    def blobs_of(self, job: str, near: Path, at: CrashPoint = no_crash) -> FileBlobs:
        del near  # the files are the store
        return FileBlobs(self.folder / job, at, shared=self._shared)
