"""What peers believe of one another.

Beliefs about one peer form a join-semilattice: heard in any order, any number of times, from whomever, the same rumours
end in the same belief. All that SWIM spreads is merged in this way.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from heapq import nsmallest
from math import ceil, log, log10

from shoal.core.peer_message import Liveness, Rumour

RANK: dict[Liveness, int] = {"alive": 0, "suspect": 1, "dead": 2, "left": 3}
"""Within one incarnation the higher rank is believed: a peer that is alive says so by raising its incarnation."""

LIVE: tuple[Liveness, ...] = ("alive", "suspect")
"""What a peer is in as long as nobody gave it up."""

UNHEARD = -1
"""The incarnation of a peer that nobody has told of yet. Every word about it overrules that."""

CONFIRMATIONS = 3
"""Accusers beside the first that make a suspicion as short as it gets (Lifeguard's K)."""

ACCUSERS_MAX = CONFIRMATIONS + 1
"""Accusers that a rumour names: the first by name, so that it does not matter who heard of whom first."""

INCARNATION_MAX = 2**53 - 1
"""The largest whole number that every reader of JSON keeps exactly."""


def rank(rumour: Rumour) -> tuple[int, int]:
    """What decides between two rumours about one peer."""
    return rumour.incarnation, RANK[rumour.state]


def merge(held: Rumour, heard: Rumour) -> Rumour:
    """The least belief that follows from both. Idempotent, commutative, associative; never below either of them."""
    if rank(heard) < rank(held):
        return held
    accusers = {*heard.accusers, *held.accusers} if rank(heard) == rank(held) else heard.accusers
    kept = tuple(sorted(set(accusers))[:ACCUSERS_MAX]) if heard.state == "suspect" else ()
    return replace(heard, accusers=kept)


def wrong_with(rumour: Rumour) -> str:
    """Why no honest peer can have said this; empty if one can."""
    if rumour.state not in RANK:
        return f"{rumour.state!r} is no state of a peer"
    if not 0 <= rumour.incarnation <= INCARNATION_MAX:
        return f"incarnation {rumour.incarnation} is not in 0 … {INCARNATION_MAX}"
    if len(rumour.accusers) > ACCUSERS_MAX:
        return f"{len(rumour.accusers)} accusers of one peer, at most {ACCUSERS_MAX} are named"
    return ""


@lru_cache(maxsize=1024)
def patience(peers: int, accusers: int, least: float, slack: float) -> float:
    """Periods from the first suspicion to the verdict (Lifeguard, LHA-Suspicion).

    `least` times log10 of the peers when CONFIRMATIONS others have come to the same suspicion by themselves, `slack`
    times as long when nobody has; in between it falls with the logarithm of their number.
    """
    shortest = least * max(1.0, log10(max(1, peers)))
    possible = min(CONFIRMATIONS, peers - 2)  # others than the suspect and its first accuser
    if possible < 1:
        return shortest
    confirmed = min(max(accusers - 1, 0), possible)  # no accuser is left where those who accused are not admitted
    return shortest * max(1.0, slack - (slack - 1.0) * log(1 + confirmed) / log(1 + possible))


class Retelling:
    """Which peers there is news about, and how often it has been told. Told least goes first, of those the newest."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._told: dict[str, tuple[int, int]] = {}  # times, minus the number of the news
        self._count = 0

    def __len__(self) -> int:
        return len(self._told)

    def fresh(self, node: str) -> None:
        """There is something new to tell about this peer."""
        self._count += 1
        self._told[node] = (0, -self._count)

    def keep(self, nodes: Collection[str]) -> None:
        """Forget the others."""
        self._told = {node: told for node, told in self._told.items() if node in nodes}

    def pick(self, most: int, peers: int, but: Collection[str]) -> list[str]:
        """Peers to tell of now. Each is told of about log(peers) times: more would reach hardly anybody new."""
        waiting = (node for node in self._told if node not in but)
        picked = nsmallest(most, waiting, key=self._told.__getitem__)
        enough = ceil(self._factor * log10(peers + 1))
        for node in picked:
            times, number = self._told.pop(node)
            if times + 1 < enough:
                self._told[node] = (times + 1, number)
        return picked
