"""Final averaging: after the local rounds, one exchange with each of log2 n partners makes all models one.

Thakur, Rabenseifner, Gropp: "Optimization of Collective Communication Operations in MPICH", Int. J. High Performance
Computing Applications 19 (2005), section 4.5, recursive doubling. With p the greatest power of two up to n peers,
sorted by name:

    number 2              peer p + i gives its mass to peer i            where n is not a power of two
    numbers 3 to k + 2    peer i exchanges with peer i xor 2^s           s = 0 .. k - 1, k = log2 p
    number k + 3          peer i gives half of its mass to peer p + i    the counterpart of number 2

A peer's *mass* is the weight of its model, at first its examples. Two peers exchange their models as always, both take
the weighted mean, and divide the sum of their masses. So the sum of mass times model is conserved, also if the
exchanges stop in the middle, and after all of them each model is the mean of all.

Peers begin when all have reported that their local rounds are made. A peer whose planned exchange cannot take place
fails, says so when it is asked, and so do its partners. Peers then exchange at random and divide their masses all the
same, which converges faster than fixed weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from shoal.core.gossip.gossip_state import GossipState
from shoal.core.protocol.peer_message import ExchangeDeny, ExchangeRequest

PAUSE_PART, PAUSE_MAX_S = 0.25, 5.0

TRIES = 4
"""Distant models need several exchanges: no step is longer than the caps allow."""

FREE = 1
"""Number of an unplanned exchange that divides masses, too."""

OVER = 1 << 16
"""Stands for the number after the last."""


@dataclass(frozen=True)
class AveragingStep:
    """A planned exchange. `number`: the same on both sides; `kept_part`: this side's part of both masses afterwards."""

    number: int
    partner: str
    kept_part: float
    asks: bool
    """True if this side begins it."""


def plan(members: Sequence[str], node: str) -> tuple[AveragingStep, ...]:
    """Return the exchanges of `node` in order, for `members` in any order."""
    names = sorted(members)
    place, levels = names.index(node), len(names).bit_length() - 1
    power = 1 << levels
    if place >= power:
        partner = names[place - power]
        return AveragingStep(2, partner, 0.0, True), AveragingStep(levels + 3, partner, 0.5, False)
    partners = [(number, place ^ (1 << number)) for number in range(levels)]
    found = [AveragingStep(3 + number, names[other], 0.5, place < other) for number, other in partners]
    if place + power < len(names):
        extra = names[place + power]
        return AveragingStep(2, extra, 1.0, False), *found, AveragingStep(levels + 3, extra, 0.5, True)
    return tuple(found)


def ring_name(members: Sequence[str]) -> str:
    """Return an identifier of the set of members."""
    return hashlib.sha256("\n".join(sorted(members)).encode()).hexdigest()[:16]


class FinalAveraging:
    """One peer's planned exchanges. They are tried once; a process that dies among them has failed."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.mass: float | None = None
        """Weight of the model; None: its examples."""
        self._members: tuple[str, ...] = ()
        self._failed = False
        self._planned: tuple[AveragingStep, ...] = ()
        self._at = self._tries = 0
        self._since = inf  # when the current exchange became possible for this side
        self._stirred = -inf  # last report that may let it begin
        self._heard: set[tuple[str, bool, bool]] = set()

    @property
    def is_over(self) -> bool:
        """Return whether all exchanges are made."""
        return bool(self._members) and not self._failed and self._at == len(self._planned)

    @property
    def current(self) -> AveragingStep | None:
        """The next planned exchange; None before, after, and on failure."""
        active = not self._failed and self._at < len(self._planned)
        return self._planned[self._at] if active else None

    @property
    def due_at(self) -> float:
        """Return the time when to ask the partner of the current exchange; infinite: there is none."""
        at_hand = self.current
        if at_hand is None:
            return inf
        return self._since if at_hand.asks else self._since + self._patience_s

    def advance(self, me: GossipState, now: float, *, hindered: bool) -> None:
        """Begin when all have reported their rounds; fail when a member has gone, or it takes too long.

        `hindered`: an earlier exchange is in doubt.
        """
        if not me.counts.rounds_done or self._failed:
            return
        if self._stirred == -inf:
            self._stirred = now
        if self.current is not None:
            late = hindered and now > self._since + self._patience_s
            self._failed = late or not me.peers.nodes.issuperset(self._members[1:])
        elif not self._members and me.peers.nodes and all(me.counts.has_reported(node) for node in me.peers.nodes):
            count = len(me.peers.nodes) + 1
            self._failed = bool(me.filters) and count & (count - 1) > 0  # rounding errors of a given mass would be lost
            self._members, self._since = (me.node, *sorted(me.peers.nodes)), now
            self._planned = plan(self._members, me.node)

    # Choice of partners

    def partners_to_ask(self, me: GossipState, now: float) -> frozenset[str] | None:
        """Return the partner of the current exchange; or peers whose rounds, or convergence, are not reported yet;
        None: any peer."""
        at_hand = self.current
        if at_hand is not None:
            return frozenset([at_hand.partner])
        if self.is_over:
            return frozenset(
                node for node in me.peers.nodes if not me.counts.claims_near(me.counts.reported.get(node, 0))
            )
        if self._waits(me, now):
            return frozenset(node for node in me.peers.nodes if not me.counts.has_reported(node))
        return None

    def step_for(self, partner: str, me: GossipState) -> int:
        """Return the number of an exchange with that peer; 0: masses stay."""
        at_hand = self.current
        if at_hand is not None:
            return at_hand.number
        return FREE if me.counts.rounds_done and me.counts.has_reported(partner) else 0

    def ring_name(self, step: int) -> str:
        """Return the identifier of the members for a planned exchange."""
        return ring_name(self._members) if step > FREE else ""

    def pause_s(self, now: float) -> float:
        """Return how long to spare a partner that is not ready: a part of the time that has passed."""
        return min(PAUSE_MAX_S, PAUSE_PART * (now - self._since)) if self._members and not self._failed else 0.0

    # Messages

    def record_rounds(self, message: ExchangeRequest | ExchangeDeny, me: GossipState, now: float) -> None:
        """Record the rounds and the position that a peer reports."""
        if not me.counts.rounds_done:
            return
        me.counts.reported[message.node] = message.rounds
        news = (
            message.node,
            me.counts.has_reported(message.node),
            isinstance(message, ExchangeRequest) and message.step > FREE,
        )
        if news not in self._heard:
            self._stirred = now
        self._heard.add(news)

    def record_denial(self, busy: ExchangeDeny, now: float, usual_s: float) -> None:
        """Record that the current partner denies the exchange; fail if it never will agree.

        `usual_s`: how long an exchange may take; the partner may have earlier ones to make.
        """
        at_hand = self.current
        if at_hand is None or at_hand.partner != busy.node:
            return
        elsewhere = busy.step == 0 or busy.step > at_hand.number
        most_s = self._patience_s if busy.step == at_hand.number else TRIES * len(self._planned) * usual_s
        self._failed = elsewhere or now > self._since + most_s

    def progress(self, me: GossipState, now: float, *, free: bool) -> int:
        """Return what others are told: the number of the current exchange; 1: not ready, 0: no part in it."""
        if self.is_over:
            return OVER
        at_hand = self.current
        if at_hand is not None:
            return at_hand.number if free else 1
        return int(self._waits(me, now))

    def refusal(self, message: ExchangeRequest, me: GossipState, now: float) -> str:
        """Return why that exchange is refused; empty: it is allowed here."""
        at_hand = self.current
        if message.step > FREE:
            mine = at_hand is not None and (at_hand.number, at_hand.partner) == (message.step, message.node)
            return "" if mine and message.group == ring_name(self._members) else "not at this exchange"
        if at_hand is not None:
            return "in its last averaging"
        if self.is_over and me.counts.claims_near(message.rounds):
            return "both have the mean of all"
        if self._waits(me, now) and me.counts.rounds <= message.rounds:
            return "both have made their rounds, others have not"
        return "still learning" if message.step and not me.counts.rounds_done else ""

    # Exchanges

    def mass_of(self, me: GossipState) -> float:
        """Return the weight of the model."""
        return me.weight if self.mass is None else self.mass

    def weight(self, me: GossipState, step: int) -> float:
        """Return the mass that takes part in the exchange; where masses stay, at most the examples."""
        return self.mass_of(me) if step else min(self.mass_of(me), me.weight)

    def is_late(self, step: int) -> bool:
        """Return whether this was a planned exchange that is not current any more."""
        return step > FREE and (self.current is None or self.current.number != step)

    def kept_part(self, step: int) -> float | None:
        """Return this side's part of both masses afterwards; None: masses stay."""
        if step > FREE and self.current is not None:
            return self.current.kept_part
        return 0.5 if step else None

    def record_step(self, me: GossipState, step: int, mass: float, now: float, *, whole: bool) -> None:
        """Record a step; `whole`: it went the whole distance."""
        if mass != self.mass_of(me):
            self.mass = mass
        at_hand = self.current
        if at_hand is not None and at_hand.number == step:
            self._since, self._tries = now, 0 if whole else self._tries + 1
            self._at += whole
            self._failed = self._tries >= TRIES
            if self.is_over:
                me.convergence.consensus_with = frozenset(self._members)
                # Each member has reported its rounds before it began.
                me.counts.merge(dict.fromkeys(self._members, me.counts.rounds))
        elif self.is_over:
            self._failed = True  # the model is no longer the mean

    def record_failure(self, step: int) -> None:
        """Record that an exchange did not take place."""
        self._failed |= step > FREE

    # Stored state

    def state(self) -> list[Any]:
        """Return JSON values."""
        return [self.mass, bool(self._members) or self._failed]

    def restore(self, state: list[Any]) -> None:
        """Restore what an earlier process stored."""
        self.mass, self._failed = state

    def _waits(self, me: GossipState, now: float) -> bool:
        begun = bool(self._members) or self._failed
        return me.counts.rounds_done and not begun and now < self._stirred + self._patience_s
