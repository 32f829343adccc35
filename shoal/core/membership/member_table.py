"""The member table of SWIM: one peer's state of each other peer, and the updates that it still has to send."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf
from random import Random

from shoal.core.gossip.counter_bounds import INCARNATION_LEAP
from shoal.core.membership.dissemination import (
    INCARNATION_MAX,
    LIVE,
    UNKNOWN,
    Dissemination,
    merge,
    precedence,
    suspicion_periods,
)
from shoal.core.membership.swim_config import SwimConfig
from shoal.core.protocol.machine import Tell
from shoal.core.protocol.peer_message import MemberUpdate, PeerHello, Ping, PingAck, PingNack, PingRequest, StateSync


class MemberTable:
    """One entry for each admitted peer but this one; other names are never stored."""

    def __init__(self, node: str, incarnation: int, pace: SwimConfig) -> None:
        self.node, self.incarnation, self._pace = node, incarnation, pace
        self.live: set[str] = set()
        self.transitions: list[tuple[MemberUpdate, MemberUpdate]] = []
        """(before, after) of each peer that was given up or is live again; the reader empties it."""
        self.refutations = 0
        """Number of times that this peer has refuted a suspicion; the reader resets it."""
        self._held: dict[str, MemberUpdate] = {}
        self._since: dict[str, float] = {}  # start of each open suspicion
        self._dissemination = Dissemination(pace.retransmit_factor)
        self._own_incarnations: dict[str, int] = {}
        """Highest incarnation that each peer itself has reported here."""
        self._reported_at: dict[str, float] = {}
        """Time of each peer's last own message."""
        self._raised_at = -inf

    def __iter__(self) -> Iterator[MemberUpdate]:
        """Yield the entries in the order of the names."""
        return iter(self._held.values())

    def __contains__(self, node: str) -> bool:
        return node in self._held

    def __getitem__(self, node: str) -> MemberUpdate:
        return self._held[node]

    def admit(self, nodes: frozenset[str]) -> None:
        """Forget all other peers. New ones count as dead until an update arrives."""
        old, self._held = self._held, {}
        for node in sorted(nodes - {self.node}):
            held = old.get(node, MemberUpdate(node, "dead", UNKNOWN))
            self._held[node] = replace(
                held, suspected_by=tuple(a for a in held.suspected_by if a in nodes or a == self.node)
            )
        self.live &= self._held.keys()
        self._since = {node: at for node, at in self._since.items() if node in self._held}
        self._dissemination.retain({*self._held, self.node})
        self._own_incarnations = {node: own for node, own in self._own_incarnations.items() if node in self._held}
        self._reported_at = {node: at for node, at in self._reported_at.items() if node in self._held}

    def heard_s(self, node: str, now: float) -> float:
        """Return the seconds since that peer's own last message; infinite without one."""
        return now - self._reported_at.get(node, -inf)

    # Receiving
    def record_own_incarnation(self, node: str, incarnation: int, now: float) -> None:
        """Record a peer's own incarnation; drop a state that lies a leap above it as invented."""
        own = self._own_incarnations[node] = max(incarnation, self._own_incarnations.get(node, 0))
        self._reported_at[node] = now
        if self._held[node].incarnation > own + INCARNATION_LEAP:
            self._set(MemberUpdate(node, "alive", incarnation), now)

    def is_leap(self, update: MemberUpdate) -> bool:
        """Return whether an update is more than a leap above the peer's own report, if there is one."""
        return update.node in self._own_incarnations and not self._is_confirmed(update)

    def is_implausible(self, update: MemberUpdate, now: float) -> bool:
        """Return whether the peer cannot have come so far since its last own message.

        It may have risen by a leap in each period and at a start, and the sender may know one leap more.
        """
        if update.node not in self._own_incarnations:
            return False
        periods = (now - self._reported_at[update.node]) / self._pace.period_s
        return update.incarnation > self._own_incarnations[update.node] + INCARNATION_LEAP * (periods + 4)

    def _is_confirmed(self, update: MemberUpdate) -> bool:
        """Return whether an update may be sent on: a leap known only from hearsay ends here."""
        return update.incarnation <= self._own_incarnations.get(update.node, 0) + INCARNATION_LEAP

    def merge_update(self, update: MemberUpdate, now: float, *, old: bool = False) -> MemberUpdate | None:
        """Merge an update. Return the present entry if the update is behind it, else None.

        `old`: it is not news but part of a full state, perhaps of a peer that alone could not reach the other. So no
        peer that is live here is given up for it: if it is dead, its silence will show.
        """
        if update.node == self.node:
            self._refute(update, now)
            return None
        held = self._held.get(update.node)
        if held is None:  # rosters do not change everywhere at once
            return None
        if precedence(update) < precedence(held):
            return held
        if update == held:
            return None
        if old and update.state == "dead" and held.state in LIVE and held.incarnation == update.incarnation:
            return None
        accusers = tuple(a for a in update.suspected_by if a in self._held or a == self.node)
        self._set(merge(held, replace(update, suspected_by=accusers)), now)
        return None

    def suspect(self, node: str, now: float) -> None:
        """Suspect a peer that did not answer this one."""
        held = self._held[node]
        if held.state in LIVE:
            self._set(merge(held, MemberUpdate(node, "suspect", held.incarnation, (self.node,))), now)

    def announce(self) -> None:
        """Enqueue an update about this peer itself."""
        self._dissemination.enqueue(self.node)

    def _set(self, entry: MemberUpdate, now: float) -> None:
        held = self._held[entry.node]
        if entry == held:
            return
        node = entry.node
        self._held[node] = entry
        if self._is_confirmed(entry):
            self._dissemination.enqueue(node)
        if entry.state != "suspect":
            self._since.pop(node, None)
        elif precedence(held) != precedence(entry):
            self._since[node] = now
        if (held.state in LIVE) != (entry.state in LIVE):
            self.live ^= {node}
            self.transitions.append((held, entry))

    def _refute(self, update: MemberUpdate, now: float) -> None:
        """Overrule an outdated state of this peer, perhaps from before its disk was lost.

        An incarnation above this peer's may be invented: it follows by a leap at most, once in a period.
        """
        if update.state == "alive" and update.incarnation <= self.incarnation:
            return
        if update.incarnation > self.incarnation:
            if now < self._raised_at + self._pace.period_s:
                return
            self._raised_at = now
        if self.incarnation <= update.incarnation < INCARNATION_MAX:
            self.incarnation = min(update.incarnation + 1, self.incarnation + INCARNATION_LEAP)
            self.refutations += update.state != "alive"
            self.announce()

    # Suspicions
    def suspicion_deadlines(self) -> Iterator[float]:
        """Yield the time at which each suspicion expires."""
        return map(self._deadline_of, self._since)

    def expire_suspicions(self, now: float) -> None:
        """Give up the peers whose suspicion has expired."""
        for node in [node for node in self._since if now >= self._deadline_of(node)]:
            self._set(merge(self._held[node], replace(self._held[node], state="dead")), now)

    def extend_suspicions(self, seconds: float) -> None:
        """Extend suspicions by a time in which nothing could be received."""
        self._since = {node: at + seconds for node, at in self._since.items()}

    def own_suspects(self) -> list[str]:
        """Return the peers that this one suspects itself."""
        return [node for node in self._since if self.node in self._held[node].suspected_by]

    def _deadline_of(self, node: str) -> float:
        accusers = len(self._held[node].suspected_by)
        periods = suspicion_periods(len(self.live) + 1, accusers, self._pace.suspicion, self._pace.slack)
        return self._since[node] + periods * self._pace.period_s

    # Sending
    def piggyback(self, to: str, behind: Iterable[MemberUpdate] = ()) -> tuple[MemberUpdate, ...]:
        """Return the updates for a message to that peer: suspicions of it, then what it is behind with, then new
        ones."""
        held, most = self._held[to], self._pace.piggyback_max
        told_off = held.state == "suspect" if self._pace.buddy else False
        if told_off or (held.state not in LIVE and held.incarnation != UNKNOWN):
            behind = (held, *behind)
        first = {update.node: update for update in behind}
        selected = [update for update in first.values() if self._is_confirmed(update)][:most]
        mine = MemberUpdate(self.node, "alive", self.incarnation)
        fresh = self._dissemination.pick(most - len(selected), len(self._held), first)
        return (*selected, *(mine if node == self.node else self._held[node] for node in fresh))

    def full_state(self, to: str) -> list[tuple[MemberUpdate, ...]]:
        """Return all entries in pieces for a peer that is new or was away; its own entry comes first."""
        known = (held for held in self if held.incarnation != UNKNOWN and self._is_confirmed(held))
        table = sorted(known, key=lambda held: held.node != to)
        most = self._pace.piggyback_max
        return [tuple(table[first : first + most]) for first in range(0, max(1, len(table)), most)]


class MembershipWriter:
    """Messages of the table's peer, with the updates that each receiver should get. `seq`: number of the last ping."""

    def __init__(self, table: MemberTable, rng: Random) -> None:
        self._table = table
        self.seq = rng.getrandbits(31)  # so that an ack for an earlier process does not match

    def hello(self, to: str) -> Tell:
        """Return a request for the full state."""
        return Tell(to, PeerHello(*self._sender, self._table.piggyback(to)))

    def sync(self, to: str, updates: tuple[MemberUpdate, ...]) -> Tell:
        """Return a message of nothing but updates."""
        return Tell(to, StateSync(*self._sender, updates))

    def ping(self, to: str) -> Tell:
        """Return a ping with a new number."""
        self.seq += 1
        return Tell(to, Ping(*self._sender, self.seq, self._table.piggyback(to)))

    def request(self, to: str, seq: int, target: str) -> Tell:
        """Return a request to ping `target`."""
        return Tell(to, PingRequest(*self._sender, seq, target, self._table.piggyback(to)))

    def ack(self, to: str, seq: int, of: str, behind: Iterable[MemberUpdate] = ()) -> Tell:
        """Return the answer of `of`. `behind`: updates that the receiver lacks."""
        return Tell(to, PingAck(*self._sender, seq, of, self._table.piggyback(to, behind)))

    def nack(self, to: str, seq: int, target: str) -> Tell:
        """Return that `target` has not answered yet."""
        return Tell(to, PingNack(*self._sender, seq, target, self._table.piggyback(to)))

    @property
    def _sender(self) -> tuple[str, int]:
        return self._table.node, self._table.incarnation
