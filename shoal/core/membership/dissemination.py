"""SWIM's member updates: their order, their merge, and how often each is sent.

Updates about one peer form a join-semilattice: received in any order, any number of times, from any peer, the same
updates lead to the same state.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from heapq import nsmallest
from math import ceil, log, log10

from shoal.core.protocol.peer_message import Liveness, MemberUpdate

RANK: dict[Liveness, int] = {"alive": 0, "suspect": 1, "dead": 2, "left": 3}
"""Precedence within one incarnation. A live peer overrules it by a higher incarnation."""

LIVE: tuple[Liveness, ...] = ("alive", "suspect")
"""States of a peer that is not given up."""

UNKNOWN = -1
"""Incarnation of a peer without any update yet; every update overrules it."""

CONFIRMATIONS = 3
"""Further accusers that shorten a suspicion to its minimum (Lifeguard's K)."""

SUSPECTED_BY_MAX = CONFIRMATIONS + 1
"""Accusers in an update: the first by name, so that the order of arrival does not matter."""

INCARNATION_MAX = 2**53 - 1
"""Greatest whole number that every JSON reader keeps exactly."""


def precedence(update: MemberUpdate) -> tuple[int, int]:
    """Return the key that decides between two updates about one peer."""
    return update.incarnation, RANK[update.state]


def merge(held: MemberUpdate, heard: MemberUpdate) -> MemberUpdate:
    """Return the least state that follows from both. Idempotent, commutative, associative."""
    if precedence(heard) < precedence(held):
        return held
    accusers = (
        {*heard.suspected_by, *held.suspected_by} if precedence(heard) == precedence(held) else heard.suspected_by
    )
    kept = tuple(sorted(set(accusers))[:SUSPECTED_BY_MAX]) if heard.state == "suspect" else ()
    return replace(heard, suspected_by=kept)


def fault_in(update: MemberUpdate) -> str:
    """Return why no honest peer can have sent this update; empty if one can."""
    if update.state not in RANK:
        return f"{update.state!r} is not a state of a peer"
    if not 0 <= update.incarnation <= INCARNATION_MAX:
        return f"incarnation {update.incarnation} is not in 0 … {INCARNATION_MAX}"
    if len(update.suspected_by) > SUSPECTED_BY_MAX:
        return f"{len(update.suspected_by)} peers suspect one, at most {SUSPECTED_BY_MAX} are named"
    return ""


@lru_cache(maxsize=1024)
def suspicion_periods(peers: int, accusers: int, least: float, slack: float) -> float:
    """Return the periods from the first suspicion to its expiry (Lifeguard, LHA-Suspicion).

    `least` times log10 of the peers when CONFIRMATIONS others suspect it independently, `slack` times as long when none
    does; in between it falls with the logarithm of their number.
    """
    shortest = least * max(1.0, log10(max(1, peers)))
    possible = min(CONFIRMATIONS, peers - 2)  # without the suspect and its first accuser
    if possible < 1:
        return shortest
    confirmed = min(max(accusers - 1, 0), possible)  # accusers that left the roster do not count
    return shortest * max(1.0, slack - (slack - 1.0) * log(1 + confirmed) / log(1 + possible))


class Dissemination:
    """Peers with updates to send, and how often each was sent. The least sent go first, then the newest."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._pending: dict[str, tuple[int, int]] = {}  # (times sent, negative sequence number)
        self._count = 0

    def __len__(self) -> int:
        return len(self._pending)

    def enqueue(self, node: str) -> None:
        """Enqueue a new update about this peer."""
        self._count += 1
        self._pending[node] = (0, -self._count)

    def retain(self, nodes: Collection[str]) -> None:
        """Forget all other peers."""
        self._pending = {node: count for node, count in self._pending.items() if node in nodes}

    def pick(self, most: int, peers: int, but: Collection[str]) -> list[str]:
        """Return peers to send updates about. Each is sent about log(peers) times, which reaches nearly all."""
        waiting = (node for node in self._pending if node not in but)
        picked = nsmallest(most, waiting, key=self._pending.__getitem__)
        enough = ceil(self._factor * log10(peers + 1))
        for node in picked:
            times, number = self._pending.pop(node)
            if times + 1 < enough:
                self._pending[node] = (times + 1, number)
        return picked
