"""The state of a standalone peer, for people and programs: its status, and the peers that it waits for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.core.gossip import Gossip, Learned
from shoal.core.message import Metrics
from shoal.core.peer_message import PeerMessage, Swapped, Taken
from shoal.core.words import counted
from shoal_peer.folder import Desk, Papers
from shoal_peer.jury import Quarantine
from shoal_peer.ledger import Ledger
from shoal_peer.link import PeerLink
from shoal_peer.outbox import Outbox
from shoal_peer.pump import Pump
from shoal_peer.trainer import Trainer


class Standalone(Protocol):
    """A peer without a coordinator, as its status needs it."""

    papers: Papers
    gossip: Gossip
    pump: Pump
    links: dict[str, PeerLink]
    desk: Desk
    outbox: Outbox
    ledger: Ledger
    trainer: Trainer
    quarantine: Quarantine
    phase: str
    waiting: list[str]
    rounds: int
    latest: Metrics
    refused: dict[str, int]

    @property
    def exchanges(self) -> Exchanges: ...

    @property
    def me(self) -> str: ...

    @property
    def min_peers(self) -> int:
        """Return the number of peers that this machine's person asked for, or 0."""
        ...


ALONE_MIN = 2
"""Peers to wait for where the roster names fewer: others may still be invited."""
LISTED_MAX = 8
"""Absent peers that are described one by one."""


@dataclass
class Summary:
    """What came of a peer's part: `own` was measured when it had learned all, `drawn` at its end; both on data of its
    own."""

    node: str
    rounds: int
    finished: bool
    settled: bool
    own: Metrics
    drawn: Metrics
    seen: dict[str, int]
    traffic: dict[str, dict[str, int]]
    one: bool = False
    """Whether the last models that it has met were as its own; else it left before, or could reach nobody."""


class Watch(Protocol):
    """Who is shown how it goes. Called in the event loop."""

    def round(self, effect: Learned, live: int) -> None:
        """A local round has ended; so many other peers live."""

    def note(self, text: str) -> None:
        """Something for people."""

    def waiting(self, lines: Sequence[str]) -> None:
        """Tell the peers that are waited for, and why; empty: none any more."""


class Exchanges:
    """Count of ended exchanges with each peer, and when the last one ended."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.counts = Counter[str]()
        self._last: dict[str, tuple[Any, float]] = {}

    def note(self, node: str, message: PeerMessage) -> None:
        """Count the end of an exchange, as this side sees it; a repetition is the same exchange."""
        if isinstance(message, Swapped | Taken) and (node not in self._last or self._last[node][0] != message.id):
            self._last[node] = (message.id, self._clock())
            self.counts[node] += 1

    def ages_s(self) -> dict[str, float]:
        """Return the seconds since the last exchange with each peer."""
        now = self._clock()
        return {node: round(now - at, 1) for node, (_, at) in sorted(self._last.items())}


def needed_peers(node: Standalone) -> int:
    """Return the number of peers, this one included, that must be there before local rounds begin."""
    asked = node.min_peers or node.papers.spec.gossip.min_peers
    return asked or max(ALONE_MIN, len(node.papers.roster.peers))


def waiting_lines(node: Standalone) -> list[str]:
    """Describe the peers that this one waits for, why it cannot reach them, and what to do; empty if it need not."""
    live, needed = node.pump.membership.live(), needed_peers(node)
    if 1 + len(live) >= needed:
        return []
    absent = [peer for peer in node.papers.others if peer.node not in live]
    names = ", ".join(peer.node for peer in absent[:LISTED_MAX])
    more = f" and {len(absent) - LISTED_MAX} more" if len(absent) > LISTED_MAX else ""
    begun = f"{1 + len(live)} of {counted(needed, 'peer')} are here"
    lines = [f"{begun}; waiting for {names}{more}" if names else begun]
    lines += [_absence(peer.node, node.links.get(peer.node)) for peer in absent[:LISTED_MAX]]
    if absent:
        lines.append("start them on their machines (shoal peer run), or say where they are: --join NAME=URL")
    listed = 1 + len(node.papers.others)
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


def node_status(node: Standalone) -> dict[str, Any]:
    """Return the state of a standalone peer, as JSON values."""
    gossip, membership = node.gossip, node.pump.membership
    peers = {held.node: {"state": held.state, **_link_of(node.links.get(held.node))} for held in membership.beliefs()}
    return {
        "job": node.papers.spec.name,
        "node": node.me,
        "boot": node.desk.boot,
        "phase": "waiting" if node.waiting else node.phase,
        "waiting": node.waiting,
        "round": gossip.me.round,
        "rounds": node.rounds,
        "weight": gossip.me.weight,
        "seen": gossip.me.seen,
        "metrics": {name: value for name, value in node.latest.items() if value - value == 0},
        "peers": peers,
        "roster": node.papers.roster.version,
        "exchanges": gossip.mixer.tallies(),
        "exchanged": dict(node.exchanges.counts),
        "last_exchange_s": node.exchanges.ages_s(),
        "refused": node.refused,
        "quarantine": sorted(node.quarantine.nodes),
        "mailbox": node.outbox.shown(),
        "bytes": node.ledger.totals(),
        "budget": gossip.me.meter.shown(gossip.me.exchange_bytes),
        "trainer_starts": node.trainer.starts,
    }


def _link_of(link: PeerLink | None) -> dict[str, Any]:
    return {} if link is None else {"failed": link.failed, "dropped": link.dropped, "last_error": link.last_error}
