"""Bytes that crossed, exactly, by peer and direction: heads and bodies, of requests and of answers.

Each side of a request counts the bytes that it wrote and read. `sent` and `received` are this process's own: it sends
its requests and receives their answers, and the reverse for requests that it answers. Bytes of senders that are not
authenticated count under "?".
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from shoal.runtime.durable_files import read_json, write_file

STRANGER = "?"


class ByteCounts:
    """Byte counts by peer that outlive the process. Call `save` now and then; a crash loses a few seconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.sent, self.received = Counter[str](), Counter[str]()
        found = read_json(path, _counts, "remove it: only the count of bytes starts again") or {}
        self.sent.update(found.get("sent", {}))
        self.received.update(found.get("received", {}))
        self._saved = self._at_start = self.totals()
        self.crossed = 0
        """Bytes to and from peers, both ways, since this process began; strangers' are not among them."""

    def add(self, peer: str, *, sent: int = 0, received: int = 0) -> None:
        """Add transferred bytes. Any thread may call."""
        with self._lock:
            self.sent[peer] += sent
            self.received[peer] += received
            self.crossed += sent + received if peer != STRANGER else 0

    def totals(self) -> dict[str, dict[str, int]]:
        """Return `{"sent": {peer: bytes}, "received": {peer: bytes}}`."""
        with self._lock:
            return {"sent": dict(self.sent), "received": dict(self.received)}

    def since_start(self, peer: str) -> dict[str, int]:
        """Return the bytes to and from a peer since this process began."""
        totals = self.totals()
        return {way: totals[way].get(peer, 0) - self._at_start[way].get(peer, 0) for way in ("sent", "received")}

    def save(self) -> None:
        """Write the counts if they changed. Raises `StorageFailed`."""
        found = self.totals()
        if found != self._saved:
            write_file(self._path, json.dumps(found).encode(), "bytes")
            self._saved = found


def _counts(values: Any) -> dict[str, dict[str, int]]:
    return {way: {str(peer): int(count) for peer, count in values[way].items()} for way in ("sent", "received")}
