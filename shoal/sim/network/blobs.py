"""Blobs in memory, under the hash of their content."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterable

from shoal.core.errors import StorageFailed
from shoal.core.model.tree import Slots, Tree, digest
from shoal.core.protocol.message import BlobRef


def plain_size(slots: Slots) -> int:
    """Return the bytes of the numbers alone."""
    return sum(value.layout.nbytes if isinstance(value, Tree) else 8 for value in slots.values())


def name_of(slots: Slots) -> str:
    """Return the name that follows from the content."""
    sha = hashlib.sha256()
    for name, value in sorted(slots.items()):
        content = digest(value) if isinstance(value, Tree) else repr(value)
        sha.update(f"{name}={content}\n".encode())
    return sha.hexdigest()


class MemoryBlobs:
    """`shoal.core.protocol.message.Blobs` in memory. `size` returns the bytes of a blob on the wire."""

    def __init__(self, size: Callable[[Slots], int] = plain_size) -> None:
        self._size = size
        self._kept: dict[str, tuple[BlobRef, Slots]] = {}

    def put(self, slots: Slots) -> BlobRef:
        """Store slots. Equal contents are stored once, under one name."""
        key = name_of(slots)
        if key not in self._kept:
            self._kept[key] = BlobRef(key, self._size(slots)), dict(slots)
        return self._kept[key][0]

    def put_transient(self, slots: Slots) -> BlobRef:
        """Store slots like all others."""
        return self.put(slots)

    def add(self, slots: Slots) -> BlobRef:
        """Store a node's result."""
        return self.put(slots)

    def get(self, ref: BlobRef) -> Slots:
        """Return the slots of that name. Raises `StorageFailed` when they were dropped too early."""
        if ref.digest not in self._kept:
            raise StorageFailed(f"blob {ref.digest[:12]} was dropped", code="storage.missing")
        return dict(self._kept[ref.digest][1])

    def keep_only(self, refs: Iterable[BlobRef | None]) -> None:
        """Drop all other blobs."""
        wanted = {ref.digest for ref in refs if ref is not None}
        self._kept = {key: entry for key, entry in self._kept.items() if key in wanted}

    def __len__(self) -> int:
        return len(self._kept)


class LeanBlobs(MemoryBlobs):
    """Blobs that go when nothing refers to them. Results of nodes get names of the usual length without being hashed.

    They are kept as long as the reference that `put` or `add` has returned: an equal reference does not keep them.
    """

    def __init__(self, size: Callable[[Slots], int] = plain_size) -> None:
        super().__init__(size)
        self._alive: dict[str, tuple[weakref.ref[BlobRef], Slots]] = {}
        self._added = 0

    def put(self, slots: Slots) -> BlobRef:
        key = name_of(slots)
        known = self._alive.get(key)
        ref = known[0]() if known is not None else None
        return self._hold(key, slots) if ref is None else ref

    def add(self, slots: Slots) -> BlobRef:
        self._added += 1
        return self._hold(f"{self._added:064x}", slots)

    def _hold(self, key: str, slots: Slots) -> BlobRef:
        ref = BlobRef(key, self._size(slots))
        self._alive[key] = weakref.ref(ref, lambda gone: self._forget(key, gone)), dict(slots)
        return ref

    def _forget(self, key: str, gone: weakref.ref[BlobRef]) -> None:
        if key in self._alive and self._alive[key][0] is gone:
            del self._alive[key]

    def get(self, ref: BlobRef) -> Slots:
        if ref.digest not in self._alive:
            raise StorageFailed(f"blob {ref.digest[:12]} was dropped", code="storage.missing")
        return dict(self._alive[ref.digest][1])

    def drop(self, ref: BlobRef) -> None:
        """Drop a result that is used up, whatever still names it."""
        self._alive.pop(ref.digest, None)

    def __len__(self) -> int:
        return len(self._alive)
