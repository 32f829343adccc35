"""Files that a crash leaves whole, and errors of the disk with a remedy."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from shoal.core.errors import InvalidPayload, ShoalError, StorageFailed
from shoal.core.protocol.message import BlobRef
from shoal.wire.payload import PIECE_BYTES

T = TypeVar("T")

CrashPoint = Callable[[str], None]
"""Called with `WHAT.STEP` around every step that a crash could fall between; tests end the process there."""

STEPS = ("written", "synced", "renamed", "kept")
"""The steps of one durable write: before the fsync, after it, after the rename, after the folder's fsync."""

_FULL = {errno.ENOSPC, errno.EDQUOT}

_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def no_crash(point: str) -> None:
    """Do nothing: the crash point outside crash tests."""


@contextlib.contextmanager
def storing(place: Path) -> Iterator[None]:
    """Turn what the operating system says about files into `StorageFailed`, with the cause and the remedy."""
    try:
        yield
    except OSError as error:
        raise storage_failed(error, place) from error


def storage_failed(error: OSError, place: Path) -> StorageFailed:
    """Return the `StorageFailed` for an `OSError`."""
    if error.errno in _FULL:
        return StorageFailed(
            f"no space left for {place}", code="storage.full", hint="free some space on that disk, then try again"
        )
    if error.errno in _DENIED:
        reason = error.strerror or "not allowed"
        mounted = "choose another folder, or mount its file system for writing"
        hint = mounted if error.errno == errno.EROFS else "check who owns it and its permissions"
        return StorageFailed(f"may not write {place}: {reason}", code="storage.denied", hint=hint)
    return StorageFailed(f"{place}: {error.strerror or error}", hint="check the disk that it lies on")


def make_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, for its owner's eyes alone, durably."""
    with storing(folder):
        missing = [folder, *folder.parents]
        missing = missing[: next(i for i, path in enumerate(missing) if path.is_dir())]
        for path in reversed(missing):
            path.mkdir(mode=0o700, exist_ok=True)
            sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames within a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes, what: str, at: CrashPoint = no_crash) -> None:
    """Replace a small file: after a crash at any instant it is whole, the old one or the new one. `what` names its
    crash points. Raises `StorageFailed`."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    with storing(path):
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            write_all(descriptor, data)
            rename_durably(descriptor, temporary, path, what, at)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)


def read_json(path: Path, parse: Callable[[Any], T], hint: str = "remove it") -> T | None:
    """Return the parsed values of a JSON file of this process; None if it is missing.

    Raises `StorageFailed` for a damaged file, with the remedy `hint`.
    """
    with storing(path):
        if not path.exists():
            return None
        text = path.read_bytes()
    try:
        return parse(json.loads(text))
    except StorageFailed:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, ShoalError) as error:
        raise StorageFailed(f"{path}: {error}", code="storage.damaged", hint=hint) from None


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of it: one `write` may take less than it is given, and less than 2 GiB at a time."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


def write_new(path: Path, pieces: Iterable[bytes | memoryview]) -> BlobRef:
    """Write a new file, not yet durably, and return the reference of its contents. Raises `StorageFailed`."""
    sha, nbytes = hashlib.sha256(), 0
    with storing(path):
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            for piece in pieces:
                sha.update(piece)
                nbytes += len(piece)
                write_all(descriptor, piece)
        finally:
            os.close(descriptor)
    return BlobRef(sha.hexdigest(), nbytes)


def free_bytes(folder: Path) -> int:
    """Return the free space of the disk that has the folder."""
    with storing(folder):
        found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def rename_durably(descriptor: int, temporary: Path, path: Path, what: str, at: CrashPoint) -> None:
    """Rename a temporary file to its name, durably."""
    at(f"{what}.written")
    os.fsync(descriptor)
    at(f"{what}.synced")
    temporary.rename(path)
    at(f"{what}.renamed")
    sync_folder(path.parent)
    at(f"{what}.kept")


class FileSource:
    """A file's bytes, read when they are sliced; any number of threads may. Lives on when the file is deleted."""

    __slots__ = ("_descriptor", "_length", "_path")

    def __init__(self, path: Path) -> None:
        self._descriptor = -1
        self._path = path
        with storing(path):
            self._descriptor = os.open(path, os.O_RDONLY)
            self._length = os.fstat(self._descriptor).st_size

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> bytes:
        start, stop, step = part.indices(self._length)
        assert step == 1, "only whole runs of bytes can be read"
        with storing(self._path):
            pieces = []
            while start < stop:
                piece = os.pread(self._descriptor, stop - start, start)
                if not piece:
                    raise StorageFailed(f"{self._path} became shorter while it was read", code="storage.damaged")
                pieces.append(piece)
                start += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pieces(self, start: int = 0) -> Iterator[bytes]:
        """Yield the bytes from `start` on in pieces of at most 1 MiB."""
        for place in range(start, self._length, PIECE_BYTES):
            yield self[place : place + PIECE_BYTES]


def same_digest(found: str, ref: BlobRef) -> None:
    """Raise `InvalidPayload` unless the hash that was found is that of the name."""
    if found != ref.digest:
        raise InvalidPayload(
            f"the bytes that came are {found[:12]}…, not {ref.digest[:12]}…",
            code="blob.digest",
            hint="they were changed on the way, or on a disk: send it again",
        )


def digest_of(pieces: Iterable[Any]) -> str:
    """Return the SHA-256 of bytes in pieces, in hexadecimal."""
    sha = hashlib.sha256()
    for piece in pieces:
        sha.update(piece)
    return sha.hexdigest()
