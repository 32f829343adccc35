"""Blobs that are stored but not named by a machine yet."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from shoal.core.model.tree import Slots
from shoal.core.protocol.message import BlobRef
from shoal.runtime.blob_files import FileBlob, FileBlobs


class BlobHolds:
    """Set of blobs that a machine does not name yet and that must not be swept. Thread-safe."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def hold(self, digest: str) -> None:
        """Hold a blob; holds are counted."""
        with self._lock:
            self._counts[digest] += 1

    def release(self, digests: Iterable[str]) -> None:
        """Release one hold of each blob."""
        with self._lock:
            self._counts.subtract(digests)
            self._counts = +self._counts

    @contextmanager
    def frozen(self) -> Iterator[set[str]]:
        """Yield the held digests; `hold` waits until the block ends."""
        with self._lock:
            yield set(self._counts)

    @contextmanager
    def holding(self, ref: BlobRef | None) -> Iterator[None]:
        """Keep a blob from being swept while the block runs."""
        digests = [ref.digest] if ref is not None else []
        for digest in digests:
            self.hold(digest)
        try:
            yield
        finally:
            self.release(digests)

    def put(self, blobs: FileBlobs, blob: Slots | FileBlob) -> BlobRef:
        """Store a blob and hold it; release it when a machine names it."""
        if isinstance(blob, FileBlob):
            self.hold(blob.ref.digest)
            return blobs.take(blob)
        ref = blobs.put(blob)
        self.hold(ref.digest)
        return ref if blobs.has(ref.digest) else blobs.put(blob)  # it may have been swept before it was held

    def sweep(self, blobs: FileBlobs, named: Iterable[str]) -> None:
        """Remove the blobs that are neither named nor held."""
        with self.frozen() as held:
            blobs.keep_only(held | set(named))
