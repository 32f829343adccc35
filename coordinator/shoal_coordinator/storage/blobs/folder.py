"""Blobs as files: `FOLDER/JOB/DIGEST`, as `shoal.runtime.store` keeps them. Several coordinators may share a folder.

There is no lock on it: files get their names when they are whole, names say what is in them, and what is half-made is
left alone while somebody may be at it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from shoal.core.message import Ref
from shoal.runtime.store import CrashPoint, FileBodies, FileSource, make_folder, no_crash, storing, write_all
from shoal.wire import PIECE_BYTES, ByteSource
from shoal_coordinator.blobs.store import BlobStore, Kept, missing

_DIGEST = re.compile(r"[0-9a-f]{64}")


class FolderStore(BlobStore):
    """Blobs below a folder. `shared`: other coordinators write there too."""

    def __init__(self, folder: Path, *, shared: bool) -> None:
        self.folder, self.name, self._shared = folder, str(folder), shared
        make_folder(folder)

    def put(self, key: str, source: ByteSource) -> bool:
        path = self.folder / key
        bodies = FileBodies(path.parent)
        if bodies.has(path.name):
            return False
        temporary = bodies.temporary()
        with storing(temporary), temporary.open("xb", buffering=0) as file:
            for place in range(0, len(source), PIECE_BYTES):
                write_all(file.fileno(), source[place : place + PIECE_BYTES])
        bodies.adopt(temporary, Ref(path.name, len(source)))
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

    def list(self, prefix: str) -> Iterator[Kept]:
        for path in list((self.folder / prefix).glob("**/*")):
            try:
                about = path.stat()
            except FileNotFoundError:
                continue
            if _DIGEST.fullmatch(path.name) and "partial" not in path.parts:
                yield Kept(path.relative_to(self.folder).as_posix(), about.st_size, about.st_mtime)

    def check(self) -> None:
        if self._shared:  # else a start finds out by itself
            super().check()

    def bodies(self, job: str, near: Path, at: CrashPoint = no_crash) -> FileBodies:
        del near  # the files are the store
        return FileBodies(self.folder / job, at, shared=self._shared)
