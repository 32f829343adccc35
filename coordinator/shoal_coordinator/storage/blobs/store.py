"""What a store of blobs can do. A blob never changes: its name ends with the SHA-256 of what it holds.

Keys are `JOB/DIGEST`. Any thread may call; what is said of a blob is what the store knew then. Every fault is a
`StorageFailed` that says what to do.
"""

from __future__ import annotations

import hashlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.errors import StorageFailed
from shoal.runtime.store import CrashPoint, FileBodies
from shoal.wire import ByteSource


@dataclass(frozen=True)
class Kept:
    """A blob that is there. `since`: when it came, wall clock."""

    key: str
    nbytes: int
    since: float


@dataclass(frozen=True)
class Target:
    """Where one blob can be got or put by whoever has this, for a while; `headers` must be sent as they are."""

    method: str
    url: str
    headers: dict[str, str] = field(default_factory=dict)


class BlobStore(ABC):
    """Blobs by key. `name`: the store for people's eyes, without secrets."""

    name: str

    direct = False
    """Whether nodes can be sent to the store itself: then there are targets."""

    @abstractmethod
    def put(self, key: str, source: ByteSource) -> bool:
        """Keep a blob, durably, unless there is one of that name: then False. Never more than a piece in memory."""

    @abstractmethod
    def get(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """A blob from `start` up to `stop`, in pieces. Raises `StorageFailed` (`storage.missing`)."""

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
        """Bytes of a blob; None when it is not there."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove a blob, if it is there."""

    @abstractmethod
    def list(self, prefix: str) -> Iterator[Kept]:
        """All blobs below `prefix/`, in no order."""

    def download_target(self, key: str, ttl_s: float) -> Target | None:
        """Where the blob can be had; None: only from the coordinator."""
        del key, ttl_s
        return None

    def upload_target(self, key: str, nbytes: int, sha256: str, ttl_s: float) -> Target | None:
        """Where a blob of exactly that size and hash can be put; None: only by the coordinator."""
        del key, nbytes, sha256, ttl_s
        return None

    @abstractmethod
    def bodies(self, job: str, near: Path, at: CrashPoint) -> FileBodies:
        """The bodies of a job; copies that are read again lie in `near`, where this store is not files itself."""

    def check(self) -> None:
        """See whether blobs can be put, read and deleted. Raises `StorageFailed`, with what is wrong."""
        data = secrets.token_bytes(32)
        key = f".check/{hashlib.sha256(data).hexdigest()}"
        self.put(key, data)
        found = b"".join(self.get(key))
        self.delete(key)
        if found != data:
            raise StorageFailed(f"{self.name} gives back other bytes than it was given", code="storage.damaged")


def missing(key: str, place: str) -> StorageFailed:
    """There is no such blob."""
    return StorageFailed(f"{key} is missing in {place}", code="storage.missing")
