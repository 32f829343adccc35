"""The coordinator's failure detector: nodes that have been silent for longer than their lease.

That of peers is `failure_detector.py`.
"""

from __future__ import annotations


class LifeSigns:
    """Leases of nodes. Not part of the hub's state: each expiry becomes a `NodeLost` event, and that is journaled.

    Times are seconds of the hub's clock.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._heard: dict[str, float] = {}

    def record(self, node: str, now: float) -> None:
        """Note a sign of life; a future time, if the node was asked to be silent until then."""
        self._heard[node] = max(now, self._heard.get(node, now))

    def __len__(self) -> int:
        """Return the number of nodes that are not silent."""
        return len(self._heard)

    def forget(self, node: str) -> None:
        self._heard.pop(node, None)

    def age(self, node: str, now: float) -> float | None:
        """Return the seconds since the last sign of life; None if there was none yet."""
        return now - self._heard[node] if node in self._heard else None

    def expired(self, now: float) -> list[str]:
        """Return the nodes that have been silent for longer than the lease; each is named once."""
        silent = sorted(node for node, heard in self._heard.items() if now - heard > self.patience_s)
        for node in silent:
            del self._heard[node]
        return silent
