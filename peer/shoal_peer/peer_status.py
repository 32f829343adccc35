"""The state of a standalone peer, for people and programs: its status, and the peers that it waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from shoal.core.errors.phrases import counted
from shoal.core.gossip.gossip import GossipPeer, LocalRoundDone
from shoal.core.protocol.message import Metrics
from shoal.peering.host.peer_group import PeerGroup
from shoal.peering.http.peer_link import PeerLink

ALONE_MIN = 2
"""Peers to wait for where the roster names fewer: others may still be invited."""
LISTED_MAX = 8
"""Absent peers that are described one by one."""
WAITING_AFTER_S = 3.0
"""Seconds until a peer tells for whom it waits: those that start together find each other sooner."""


@dataclass
class PeerSummary:
    """The result of a peer: metrics when it had all local rounds, and at its end, both on its own data."""

    node: str
    rounds: int
    finished: bool
    settled: bool
    final_metrics: Metrics
    end_metrics: Metrics
    rounds_by_peer: dict[str, int]
    traffic: dict[str, dict[str, int]]
    is_consistent: bool = False
    """True if the last models that it received equal its own; else it left early, or reached no peer."""


class PeerObserver(Protocol):
    """A receiver of progress. Called in the event loop."""

    def on_round(self, effect: LocalRoundDone, live: int) -> None:
        """Handle the end of a local round; `live` other peers are alive."""

    def on_event(self, text: str) -> None:
        """Handle a text for people."""

    def on_waiting(self, lines: Sequence[str]) -> None:
        """Tell the peers that are waited for, and why; empty: none any more."""


@dataclass
class PeerProgress:
    """The progress of a standalone peer."""

    phase: str = "starting"
    latest: Metrics = field(default_factory=dict)
    """The metrics of the last local round."""
    final_metrics: Metrics | None = None
    """The metrics of the model with all local rounds; None until then. A learner may measure nothing at all: {}."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the peer is no longer needed."""


class StartGate:
    """The wait for enough peers before the first local round. `min_peers`: 0 if the settings ask for no number."""

    def __init__(self, group: PeerGroup, min_peers: int, on_waiting: Callable[[Sequence[str]], None]) -> None:
        self._group, self._min_peers, self._on_waiting = group, min_peers, on_waiting
        self.opened = asyncio.Event()
        self.waiting: list[str] = []
        """The lines that say for whom it waits."""
        self._silent_until = 0.0

    def start(self) -> None:
        """Start to wait; tell nothing for some seconds."""
        self._silent_until = time.monotonic() + WAITING_AFTER_S

    def check(self) -> None:
        """Open once enough peers are there; until then report the missing ones."""
        if self.opened.is_set():
            return
        if 1 + len(self._group.membership.live()) >= self._needed_peers():
            self.opened.set()
        lines = [] if self.opened.is_set() else self._waiting_lines()
        if lines != self.waiting and (not lines or time.monotonic() >= self._silent_until):
            self.waiting = lines
            self._on_waiting(lines)

    def _needed_peers(self) -> int:
        """Return the number of peers, this one included, that must be there before local rounds begin."""
        documents = self._group.documents
        asked = self._min_peers or documents.spec.gossip.min_peers
        return asked or max(ALONE_MIN, len(documents.roster.peers))

    def _waiting_lines(self) -> list[str]:
        """Describe the peers that this one waits for, why it cannot reach them, and what to do."""
        live, needed, others = self._group.membership.live(), self._needed_peers(), self._group.documents.others
        absent = [peer for peer in others if peer.node not in live]
        names = ", ".join(peer.node for peer in absent[:LISTED_MAX])
        more = f" and {len(absent) - LISTED_MAX} more" if len(absent) > LISTED_MAX else ""
        begun = f"{1 + len(live)} of {counted(needed, 'peer')} are here"
        lines = [f"{begun}; waiting for {names}{more}" if names else begun]
        lines += [_absence(peer.node, self._group.router.links.get(peer.node)) for peer in absent[:LISTED_MAX]]
        if absent:
            lines.append("start them on their machines (shoal peer run), or give their addresses: --join NAME=URL")
        listed = 1 + len(others)
        if needed > listed:
            lines.append(f"the roster names {counted(listed, 'peer')}: invite more, or start with --min-peers {listed}")
        elif 1 + len(live) > 1:
            lines.append(f"to begin without them, start this peer again with --min-peers {1 + len(live)}")
        return lines


def _absence(name: str, link: PeerLink | None) -> str:
    """Explain why one peer is not there."""
    if link is None:
        return f"{name}: it has no address, it calls by itself"
    return f"{name}: {link.last_error or f'no answer from {link.url} yet'}"


def peer_status(gossip: GossipPeer, group: PeerGroup, progress: PeerProgress, waiting: list[str]) -> dict[str, Any]:
    """Return the state of a standalone peer, as JSON values."""
    members = group.membership.members()
    return {
        "job": group.documents.spec.name,
        "node": group.documents.me.node,
        "process_number": group.signer.process_number,
        "phase": "waiting" if waiting else progress.phase,
        "waiting": waiting,
        "local_rounds": gossip.me.local_rounds,
        "rounds": gossip.me.counts.rounds,
        "weight": gossip.me.weight,
        "rounds_by_peer": gossip.me.counts.version_vector,
        "metrics": {name: value for name, value in progress.latest.items() if value - value == 0},
        "peers": {held.node: {"state": held.state, **_link_of(group.router.links.get(held.node))} for held in members},
        "roster": group.documents.roster.version,
        "exchanges": gossip.mixer.counters(),
        "exchanges_by_peer": dict(group.router.exchanges.counts),
        "last_exchange_s": group.router.exchanges.ages_s(),
        **group.refusals.status(),
        "mailbox": group.router.status(),
        "bytes": group.byte_counts.totals(),
        "budget": gossip.me.budget.status(gossip.me.exchange_bytes),
    }


def _link_of(link: PeerLink | None) -> dict[str, Any]:
    return {} if link is None else {"failed": link.failed, "dropped": link.dropped, "last_error": link.last_error}
