"""Interface of a blob store. A blob never changes: its name ends with the SHA-256 of its content.

Keys are `JOB/DIGEST`. All methods are thread-safe; answers describe the blob at the time of the call. Every error is a
`StorageFailed` with a hint.
"""

from __future__ import annotations

import hashlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.errors import StorageFailed
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import CrashPoint
from shoal.wire.payload import ByteSource


@dataclass(frozen=True)
class BlobInfo:
    """A blob that is there. `since`: when it came, wall clock."""

    key: str
    nbytes: int
    since: float


@dataclass(frozen=True)
class PresignedTarget:
    """Presigned URL of one blob, valid for a while; `headers` must be sent unchanged."""

    method: str
    url: str
    headers: dict[str, str] = field(default_factory=dict)


class BlobStore(ABC):
    """Blobs by key. `name`: the store for people's eyes, without secrets."""

    name: str

    direct = False
    """True if nodes can use the store directly, by presigned URLs."""

    @abstractmethod
    def put(self, key: str, source: ByteSource) -> bool:
        """Keep a blob, durably, unless there is one of that name: then False. Never more than a piece in memory."""

    @abstractmethod
    def get(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield a blob from `start` up to `stop`, in pieces. Raises `StorageFailed` (`storage.missing`)."""

    def read(self, key: str) -> tuple[str, Iterator[bytes]]:
        """Return a mark of a blob's content that changes with it (empty: there is none), and its bytes in pieces.

        Raises `StorageFailed` (`storage.missing`).
        """
        if self.size(key) is None:
            raise missing(key, self.name)
        return "", self.get(key)

    def copy(self, source: str, key: str, mark: str) -> bool:
        """Keep what `source` holds under another key too, without reading it; False: it must be put.

        It is not copied where its content has another mark than `mark` by now.
        """
        del source, key, mark
        return False

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Return a blob's size in bytes; None if it is missing."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove a blob, if it is there."""

    @abstractmethod
    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """List all blobs below `prefix/`, in no particular order."""

    def presign_download(self, key: str, ttl_s: float) -> PresignedTarget | None:
        """Return a presigned download URL; None if only the coordinator serves the blob."""
        del key, ttl_s
        return None

    def presign_upload(self, key: str, nbytes: int, sha256: str, ttl_s: float) -> PresignedTarget | None:
        """Return a presigned upload URL for exactly this size and hash; None if only the coordinator can store it."""
        del key, nbytes, sha256, ttl_s
        return None

    @abstractmethod
    def blobs_of(self, job: str, near: Path, at: CrashPoint) -> FileBlobs:
        """Return the blobs of a job; `near` is the cache of a remote store."""

    def check(self) -> None:
        """See whether blobs can be put, read and deleted. Raises `StorageFailed`, with what is wrong."""
        data = secrets.token_bytes(32)
        key = f".check/{hashlib.sha256(data).hexdigest()}"
        self.put(key, data)
        found = b"".join(self.get(key))
        self.delete(key)
        if found != data:
            raise StorageFailed(f"{self.name} returns different bytes than were stored", code="storage.damaged")


def missing(key: str, place: str) -> StorageFailed:
    """Return the error for a missing blob."""
    return StorageFailed(f"{key} is missing in {place}", code="storage.missing")
