"""Blobs that are being received; after a broken connection they can be resumed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.core.errors import InvalidPayload, Refused
from shoal.core.protocol.message import BlobRef
from shoal.runtime.durable_files import FileSource, make_folder, same_digest, storing, write_all
from shoal.validation.message_checks import NAME, is_digest
from shoal.wire.payload import PIECE_BYTES


class PartialBlobs:
    """Blobs on their way in, by sender, in a folder of its own. `adopt`: stores one that is complete."""

    def __init__(self, folder: Path, adopt: Callable[[Path, BlobRef], None]) -> None:
        self._folder, self.adopt = folder, adopt
        make_folder(folder)

    def offset(self, owner: str, digest: str) -> int:
        """Return how many bytes of an interrupted blob are kept."""
        try:
            return self._path(owner, digest).stat().st_size
        except FileNotFoundError:
            return 0

    def incoming(self, owner: str, ref: BlobRef, start: int = 0) -> IncomingBlob:
        """Receive a blob, or the rest of it from `start` on. Use it as a context manager.

        Raises `Refused` (`blob.offset`) when fewer than `start` bytes of it are kept.
        """
        return IncomingBlob(self, self._path(owner, ref.digest), ref, start)

    def _path(self, owner: str, digest: str) -> Path:
        assert is_digest(digest), digest
        assert NAME.fullmatch(owner), owner
        return self._folder / owner / digest

    def sweep(self, before: float) -> None:
        """Make blobs resumable that were being received before that time, when the process ended."""
        for path in settled(self._folder.glob("*/*.tmp"), before):
            _shelve(path, path.with_name(path.name.partition(".")[0]))

    def drop_others(self, owner: str, digest: str) -> None:
        """Delete all interrupted blobs of a sender but this one."""
        with storing(self._folder):
            for path in (self._folder / owner).glob("*"):
                if path.suffix != ".tmp" and path.name != digest:
                    path.unlink(missing_ok=True)

    def drop(self, older_s: float) -> int:
        """Delete blobs that were interrupted more than `older_s` seconds ago; return how many."""
        with storing(self._folder):
            gone = list(settled(self._folder.glob("*/*"), time.time() - older_s))
            for path in gone:
                path.unlink(missing_ok=True)
        return len(gone)


def settled(paths: Iterable[Path], before: float) -> Iterator[Path]:
    """Yield the files that were not touched since that time."""
    for path in list(paths):
        with contextlib.suppress(FileNotFoundError):  # its writer has just finished with it
            if path.stat().st_mtime <= before:
                yield path


def _shelve(temporary: Path, partial: Path) -> None:
    """Keep the received part of a blob, unless a longer part is kept."""
    came = temporary.stat().st_size
    if came and (not partial.exists() or partial.stat().st_size < came):
        temporary.replace(partial)
    else:
        temporary.unlink(missing_ok=True)


class IncomingBytes(ABC):
    """A blob on its way in. `finish` must be called when all has been written; it stores the blob."""

    def __init__(self, ref: BlobRef) -> None:
        self.ref, self.offset = ref, 0
        self._sha = hashlib.sha256()

    def write(self, piece: bytes | memoryview) -> None:
        """Take the next bytes. Raises `InvalidPayload` when there are more than announced, `StorageFailed`."""
        if self.offset + len(piece) > self.ref.nbytes:
            raise InvalidPayload(f"more than the announced {self.ref.nbytes} bytes", code="payload.length")
        self._append(piece)
        self._sha.update(piece)
        self.offset += len(piece)

    def finish(self) -> None:
        """Check the received blob against its digest and store it. Raises `InvalidPayload`, `StorageFailed`."""
        if self.offset != self.ref.nbytes:
            raise Refused(f"truncated: {self.offset} of {self.ref.nbytes} bytes came", code="blob.short")
        same_digest(self._sha.hexdigest(), self.ref)
        self._store()

    @abstractmethod
    def _append(self, piece: bytes | memoryview) -> None:
        """Write a piece at the offset."""

    @abstractmethod
    def _store(self) -> None:
        """Store the whole blob, which has been checked."""


class IncomingBlob(IncomingBytes):
    """A blob on its way in, in a file of its own. Left with an error, it is kept for a resumption."""

    def __init__(self, partials: PartialBlobs, partial: Path, ref: BlobRef, start: int) -> None:
        super().__init__(ref)
        self._partials, self._partial = partials, partial
        self._temporary = partial.with_name(f"{partial.name}.{secrets.token_hex(4)}.tmp")
        make_folder(partial.parent)
        with storing(partial):
            if start:
                self._take_up(start)
            self._descriptor = os.open(self._temporary, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def _take_up(self, start: int) -> None:
        """Rename the kept bytes, so that no other writer resumes them, and hash them."""
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
            f"{kept} bytes of this blob are here, so it cannot go on at {start}",
            code="blob.offset",
            hint="ask with HEAD how much is here",
        )

    def restart(self) -> None:
        """Discard received bytes: the sender starts again."""
        with storing(self._partial):
            os.ftruncate(self._descriptor, 0)
        self._sha, self.offset = hashlib.sha256(), 0

    def _append(self, piece: bytes | memoryview) -> None:
        with storing(self._partial):
            write_all(self._descriptor, piece)

    def _store(self) -> None:
        self._partials.adopt(self._temporary, self.ref)
        self._partial.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        os.close(self._descriptor)
        if not self._temporary.exists():
            return
        with storing(self._partial):
            if isinstance(error, InvalidPayload):  # wrong bytes are not worth keeping
                self._temporary.unlink(missing_ok=True)
                self._partial.unlink(missing_ok=True)
            else:
                _shelve(self._temporary, self._partial)
