"""What wakes open polls: a bell for each node, rung when there may be something new for it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

Rang = Callable[[str], None]


class Bells(defaultdict[str, asyncio.Event]):
    """By node. `rang` is told of each ring: at a coordinator that nodes do not poll themselves."""

    def __init__(self, rang: Rang | None = None) -> None:
        super().__init__(asyncio.Event)
        self._rang = rang

    def __missing__(self, node: str) -> asyncio.Event:
        if self._rang is None:
            return super().__missing__(node)
        bell = self[node] = _Bell(node, self._rang)
        return bell

    def ring(self) -> None:
        """All of them."""
        for bell in self.values():
            bell.set()


class _Bell(asyncio.Event):
    def __init__(self, node: str, rang: Rang) -> None:
        super().__init__()
        self._node, self._rang = node, rang

    def set(self) -> None:
        super().set()
        self._rang(self._node)
