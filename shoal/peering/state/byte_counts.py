"""Bytes that crossed, exactly, by peer and direction: heads and bodies, of requests and of answers.

Each side of a request counts what it wrote and what it read. `received` and `sent` are this process's own: a request
that it makes is sent, the answer to it is received; for a request that it answers it is the other way round. Whoever
has not said yet who he is, or says it wrongly, is booked under "?".
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from shoal.core.errors import StorageFailed
from shoal.runtime.store import storing, write_file

STRANGER = "?"


class Ledger:
    """Sums that outlive the process: `keep` now and then, so that a crash costs a few seconds of counting at most."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.sent, self.received = Counter[str](), Counter[str]()
        with storing(path):
            found = _read(path) if path.exists() else {}
        self.sent.update(found.get("sent", {}))
        self.received.update(found.get("received", {}))
        self._kept = self.totals()
        self.crossed = 0
        """Bytes to and from peers, both ways, since this process began; strangers' are not among them."""

    def book(self, peer: str, *, sent: int = 0, received: int = 0) -> None:
        """So many bytes went to that peer, so many came. Any thread may call."""
        with self._lock:
            self.sent[peer] += sent
            self.received[peer] += received
            self.crossed += sent + received if peer != STRANGER else 0

    def totals(self) -> dict[str, dict[str, int]]:
        """`{"sent": {peer: bytes}, "received": {peer: bytes}}`."""
        with self._lock:
            return {"sent": dict(self.sent), "received": dict(self.received)}

    def keep(self) -> None:
        """Write the sums down, if there are new ones. Raises `StorageFailed`."""
        found = self.totals()
        if found != self._kept:
            write_file(self._path, json.dumps(found).encode(), "ledger")
            self._kept = found


def _read(path: Path) -> dict[str, dict[str, int]]:
    try:
        found: Any = json.loads(path.read_bytes())
        return {way: {str(peer): int(count) for peer, count in found[way].items()} for way in ("sent", "received")}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "remove it: only the count of bytes begins anew"
        raise StorageFailed(f"{path}: {error}", code="storage.damaged", hint=hint) from None
