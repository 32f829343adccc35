"""What nodes tell of themselves as peers: the last word of each, while this process runs."""

from __future__ import annotations

import time
from dataclasses import dataclass

from coordinator.peer_views import Peering


@dataclass(frozen=True)
class Told:
    """A node's word, and when it came: on the monotonic clock and on the wall's."""

    word: Peering
    heard: float
    at: float


class Peers:
    """By job and node."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, Told]] = {}

    def tell(self, job: str, node: str, word: Peering) -> None:
        """A node's newest word."""
        self._told.setdefault(job, {})[node] = Told(word, time.monotonic(), time.time())

    def told(self, job: str) -> dict[str, Told]:
        """By node."""
        return self._told.get(job, {})
