"""What nodes tell of themselves as peers, while this process runs: the last word of each, and how it came to that."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from shoal.core.words import counted
from shoal.trust.codes import REASONS
from shoal.trust.papers import Peer
from shoal_coordinator import agreement
from shoal_coordinator.peer_views import Change, JobPeers, Peering, PeerNews, PeerRow, PeersPoint
from shoal_coordinator.views import iso

FRESH_S = 15.0
"""A word is told every 5 s; one that is older than this does not say how things are."""

SAMPLE_S = 5.0
HISTORY_KEPT = 300
CHANGES_KEPT = 50

QUIET_S = 60.0
"""A node's refusals of one code make one note in that time,"""
LOUD_MAX = 8
"""and all its refusals together so many."""


@dataclass
class Told:
    """A node's word, when it came (on the monotonic clock), and what else is remembered of it."""

    word: Peering
    heard: float
    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=CHANGES_KEPT))
    noted: dict[str, tuple[float, int]] = field(default_factory=dict)  # by code: when, and how many by then
    touched: set[str] | None = None  # peers of whom its words differed since browsers were told; None: of all


@dataclass
class JobTold:
    """All of a job."""

    nodes: dict[str, Told] = field(default_factory=dict)
    points: deque[PeersPoint] = field(default_factory=lambda: deque(maxlen=HISTORY_KEPT))
    sampled: float = float("-inf")


class Peers:
    """By job and node."""

    def __init__(self, carrier: Callable[[str, str], str | None] = lambda job, node: None) -> None:
        self._jobs: dict[str, JobTold] = {}
        self._carrier = carrier

    def tell(self, job: str, node: str, word: Peering) -> list[str]:
        """Take a node's newest word; returns what people should be told of its refusals."""
        now, nodes = time.monotonic(), self._jobs.setdefault(job, JobTold()).nodes
        known = nodes.get(node)
        told = nodes[node] = Told(word, now, *((known.changes, known.noted) if known is not None else ()))
        if known is None or known.word.state != word.state:
            told.changes.append(Change(at=iso(time.time()), state=word.state))
        if known is not None and known.word.boot != word.boot:
            told.noted = {code: (at, 0) for code, (at, _) in told.noted.items()}
        told.noted = {code: one for code, one in told.noted.items() if code in word.refused or now - one[0] < QUIET_S}
        if known is not None and known.touched is not None and _goes_on(known.word, word):
            told.touched = known.touched | _differing(known.word, word)
        return _refusals(node, told, now)

    def forget(self, job: str) -> None:
        """Know nothing of a job that was removed."""
        self._jobs.pop(job, None)

    def told(self, job: str) -> Mapping[str, Told]:
        """By node."""
        return self._jobs[job].nodes if job in self._jobs else {}

    def sample(self, job: str, roster: Mapping[str, Peer]) -> None:
        """Keep a point of the history, if one is due and anybody carries on."""
        found, now = self._jobs.get(job), time.monotonic()
        if found is None or now - found.sampled < SAMPLE_S:
            return
        point = self._point({node: one for node, one in found.nodes.items() if node in roster}, now)
        if point.peers:
            found.sampled = now
            found.points.append(point)

    def _point(self, nodes: Mapping[str, Told], now: float) -> PeersPoint:
        away = {node: one for node, one in nodes.items() if one.word.state in agreement.WITHOUT_SERVER}
        fresh = {node: one.word for node, one in away.items() if now - one.heard <= FRESH_S}
        return PeersPoint(
            at=iso(time.time()),
            peers=len(fresh),
            consensus=agreement.consensus(fresh.values()),
            residual=agreement.residual(one.word for one in away.values()),  # what the silent hold is not lost
            coverage=agreement.mean(list(agreement.coverage(fresh).values())),
            rounds=max((word.round for word in fresh.values()), default=0),
            accuracy=agreement.measured(fresh.values(), "accuracy"),
            loss=agreement.measured(fresh.values(), "loss"),
        )

    def view(self, job: str, roster: Mapping[str, Peer], version: int | None) -> JobPeers:
        """What people see."""
        points = self._jobs[job].points if job in self._jobs else ()
        return JobPeers(roster=version, peers=self.rows(job, roster), now=self.now(job), history=list(points))

    def now(self, job: str) -> PeersPoint | None:
        """The last point, if that was lately and anybody carries on still."""
        found = self._jobs.get(job)
        if found is None or time.monotonic() - found.sampled > FRESH_S:
            return None
        carries_on = any(one.word.state in agreement.WITHOUT_SERVER for one in found.nodes.values())
        return found.points[-1] if carries_on else None

    def rows(self, job: str, roster: Mapping[str, Peer]) -> list[PeerRow]:
        """Every peer of the roster, by name. Of others, nothing that was told is shown."""
        told = self.told(job)
        shares = agreement.coverage(
            {node: one.word for node, one in told.items() if one.word.state in agreement.WITHOUT_SERVER}
        )
        return [
            _row(peer, told.get(name), roster, shares.get(name), self._carrier(job, name))
            for name, peer in sorted(roster.items())
        ]

    def news(self, job: str, roster: Mapping[str, Peer], names: Collection[str]) -> list[PeerNews]:
        """The rows of these peers for who has been told all that was told before; they are told now."""
        told = self.told(job)
        return [_news(row, told.get(row.name)) for row in self.rows(job, roster) if row.name in names]


def _goes_on(old: Peering, new: Peering) -> bool:
    """Whether they are of one process, and the second speaks of every peer that the first spoke of."""
    return old.boot == new.boot and old.seen.keys() <= new.seen.keys() and old.peers.keys() <= new.peers.keys()


def _differing(old: Peering, new: Peering) -> set[str]:
    """Of which peers two words differ."""
    seen = {name for name, count in new.seen.items() if old.seen.get(name) != count}
    return seen | {name for name, edge in new.peers.items() if old.peers.get(name) != edge}


def _row(
    peer: Peer, told: Told | None, roster: Mapping[str, Peer], share: float | None, carrier: str | None
) -> PeerRow:
    row = PeerRow(name=peer.node, peer_id=peer.peer_id, inbound=peer.inbound, relayed_by=carrier)
    if told is None:
        return row
    word = told.word
    return row.model_copy(
        update={
            "state": word.state,
            "changes": list(told.changes),
            "told_s": time.monotonic() - told.heard,
            "boot": word.boot,
            "term": word.term,
            "round": word.round,
            "weight": word.weight,
            "metrics": word.metrics,
            "seen": {name: count for name, count in word.seen.items() if name in roster},
            "coverage": share,
            "peers": {name: edge for name, edge in word.peers.items() if name in roster},
            "refused": word.refused,
            "quarantine": [name for name in word.quarantine if name in roster],
            "budget": word.budget,
        }
    )


def _news(row: PeerRow, told: Told | None) -> PeerNews:
    news = PeerNews(**dict(row))
    if told is not None:
        if told.touched is not None:
            news.partial = True
            news.seen = {name: count for name, count in row.seen.items() if name in told.touched}
            news.peers = {name: edge for name, edge in row.peers.items() if name in told.touched}
        told.touched = set()
    return news


def _refusals(node: str, told: Told, now: float) -> list[str]:
    """A sentence for each code of which there is more than was noted, unless one was written a moment ago."""
    lately = sum(now - at < QUIET_S for at, _ in told.noted.values())
    found = []
    for code, count in sorted(told.word.refused.items()):
        at, before = told.noted.get(code, (-QUIET_S, 0))
        if count <= before or now - at < QUIET_S or lately >= LOUD_MAX:
            continue
        told.noted[code] = now, count
        lately += 1
        why = f": {REASONS[code].means}" if code in REASONS else ""
        found.append(f"{node} refused {counted(count - before, 'message')} of other peers ({code}){why}")
    return found
