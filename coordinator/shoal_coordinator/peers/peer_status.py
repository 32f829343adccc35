"""Peer status of nodes while this process runs: the last report of each, and its history."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from shoal.core.errors.phrases import counted
from shoal.trust.codes import REASONS
from shoal.trust.documents import RosterEntry
from shoal_coordinator.peers import consensus_stats
from shoal_coordinator.schemas.peers import (
    ConsensusPoint,
    JobPeers,
    PeerStateChange,
    PeerStatusReport,
    PeerUpdateView,
    PeerView,
)
from shoal_coordinator.schemas.values import iso

FRESH_S = 15.0
"""Seconds for which a status counts as current; nodes send one every 5 s."""

SAMPLE_S = 5.0
HISTORY_KEPT = 300
CHANGES_KEPT = 50

FORKED = "trust.term-forked"
"""Code with which a node refuses this coordinator, because it obeyed another one with the same key and term."""

NOTE_S = 60.0
"""Interval in seconds of job events about a node's refusals of one code."""
NOTES_MAX = 8
"""Job events about all refusals of a node in that interval."""


@dataclass
class PeerStatus:
    """A node's status, the monotonic time of its arrival, and its history."""

    status: PeerStatusReport
    received_at: float
    changes: deque[PeerStateChange] = field(default_factory=lambda: deque(maxlen=CHANGES_KEPT))
    noted_refusals: dict[str, tuple[float, int]] = field(default_factory=dict)  # by code: when, and how many by then
    refused_at: float | None = None  # when it last refused this coordinator; None: it obeys
    unsent: set[str] | None = None  # peers whose entries changed since the last publication; None: all


@dataclass
class JobPeerStatus:
    """The statuses of a job's peers, and their history."""

    nodes: dict[str, PeerStatus] = field(default_factory=dict)
    points: deque[ConsensusPoint] = field(default_factory=lambda: deque(maxlen=HISTORY_KEPT))
    sampled: float = float("-inf")


class PeerStatuses:
    """The statuses of all peers, by job and node. `relay_of`: returns the relay that a node uses in a job."""

    def __init__(self, relay_of: Callable[[str, str], str | None] = lambda job, node: None) -> None:
        self._jobs: dict[str, JobPeerStatus] = {}
        self._relay_of = relay_of

    def update(self, job: str, node: str, status: PeerStatusReport) -> list[str]:
        """Store a node's newest status; return the texts of job events about its refusals."""
        now, nodes = time.monotonic(), self._jobs.setdefault(job, JobPeerStatus()).nodes
        known = nodes.get(node)
        known_status = nodes[node] = PeerStatus(
            status, now, *((known.changes, known.noted_refusals) if known is not None else ())
        )
        known_status.refused_at = _refused_at(known, status, now)
        if known is None or known.status.state != status.state:
            known_status.changes.append(PeerStateChange(at=iso(time.time()), state=status.state))
        if known is not None and known.status.process_number != status.process_number:
            known_status.noted_refusals = {code: (at, 0) for code, (at, _) in known_status.noted_refusals.items()}
        known_status.noted_refusals = {
            code: one
            for code, one in known_status.noted_refusals.items()
            if code in status.refused or now - one[0] < NOTE_S
        }
        if known is not None and known.unsent is not None and _is_continuation(known.status, status):
            known_status.unsent = known.unsent | _differing(known.status, status)
        return _refusals(node, known_status, now)

    def forget(self, job: str) -> None:
        """Forget a removed job."""
        self._jobs.pop(job, None)

    def statuses(self, job: str) -> Mapping[str, PeerStatus]:
        """Return the statuses by node."""
        return self._jobs[job].nodes if job in self._jobs else {}

    def refusing(self, job: str) -> tuple[str, ...]:
        """Return the nodes that refuse this coordinator, by name."""
        now, found = time.monotonic(), self.statuses(job).items()
        fresh = {node: one for node, one in found if now - one.received_at <= FRESH_S}
        return tuple(sorted(node for node, one in fresh.items() if one.refused_at is not None))

    def sample_history(self, job: str, roster: Mapping[str, RosterEntry]) -> None:
        """Add a point to the history, if one is due and a peer is in gossip mode."""
        found, now = self._jobs.get(job), time.monotonic()
        if found is None or now - found.sampled < SAMPLE_S:
            return
        point = self._point({node: one for node, one in found.nodes.items() if node in roster}, now)
        if point.peers:
            found.sampled = now
            found.points.append(point)

    def _point(self, nodes: Mapping[str, PeerStatus], now: float) -> ConsensusPoint:
        gossiping = {node: one for node, one in nodes.items() if one.status.state in consensus_stats.WITHOUT_SERVER}
        fresh = {node: one.status for node, one in gossiping.items() if now - one.received_at <= FRESH_S}
        return ConsensusPoint(
            at=iso(time.time()),
            peers=len(fresh),
            consensus=consensus_stats.consensus(fresh.values()),
            residual=consensus_stats.residual(
                one.status for one in gossiping.values()
            ),  # models of silent peers are not lost
            coverage=consensus_stats.mean(list(consensus_stats.coverage(fresh).values())),
            rounds=max((status.local_rounds for status in fresh.values()), default=0),
            accuracy=consensus_stats.mean_metric(fresh.values(), "accuracy"),
            loss=consensus_stats.mean_metric(fresh.values(), "loss"),
        )

    def view(self, job: str, roster: Mapping[str, RosterEntry], version: int | None) -> JobPeers:
        """Return the view for people."""
        points = self._jobs[job].points if job in self._jobs else ()
        return JobPeers(roster=version, peers=self.rows(job, roster), now=self.current_point(job), history=list(points))

    def current_point(self, job: str) -> ConsensusPoint | None:
        """Return the last point, if it is recent and a node still carries on."""
        found = self._jobs.get(job)
        if found is None or time.monotonic() - found.sampled > FRESH_S:
            return None
        is_gossiping = any(one.status.state in consensus_stats.WITHOUT_SERVER for one in found.nodes.values())
        return found.points[-1] if is_gossiping else None

    def rows(self, job: str, roster: Mapping[str, RosterEntry]) -> list[PeerView]:
        """Return every peer of the roster, by name. Reports of others are not shown."""
        known_status = self.statuses(job)
        shares = consensus_stats.coverage(
            {
                node: one.status
                for node, one in known_status.items()
                if one.status.state in consensus_stats.WITHOUT_SERVER
            }
        )
        return [
            _row(peer, known_status.get(name), roster, shares.get(name), self._relay_of(job, name))
            for name, peer in sorted(roster.items())
        ]

    def changed_rows(self, job: str, roster: Mapping[str, RosterEntry], names: Collection[str]) -> list[PeerUpdateView]:
        """Return the rows of these peers for readers of everything before, and note that they were sent."""
        known_status = self.statuses(job)
        return [_row_delta(row, known_status.get(row.name)) for row in self.rows(job, roster) if row.name in names]


def _is_continuation(old: PeerStatusReport, new: PeerStatusReport) -> bool:
    """Return True if both are of one process, and the second names every peer that the first named."""
    return (
        old.process_number == new.process_number
        and old.rounds_by_peer.keys() <= new.rounds_by_peer.keys()
        and old.peers.keys() <= new.peers.keys()
    )


def _differing(old: PeerStatusReport, new: PeerStatusReport) -> set[str]:
    """Return the peers in which two reports differ."""
    changed = {name for name, count in new.rounds_by_peer.items() if old.rounds_by_peer.get(name) != count}
    return changed | {name for name, edge in new.peers.items() if old.peers.get(name) != edge}


def _row(
    peer: RosterEntry,
    known_status: PeerStatus | None,
    roster: Mapping[str, RosterEntry],
    share: float | None,
    relay: str | None,
) -> PeerView:
    row = PeerView(name=peer.node, peer_id=peer.peer_id, is_reachable=peer.is_reachable, relayed_by=relay)
    if known_status is None:
        return row
    status = known_status.status
    return row.model_copy(
        update={
            "state": status.state,
            "changes": list(known_status.changes),
            "told_s": time.monotonic() - known_status.received_at,
            "process_number": status.process_number,
            "term": status.term,
            "local_rounds": status.local_rounds,
            "weight": status.weight,
            "metrics": status.metrics,
            "rounds_by_peer": {name: count for name, count in status.rounds_by_peer.items() if name in roster},
            "coverage": share,
            "peers": {name: edge for name, edge in status.peers.items() if name in roster},
            "refused": status.refused,
            "quarantine": [name for name in status.quarantine if name in roster],
            "budget": status.budget,
        }
    )


def _row_delta(row: PeerView, known_status: PeerStatus | None) -> PeerUpdateView:
    delta = PeerUpdateView(**dict(row))
    if known_status is not None:
        if known_status.unsent is not None:
            delta.partial = True
            delta.rounds_by_peer = {
                name: count for name, count in row.rounds_by_peer.items() if name in known_status.unsent
            }
            delta.peers = {name: edge for name, edge in row.peers.items() if name in known_status.unsent}
        known_status.unsent = set()
    return delta


def _refused_at(known: PeerStatus | None, status: PeerStatusReport, now: float) -> float | None:
    """Return when a node last refused this coordinator; None if it obeys again, or has told too little yet."""
    if known is None or known.status.process_number != status.process_number:
        return None
    if status.refused.get(FORKED, 0) > known.status.refused.get(FORKED, 0):
        return now
    at = known.refused_at
    obeys = status.state == "coordinated" and at is not None and now - at > FRESH_S
    return None if obeys else at


def _refusals(node: str, known_status: PeerStatus, now: float) -> list[str]:
    """Return a sentence for each code with more refusals than were recorded, unless one was written a moment ago."""
    lately = sum(now - at < NOTE_S for at, _ in known_status.noted_refusals.values())
    found = []
    for code, count in sorted(known_status.status.refused.items()):
        at, before = known_status.noted_refusals.get(code, (-NOTE_S, 0))
        if count <= before or now - at < NOTE_S or lately >= NOTES_MAX:
            continue
        known_status.noted_refusals[code] = now, count
        lately += 1
        why = f": {REASONS[code].means}" if code in REASONS else ""
        what = "answer" if code == FORKED else "message"
        of = "this coordinator" if code == FORKED else "other peers"
        found.append(f"{node} refused {counted(count - before, what)} of {of} ({code}){why}")
    return found
