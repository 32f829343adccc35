"""Blobs in this process's memory, for tests: gone with the process."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator

from shoal.wire.payload import PIECE_BYTES, ByteSource
from shoal_coordinator.storage.blobs.remote_blobs import RemoteStore
from shoal_coordinator.storage.blobs.store import BlobInfo, missing

_STORES: defaultdict[str, dict[str, tuple[bytes, float]]] = defaultdict(dict)
"""Stores by name, so that a coordinator that starts again in the same process finds its blobs."""


class MemoryStore(RemoteStore):
    """Blobs in a dictionary; all stores of one name are one."""

    def __init__(self, name: str, blob_cache_bytes_max: int) -> None:
        super().__init__(blob_cache_bytes_max)
        self.name = f"memory://{name}"
        self._blobs, self._lock = _STORES[name], threading.Lock()

    def put(self, key: str, source: ByteSource) -> bool:
        with self._lock:
            if key in self._blobs:
                return False
            self._blobs[key] = bytes(source[0 : len(source)]), time.time()
            return True

    def get(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        if key not in self._blobs:
            raise missing(key, self.name)
        data = self._blobs[key][0][start:stop]
        for place in range(0, len(data), PIECE_BYTES):
            yield data[place : place + PIECE_BYTES]

    def size(self, key: str) -> int | None:
        found = self._blobs.get(key)
        return None if found is None else len(found[0])

    def delete(self, key: str) -> None:
        self._blobs.pop(key, None)

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        for key, (data, since) in list(self._blobs.items()):
            if key.startswith(f"{prefix}/"):
                yield BlobInfo(key, len(data), since)
