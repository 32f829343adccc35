"""Bodies in files, named by the SHA-256 of what they hold; and files that a crash leaves whole, old or new.

    write to a temporary file -> fsync -> rename -> fsync the folder          only then may anything name the file

A body is never wholly in memory: it is written piece by piece while it is hashed, and read through a `FileSource` that
brings in what is looked at. One that comes over the network is an `Incoming`: it belongs to one writer, is checked
against its name at the end, and what came of it before the connection broke is kept for a resumption.

    FOLDER/DIGEST                 a body
    FOLDER/tmp/…                  being made here
    FOLDER/partial/OWNER/DIGEST   broken off on its way in; DIGEST.….tmp while somebody writes to it
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shoal.core.errors import InvalidPayload, Refused, StorageFailed
from shoal.core.message import Ref
from shoal.core.tree import Slots
from shoal.heads import NAME
from shoal.wire import PIECE_BYTES, open_payload, payload_pieces

CrashPoint = Callable[[str], None]
"""Called with `WHAT.STEP` around every step that a crash could fall between; tests end the process there."""

STEPS = ("written", "synced", "renamed", "kept")
"""The steps of one durable write: before the fsync, after it, after the rename, after the folder's fsync."""

SHARED_S = 3600.0
"""In a folder that others write to as well, what was touched so lately may be somebody's work."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def no_crash(point: str) -> None:
    """The crash point of everything but a crash test."""


@contextlib.contextmanager
def storing(place: Path) -> Iterator[None]:
    """Turn what the operating system says about files into `StorageFailed`, with the cause and the remedy."""
    try:
        yield
    except OSError as error:
        raise storage_failed(error, place) from error


def storage_failed(error: OSError, place: Path) -> StorageFailed:
    """The error of the tree for one of the operating system's."""
    if error.errno in _FULL:
        return StorageFailed(
            f"no space left for {place}", code="storage.full", hint="free some space on that disk, then try again"
        )
    if error.errno in _DENIED:
        reason = error.strerror or "not allowed"
        return StorageFailed(
            f"may not write {place}: {reason}", code="storage.denied", hint="check who owns it and its permissions"
        )
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
            _keep(descriptor, temporary, path, what, at)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of it: one `write` may take less than it is given, and less than 2 GiB at a time."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


def _keep(descriptor: int, temporary: Path, path: Path, what: str, at: CrashPoint) -> None:
    """From a temporary file to one under its name, durably."""
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
        """What stands from `start` on, in pieces of at most 1 MiB."""
        for place in range(start, self._length, PIECE_BYTES):
            yield self[place : place + PIECE_BYTES]


@dataclass(frozen=True)
class FileBody:
    """A finished body in a file of another folder on the same disk, for whoever moves it away."""

    path: Path
    ref: Ref


class FileBodies:
    """Bodies in one folder: `shoal.core.message.Bodies`, and what shells need besides. Any thread may call."""

    far = False
    """Whether these are copies of what lies elsewhere: then asking takes time, and is done in a thread."""

    def __init__(self, folder: Path, at: CrashPoint = no_crash, *, shared: bool = False) -> None:
        self.folder, self._at = folder, at
        self._busy_s = SHARED_S if shared else 0.0
        self._lent: dict[str, bytes] = {}
        for path in (folder, folder / "tmp", folder / "partial"):
            make_folder(path)

    # What the core needs

    def put(self, slots: Slots) -> Ref:
        """Write a body, durably. Raises `StorageFailed`."""
        temporary = self.temporary()
        sha, length = hashlib.sha256(), 0
        with storing(self.folder):
            descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            try:
                for piece in payload_pieces(slots):
                    sha.update(piece)
                    length += len(piece)
                    write_all(descriptor, piece)
                ref = Ref(sha.hexdigest(), length)
                if not self._is_there(ref):
                    self._publish(temporary, ref)
                    _keep(descriptor, temporary, self.path(ref.digest), "body", self._at)
                return ref
            finally:
                os.close(descriptor)
                temporary.unlink(missing_ok=True)

    def keep(self, ref: Ref, data: bytes) -> None:
        """Write a body that came whole, durably. Raises `InvalidPayload` when it is not what its name says."""
        same_digest(digest_of([data]), ref)
        temporary = self.temporary()
        with storing(self.folder):
            if self._is_there(ref):
                return
            descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            try:
                write_all(descriptor, data)
                self._publish(temporary, ref)
                _keep(descriptor, temporary, self.path(ref.digest), "body", self._at)
            finally:
                os.close(descriptor)
                temporary.unlink(missing_ok=True)

    def get(self, ref: Ref) -> Slots:
        """Open a body; its tensors are read when they are used. Raises `StorageFailed` when it is not there whole."""
        return open_payload(self._lent.get(ref.digest) or self.open(ref))

    # What shells need besides

    @contextlib.contextmanager
    def lent(self, bodies: dict[str, bytes]) -> Iterator[None]:
        """While open, `get` gives these too, by their digests: they are kept elsewhere. One thread at a time."""
        self._lent = bodies
        try:
            yield
        finally:
            self._lent = {}

    def path(self, digest: str) -> Path:
        """Where the body of that digest is, or would be."""
        assert _DIGEST.fullmatch(digest), digest
        return self.folder / digest

    def open(self, ref: Ref) -> FileSource:
        """The bytes of a body. Raises `StorageFailed` when it is missing or has another length."""
        size = self.size(ref.digest)
        if size != ref.nbytes:
            fault, code = ("is missing", "missing") if size is None else (f"has {size} bytes", "damaged")
            raise StorageFailed(f"body {ref.digest[:12]}… {fault} in {self.folder}", code=f"storage.{code}")
        return FileSource(self.path(ref.digest))

    def size(self, digest: str) -> int | None:
        """Bytes of a body; None when it is not there."""
        assert _DIGEST.fullmatch(digest), digest
        try:
            return os.stat(f"{self.folder}{os.sep}{digest}").st_size  # noqa: PTH116 - a third of what a Path takes
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_failed(error, self.folder) from error

    def has(self, digest: str) -> bool:
        """Whether there is a body of that digest."""
        return self.size(digest) is not None

    def check(self, ref: Ref) -> bool:
        """Read a whole body and say whether it is what its name says."""
        if self.size(ref.digest) != ref.nbytes:
            return False
        sha = hashlib.sha256()
        for piece in FileSource(self.path(ref.digest)).pieces():
            sha.update(piece)
        return sha.hexdigest() == ref.digest

    def digests(self) -> list[str]:
        """The digests of all bodies, sorted."""
        with storing(self.folder):
            return sorted(entry.name for entry in os.scandir(self.folder) if _DIGEST.fullmatch(entry.name))

    def delete(self, digest: str) -> None:
        """Remove a body, if it is there. Whoever has it open can read on."""
        with storing(self.folder):
            self.path(digest).unlink(missing_ok=True)

    def reap(self) -> None:
        """Let what was deleted be gone where these are copies of, too. Raises `StorageFailed`."""

    def fetch(self, refs: Collection[Ref]) -> None:
        """Bring bodies here that lie elsewhere, so that opening them takes no time. Raises `StorageFailed`."""

    def old(self, age_s: float) -> set[str]:
        """Digests of the bodies that have been here for longer than that."""
        before, found = time.time() - age_s, set()
        for digest in FileBodies.digests(self):
            path = self.path(digest)
            if path.exists() and path.stat().st_mtime < before:
                found.add(digest)
        return found

    def keep_only(self, digests: Collection[str]) -> int:
        """Remove all bodies but these; how many were removed."""
        gone = [digest for digest in self.digests() if digest not in digests]
        for digest in gone:
            self.delete(digest)
        return len(gone)

    def free_bytes(self) -> int:
        """Space that is left on the disk."""
        with storing(self.folder):
            found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def temporary(self) -> Path:
        """A path for a new file that may become a body; it does not exist yet."""
        return self.folder / "tmp" / f"{secrets.token_hex(8)}.tmp"

    def adopt(self, temporary: Path, ref: Ref) -> None:
        """Make a finished file on the same disk the body of that name, durably. The caller knows what it holds."""
        with storing(self.folder):
            if self._is_there(ref):
                temporary.unlink(missing_ok=True)
                return
            self._publish(temporary, ref)
            descriptor = os.open(temporary, os.O_RDONLY)
            try:
                _keep(descriptor, temporary, self.path(ref.digest), "body", self._at)
            finally:
                os.close(descriptor)

    def take(self, body: Slots | FileBody) -> Ref:
        """`put` or `adopt`, whatever it is."""
        if not isinstance(body, FileBody):
            return self.put(body)
        self.adopt(body.path, body.ref)
        return body.ref

    def _publish(self, temporary: Path, ref: Ref) -> None:
        """Called with a whole file just before it gets its name: where these are copies, the store has it then."""

    def _is_there(self, ref: Ref) -> bool:
        """Whether this body is stored already. Its folder is synced, lest the other writer had not come to that."""
        if self.size(ref.digest) != ref.nbytes:
            return False
        sync_folder(self.folder)
        return True

    # What comes over the network

    def offset(self, owner: str, digest: str) -> int:
        """How many bytes of a body that broke off are kept."""
        try:
            return self._partial(owner, digest).stat().st_size
        except FileNotFoundError:
            return 0

    def incoming(self, owner: str, ref: Ref, start: int = 0) -> Incoming:
        """Receive a body, or what is missing of it from `start` on. Use it as a context manager.

        Raises `Refused` (`body.offset`) when fewer than `start` bytes of it are kept.
        """
        return Incoming(self, self._partial(owner, ref.digest), ref, start)

    def _partial(self, owner: str, digest: str) -> Path:
        assert _DIGEST.fullmatch(digest), digest
        assert NAME.fullmatch(owner), owner
        return self.folder / "partial" / owner / digest

    def sweep(self, older_s: float = 0.0) -> None:
        """After a crash: remove temporary files, and make what came of bodies over the network resumable again.

        Only files that nobody has touched for `older_s` seconds: at a start, 0; while others write, an hour. A folder
        that is shared is never anybody's alone.
        """
        before = time.time() - max(older_s, self._busy_s)
        with storing(self.folder):
            for path in _settled((self.folder / "tmp").iterdir(), before):
                path.unlink(missing_ok=True)
            for path in _settled((self.folder / "partial").glob("*/*.tmp"), before):
                _shelve(path, path.with_name(path.name.partition(".")[0]))

    def drop_partials(self, older_s: float) -> int:
        """Give up bodies that broke off and were not resumed for that long; how many there were."""
        with storing(self.folder):
            gone = list(_settled((self.folder / "partial").glob("*/*"), time.time() - older_s))
            for path in gone:
                path.unlink(missing_ok=True)
        return len(gone)


def _settled(paths: Iterable[Path], before: float) -> Iterator[Path]:
    for path in list(paths):
        with contextlib.suppress(FileNotFoundError):  # its writer has just finished with it
            if path.stat().st_mtime <= before:
                yield path


def _shelve(temporary: Path, partial: Path) -> None:
    """Keep what came of a body, unless more of it is kept already."""
    came = temporary.stat().st_size
    if came and (not partial.exists() or partial.stat().st_size < came):
        temporary.replace(partial)
    else:
        temporary.unlink(missing_ok=True)


class Incoming:
    """A body on its way in, in a file of this writer's own. Left with an error, it is kept for a resumption.

    `finish` must be called when all has been written; only then is the body stored.
    """

    def __init__(self, bodies: FileBodies, partial: Path, ref: Ref, start: int) -> None:
        self._bodies, self._partial, self.ref = bodies, partial, ref
        self._temporary = partial.with_name(f"{partial.name}.{secrets.token_hex(4)}.tmp")
        self._sha = hashlib.sha256()
        self.offset = 0
        make_folder(partial.parent)
        with storing(partial):
            if start:
                self._take_up(start)
            self._descriptor = os.open(self._temporary, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def _take_up(self, start: int) -> None:
        """Take what is kept away from everybody else, and hash it."""
        try:
            self._partial.rename(self._temporary)
        except FileNotFoundError:
            raise self._no_such_offset(0, start) from None
        kept = FileSource(self._temporary)
        if len(kept) < start or start > self.ref.nbytes:
            _shelve(self._temporary, self._partial)
            raise self._no_such_offset(len(kept), start)
        os.truncate(self._temporary, start)
        for place in range(0, start, PIECE_BYTES):
            self._sha.update(kept[place : min(place + PIECE_BYTES, start)])
        self.offset = start

    def _no_such_offset(self, kept: int, start: int) -> Refused:
        return Refused(
            f"{kept} bytes of this body are here, so it cannot go on at {start}",
            code="body.offset",
            hint="ask with HEAD how much is here",
        )

    def restart(self) -> None:
        """The sender begins at the beginning after all."""
        with storing(self._partial):
            os.ftruncate(self._descriptor, 0)
        self._sha, self.offset = hashlib.sha256(), 0

    def write(self, piece: bytes | memoryview) -> None:
        """Take the next bytes. Raises `InvalidPayload` when there are more than announced, `StorageFailed`."""
        if self.offset + len(piece) > self.ref.nbytes:
            raise InvalidPayload(f"more than the announced {self.ref.nbytes} bytes", code="payload.length")
        with storing(self._partial):
            write_all(self._descriptor, piece)
        self._sha.update(piece)
        self.offset += len(piece)

    def finish(self) -> None:
        """All has come: check it against its name and store it. Raises `InvalidPayload`, `StorageFailed`."""
        if self.offset != self.ref.nbytes:
            raise Refused(f"truncated: {self.offset} of {self.ref.nbytes} bytes came", code="body.short")
        same_digest(self._sha.hexdigest(), self.ref)
        self._bodies.adopt(self._temporary, self.ref)
        self._partial.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        os.close(self._descriptor)
        if not self._temporary.exists():
            return
        with storing(self._partial):
            if isinstance(error, InvalidPayload):  # what is wrong is not worth keeping
                self._temporary.unlink(missing_ok=True)
                self._partial.unlink(missing_ok=True)
            else:
                _shelve(self._temporary, self._partial)


def same_digest(found: str, ref: Ref) -> None:
    """Raise `InvalidPayload` unless the hash that was found is that of the name."""
    if found != ref.digest:
        raise InvalidPayload(
            f"the bytes that came are {found[:12]}…, not {ref.digest[:12]}…",
            code="body.digest",
            hint="they were changed on the way, or on a disk: send the body again",
        )


def digest_of(pieces: Iterable[Any]) -> str:
    """SHA-256, in hexadecimal, of bytes in pieces."""
    sha = hashlib.sha256()
    for piece in pieces:
        sha.update(piece)
    return sha.hexdigest()
