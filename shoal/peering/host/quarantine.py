"""The refusals of one job, and the quarantine of peers whose messages are refused again and again.

A peer with three refusals for the same reason is quarantined: its models are rejected, no exchange is begun with it,
and its statements about other peers and the coordinator are ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from shoal.core.gossip.counter_bounds import ImplausibleCount
from shoal.core.protocol.machine import JobEvent
from shoal.core.protocol.peer_message import CoordinatorStatus, DeclareFailover, MembershipMessage, PeerMessage
from shoal.peering.state.byte_counts import STRANGER

QUARANTINE = "quarantine"
"""The reason for rejecting a quarantined peer's models."""
SAME_MAX = 3
"""Refusals for one reason that quarantine their sender."""
IMPLAUSIBLE = "peer.lie"
"""The code of statements that no honest peer can make: see `shoal.core.gossip.counter_bounds`."""
ACCIDENTS = ("payload.short", "payload.length")
"""Refusals that a broken connection may cause; they do not count against their sender."""


class Refusals:
    """The refused inputs by code, and the quarantined peers, which stay so while the process lives."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.quarantined: set[str] = set()
        self._by_sender: Counter[tuple[str, str]] = Counter()

    def record(self, sender: str, code: str) -> bool:
        """Count a refused input; return whether it quarantines its sender now."""
        self.counts[code] += 1
        blamed = code.startswith(("payload.", "peer.weight", "peer.loss", IMPLAUSIBLE)) and code not in ACCIDENTS
        if sender == STRANGER or not blamed:
            return False
        self._by_sender[sender, code] += 1
        if self._by_sender[sender, code] < SAME_MAX or sender in self.quarantined:
            return False
        self.quarantined.add(sender)
        return True

    def status(self) -> dict[str, Any]:
        """Return refusals by code and the quarantined peers, as JSON values."""
        return {"refused": dict(self.counts), "quarantine": sorted(self.quarantined)}


def refusal_code(event: JobEvent) -> str:
    """Return the code under which a machine's refusal is counted."""
    return IMPLAUSIBLE if isinstance(event, ImplausibleCount) else "machine"


def without_hearsay(messages: Sequence[PeerMessage], quarantined: Collection[str]) -> list[PeerMessage]:
    """Drop statements of quarantined peers about others and about the coordinator."""
    found: list[PeerMessage] = []
    for message in messages:
        if message.node not in quarantined:
            found.append(message)
        elif isinstance(message, MembershipMessage):
            found.append(replace(message, updates=()))
        elif not isinstance(message, CoordinatorStatus | DeclareFailover):
            found.append(message)
    return found
