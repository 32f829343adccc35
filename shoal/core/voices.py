"""How a node hears its hub: on its own way, through another that carries what it says (relayed), or not at all.

A relayed node goes on trying its own way, and speaks by it again as soon as it is answered there. What others say of
the hub counts for as long as its silence would not be suspicious. Whoever was asked to carry a word and has brought no
answer is passed over for a while, then asked after all others; among equals each node prefers others by a draw of its
own, so that nodes that are cut off together do not all burden the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from random import Random

from shoal.core.machine import Note
from shoal.core.peer_message import Bulletin, Declare
from shoal.core.plausible import implausible_word

PASSED_OVER_S_MAX = 300.0
"""Nobody is passed over for longer, whatever he asks for."""


@dataclass(frozen=True)
class Unheard:
    """An event: the word that this peer was to carry has not been answered. `pause_s`: how long it asks to be left."""

    node: str
    why: str
    pause_s: float = 0.0


class Voices:
    """Of `node`, which suspects a hub that has been silent for `ttl_s`."""

    def __init__(self, node: str, ttl_s: float) -> None:
        self._node, self._ttl_s = node, ttl_s
        self.relay = ""
        """Who carries what we say; empty: we say it ourselves."""
        self.heard = self._direct = self._since = 0.0  # when the hub was heard; on our own way; when `relay` was chosen
        self.term = 0
        """The highest term that the hub itself has shown; 0: none."""
        self._said: dict[str, tuple[float, Bulletin]] = {}
        self._failed: dict[str, tuple[float, float]] = {}  # when, and until when it is passed over

    def start(self, now: float) -> None:
        """A process begins: it is patient from now on."""
        self.heard = self._direct = now

    # The hub

    def hear_hub(self, now: float, *, direct: bool, term: int = 0) -> None:
        """It has said something, in this term if it has shown one."""
        self.heard, self.term = now, max(self.term, term)
        if direct:
            self._direct, self.relay = now, ""

    def hears(self, now: float) -> bool:
        """Whether the hub is heard at all."""
        return now < self.heard + self._ttl_s

    def hears_directly(self, now: float) -> bool:
        """Whether it is heard on our own way: then we can carry what others say."""
        return now < self._direct + self._ttl_s

    @property
    def silent_at(self) -> float:
        """When the way that we speak by counts as lost, if nothing is heard on it until then."""
        return (max(self.heard, self._since) if self.relay else self._direct) + self._ttl_s

    # The others

    def refuse(self, message: Bulletin | Declare, version: int) -> list[Note]:
        """Return why a word about the hub is not heeded, by a node that holds this version; nothing where it is."""
        return implausible_word(message, self.term, version)

    def hear(self, bulletin: Bulletin, now: float) -> None:
        """Another has said how it is with it."""
        self._said[bulletin.node] = now, bulletin

    def forget(self) -> None:
        """What was said so far is past; who has failed is not forgotten."""
        self._said = {}

    def recent(self, now: float) -> list[Bulletin]:
        """What still counts of what others say."""
        return [said for at, said in self._said.values() if now - at <= self._ttl_s]

    def missing(self, now: float) -> tuple[int, int]:
        """How many miss the hub, with us, and the highest term that they know; none, if anybody hears it."""
        recent = self.recent(now)
        if any(said.hears for said in recent):
            return 0, 0
        return 1 + len(recent), max((said.term for said in recent), default=0)

    def fail(self, node: str, now: float, pause_s: float = 0.0) -> None:
        """Pass over that one: it has brought no answer."""
        self._failed[node] = now, now + max(self._ttl_s / 3, min(pause_s, PASSED_OVER_S_MAX))
        self.relay = "" if self.relay == node else self.relay

    def choose(self, now: float) -> str:
        """Speak through another from now on, not through the present one; "" while none is known who hears the hub."""
        if self.relay:
            self.fail(self.relay, now)
        found = [said.node for said in self.recent(now) if said.hears]
        free = [node for node in found if self._failed.get(node, (0.0, now))[1] <= now]
        self.relay, self._since = min(free, key=self._reluctance, default=""), now
        return self.relay

    def _reluctance(self, node: str) -> tuple[float, float]:
        failed_at, _ = self._failed.get(node, (-inf, 0.0))
        return failed_at, Random(f"{self._node}/{node}").random()
