"""The ways by which a peer's messages leave: a link to whoever can be called, a mailbox for whoever cannot.

Both hosts of a peer's machine have one: `peer.node` (there is no coordinator) and `peer.company` (nodes of one).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from typing import Any

from shoal import peer_wire
from shoal.core.ways import COLLECT, Ways
from shoal_peer.link import PeerLink, Told, letters
from shoal_peer.mailbox import Mailbox

TICK_S = 0.2


class Outbox:
    """Links by name, and what waits for the others.

    Models of at most `BODIES_MAX` times `body_bytes()` wait for each, for `kept_s` seconds.
    """

    def __init__(self, kept_s: float, body_bytes: Callable[[], int]) -> None:
        self.links: dict[str, PeerLink] = {}
        self.mailbox = Mailbox(kept_s, lambda: peer_wire.BODIES_MAX * body_bytes())
        self.callers: frozenset[str] = frozenset()
        """Who cannot be called, and fetches here what it is told."""

    def ways(self, others: Iterable[str], inbound: bool) -> Ways:
        """Return how these can be spoken to, now that the links are as they are. `inbound`: this peer can be called."""
        silent = frozenset(others) - self.links.keys()
        self.callers = silent if inbound else frozenset()
        return Ways(callers=silent) if inbound else Ways(hidden=silent, collect=COLLECT)

    @property
    def reached(self) -> frozenset[str]:
        """Whom a message can reach."""
        return self.callers | self.links.keys()

    async def send(self, to: str, told: Sequence[Told]) -> None:
        """Send to a peer; what is for one that cannot be called waits until it calls."""
        link = self.links.get(to)
        if link is None:
            if to in self.callers:
                self.mailbox.put(to, told)
            return
        for letter in letters(told):
            await link.tell(letter)

    def take(self, to: str) -> list[Told]:
        """Return what waits for that peer, which has just called."""
        return self.mailbox.take(to)

    def shown(self) -> dict[str, Any]:
        """Return what waits for whom, and how much was dropped, as JSON values."""
        return {"waiting": self.mailbox.waiting(), "dropped": self.mailbox.dropped}

    async def collected(self, patience_s: float) -> None:
        """Wait until nothing is left for those that must call for it, for so long at most."""
        for _ in range(ceil(patience_s / TICK_S)):
            if not self.mailbox.waiting():
                return
            await asyncio.sleep(TICK_S)

    def close(self) -> None:
        """Let go of all connections."""
        for link in self.links.values():
            link.close()
