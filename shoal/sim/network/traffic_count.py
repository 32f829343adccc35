"""Bytes that crossed the simulated network."""

from __future__ import annotations

from collections import Counter

from shoal.results.run_record import NodeTraffic
from shoal.sim.network.observer import Direction


class TrafficCount:
    """Bytes from and to each node, in all and since the last version."""

    def __init__(self) -> None:
        self._total: dict[Direction, Counter[str]] = {"up": Counter(), "down": Counter()}
        self._since: dict[Direction, dict[str, int]] = {"up": {}, "down": {}}

    def add(self, node: str, direction: Direction, nbytes: int) -> None:
        """Add bytes that crossed the network."""
        since = self._since[direction]
        since[node] = since.get(node, 0) + nbytes

    def close_version(self) -> dict[str, NodeTraffic]:
        """Return the bytes by node since the last call."""
        up, down = self._since["up"], self._since["down"]
        self._total["up"].update(up)
        self._total["down"].update(down)
        self._since = {"up": {}, "down": {}}
        return {node: NodeTraffic(up.get(node, 0), down.get(node, 0)) for node in sorted({*up, *down})}

    def total(self, direction: Direction) -> dict[str, int]:
        """Return all bytes in one direction by node."""
        return dict(self._total[direction] + Counter(self._since[direction]))
