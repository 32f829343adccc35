"""Bodies in memory, under the hash of their content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from shoal.core.errors import StorageFailed
from shoal.core.message import Ref
from shoal.core.tree import Slots, Tree, digest


def plain_size(slots: Slots) -> int:
    """Bytes of the numbers alone."""
    return sum(value.layout.nbytes if isinstance(value, Tree) else 8 for value in slots.values())


class MemoryBodies:
    """`shoal.core.message.Bodies` of one process. `size` says how many bytes a body would have on the wire."""

    def __init__(self, size: Callable[[Slots], int] = plain_size) -> None:
        self._size = size
        self._kept: dict[str, tuple[Ref, Slots]] = {}

    def put(self, slots: Slots) -> Ref:
        """Keep these slots. The same content twice is kept once, and has one name."""
        sha = hashlib.sha256()
        for name, value in sorted(slots.items()):
            said = digest(value) if isinstance(value, Tree) else repr(value)
            sha.update(f"{name}={said}\n".encode())
        key = sha.hexdigest()
        if key not in self._kept:
            self._kept[key] = Ref(key, self._size(slots)), dict(slots)
        return self._kept[key][0]

    def get(self, ref: Ref) -> Slots:
        """The slots of that name. Raises `StorageFailed` when they were dropped: something still needed them."""
        if ref.digest not in self._kept:
            raise StorageFailed(f"body {ref.digest[:12]} was dropped", code="storage.missing")
        return dict(self._kept[ref.digest][1])

    def keep_only(self, refs: Iterable[Ref | None]) -> None:
        """Drop all but these."""
        wanted = {ref.digest for ref in refs if ref is not None}
        self._kept = {key: entry for key, entry in self._kept.items() if key in wanted}

    def __len__(self) -> int:
        return len(self._kept)
