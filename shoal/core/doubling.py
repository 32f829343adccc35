"""The last averaging of peers that have learned all: one exchange with each of log2 n partners makes all models one.

Thakur, Rabenseifner, Gropp: "Optimization of Collective Communication Operations in MPICH", Int. J. High Performance
Computing Applications 19 (2005), section 4.5, recursive doubling. With p the greatest power of two up to n peers,
sorted by name:

    number 2              peer p + i gives its mass to peer i            where n is no power of two
    numbers 3 to k + 2    peer i exchanges with peer i xor 2^s           s = 0 .. k - 1, k = log2 p
    number k + 3          peer i gives half of its mass to peer p + i    the counterpart of number 2

A peer's *mass* is what its model weighs: first its examples. Two peers exchange their models as always, come to their
weighted mean both, and divide the sum of their masses. So the sum of mass times model stays where it was, also if the
exchanges end in the middle, and after all of them each model is the mean of all.

Peers begin when each has told each that its local rounds are made, in small words. Whoever finds that an exchange
cannot take place as planned fails, says so when it is asked, and so do its partners. Peers then meet at random, and
divide their masses all the same, which draws models together faster than fixed weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from shoal.core.filter import Filters
from shoal.core.peer_message import Busy, Reserve, Seen

PAUSE_PART, PAUSE_MAX_S = 0.25, 5.0

TRIES = 4
"""Models that are far apart meet in several exchanges: no step is longer than the caps allow."""

FREE = 1
"""An exchange that is not planned, and divides masses too."""

OVER = 1 << 16
"""Stands for the number behind the last."""


@dataclass(frozen=True)
class Exchange:
    """A planned exchange. `number`: the same on both sides; `keeps`: this side's part of both masses after it."""

    number: int
    partner: str
    keeps: float
    asks: bool
    """Whether this side begins it."""


def plan(members: Sequence[str], node: str) -> tuple[Exchange, ...]:
    """Return the exchanges of `node`, in their order, for `members` in any order."""
    names = sorted(members)
    place, levels = names.index(node), len(names).bit_length() - 1
    power = 1 << levels
    if place >= power:
        partner = names[place - power]
        return Exchange(2, partner, 0.0, True), Exchange(levels + 3, partner, 0.5, False)
    partners = [(number, place ^ (1 << number)) for number in range(levels)]
    found = [Exchange(3 + number, names[other], 0.5, place < other) for number, other in partners]
    if place + power < len(names):
        extra = names[place + power]
        return Exchange(2, extra, 1.0, False), *found, Exchange(levels + 3, extra, 0.5, True)
    return tuple(found)


def name_of(members: Sequence[str]) -> str:
    """Return a name for who takes part."""
    return hashlib.sha256("\n".join(sorted(members)).encode()).hexdigest()[:16]


class Me(Protocol):
    """What of a peer is looked at here: see `Holding`."""

    node: str
    weight: float
    rounds: int
    resting: bool
    live: frozenset[str]
    told: dict[str, int]
    together: frozenset[str]
    filters: Filters

    def learn_of(self, seen: Seen) -> None:
        """Let the model's version vector hold this as well."""


class Doubling:
    """One peer's way through its exchanges. It is tried once; a process that dies in the middle of it has failed."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.mass: float | None = None
        """What the model weighs; None: its examples."""
        self._members: tuple[str, ...] = ()
        self._failed = False
        self._planned: tuple[Exchange, ...] = ()
        self._at = self._tries = 0
        self._since = inf  # when the exchange at hand became possible for this side
        self._stirred = -inf  # when anything new was heard that may let it begin
        self._heard: set[tuple[str, bool, bool]] = set()

    @property
    def over(self) -> bool:
        """Whether all exchanges have been made."""
        return bool(self._members) and not self._failed and self._at == len(self._planned)

    @property
    def next(self) -> Exchange | None:
        """The exchange at hand; None before, after, and when it has failed."""
        active = not self._failed and self._at < len(self._planned)
        return self._planned[self._at] if active else None

    @property
    def due(self) -> float:
        """When to ask the partner of the exchange at hand; infinite: there is none."""
        at_hand = self.next
        if at_hand is None:
            return inf
        return self._since if at_hand.asks else self._since + self._patience_s

    def look(self, me: Me, now: float, *, hindered: bool) -> None:
        """Begin when all have said that their local rounds are made; fail when one has gone, or it takes too long.

        `hindered`: by what came of an earlier exchange, which is not known.
        """
        if not me.resting or self._failed:
            return
        if self._stirred == -inf:
            self._stirred = now
        if self.next is not None:
            late = hindered and now > self._since + self._patience_s
            self._failed = late or not me.live.issuperset(self._members[1:])
        elif not self._members and me.live and all(self._rests(me, node) for node in me.live):
            count = len(me.live) + 1
            self._failed = bool(me.filters) and count & (count - 1) > 0  # a mass that is given keeps no rounding
            self._members, self._since = (me.node, *sorted(me.live)), now
            self._planned = plan(self._members, me.node)

    # Whom to ask

    def to_be_asked(self, me: Me, now: float) -> frozenset[str] | None:
        """Return the partner of the exchange at hand; or those of whom this peer has to hear that their rounds are
        made, and in the end that they are near; None: any will do."""
        at_hand = self.next
        if at_hand is not None:
            return frozenset([at_hand.partner])
        if self.over:
            return frozenset(node for node in me.live if not self._is_near(me, me.told.get(node, 0)))
        if self._waits(me, now):
            return frozenset(node for node in me.live if not self._rests(me, node))
        return None

    def step_with(self, partner: str, me: Me) -> int:
        """Return the number of an exchange with that one; 0: masses stay."""
        at_hand = self.next
        if at_hand is not None:
            return at_hand.number
        return FREE if me.resting and self._rests(me, partner) else 0

    def ring(self, step: int) -> str:
        """Return the name of the members, in an exchange that is planned."""
        return name_of(self._members) if step > FREE else ""

    def pause_s(self, now: float) -> float:
        """Return how long to leave one alone that is not ready: a part of the time that has passed."""
        return min(PAUSE_MAX_S, PAUSE_PART * (now - self._since)) if self._members and not self._failed else 0.0

    # What others say

    def hear(self, message: Reserve | Busy, me: Me, now: float) -> None:
        """Somebody says how many rounds it has made, and where it is."""
        if not me.resting:
            return
        me.told[message.node] = message.rounds
        news = message.node, self._rests(me, message.node), isinstance(message, Reserve) and message.step > FREE
        if news not in self._heard:
            self._stirred = now
        self._heard.add(news)

    def answered(self, busy: Busy, now: float, usual_s: float) -> None:
        """The partner of the exchange at hand cannot have it now: fail, if it never will. `usual_s`: how long an
        exchange may take; it may have to make its earlier ones first."""
        at_hand = self.next
        if at_hand is None or at_hand.partner != busy.node:
            return
        elsewhere = busy.step == 0 or busy.step > at_hand.number
        most_s = self._patience_s if busy.step == at_hand.number else TRIES * len(self._planned) * usual_s
        self._failed = elsewhere or now > self._since + most_s

    def number(self, me: Me, now: float, *, free: bool) -> int:
        """Return what others are told: at which exchange this peer is; 1: not ready yet, 0: it takes no part."""
        if self.over:
            return OVER
        at_hand = self.next
        if at_hand is not None:
            return at_hand.number if free else 1
        return int(self._waits(me, now))

    def refuses(self, message: Reserve, me: Me, now: float) -> str:
        """Return why that exchange is not entered into; empty: nothing here speaks against it."""
        at_hand = self.next
        if message.step > FREE:
            mine = at_hand is not None and (at_hand.number, at_hand.partner) == (message.step, message.node)
            return "" if mine and message.ring == name_of(self._members) else "not at this exchange"
        if at_hand is not None:
            return "in its last averaging"
        if self.over and self._is_near(me, message.rounds):
            return "both have the mean of all"
        if self._waits(me, now) and me.rounds <= message.rounds:
            return "both have made their rounds, others have not"
        return "still learning" if message.step and not me.resting else ""

    # Exchanges

    def mass_of(self, me: Me) -> float:
        """Return what the model weighs."""
        return me.weight if self.mass is None else self.mass

    def weight(self, me: Me, step: int) -> float:
        """Return how much of that takes part in such an exchange; where masses stay, no more than its examples."""
        return self.mass_of(me) if step else min(self.mass_of(me), me.weight)

    def is_late(self, step: int) -> bool:
        """Return whether this was an exchange that is planned no more."""
        return step > FREE and (self.next is None or self.next.number != step)

    def keeps(self, step: int) -> float | None:
        """Return this side's part of both masses after it; None: they stay."""
        if step > FREE and self.next is not None:
            return self.next.keeps
        return 0.5 if step else None

    def took(self, me: Me, step: int, mass: float, now: float, *, whole: bool) -> None:
        """An exchange has been made; `whole`: the models have met."""
        if mass != self.mass_of(me):
            self.mass = mass
        at_hand = self.next
        if at_hand is not None and at_hand.number == step:
            self._since, self._tries = now, 0 if whole else self._tries + 1
            self._at += whole
            self._failed = self._tries >= TRIES
            if self.over:
                me.together = frozenset(self._members)
                me.learn_of(dict.fromkeys(self._members, me.rounds))  # as each of them has said before it began
        elif self.over:
            self._failed = True  # this model is not the mean any more

    def missed(self, step: int) -> None:
        """An exchange did not take place."""
        self._failed |= step > FREE

    # What survives

    def state(self) -> list[Any]:
        """As JSON values."""
        return [self.mass, bool(self._members) or self._failed]

    def restore(self, state: list[Any]) -> None:
        """Take up what an earlier process has kept."""
        self.mass, self._failed = state

    def _waits(self, me: Me, now: float) -> bool:
        begun = bool(self._members) or self._failed
        return me.resting and not begun and now < self._stirred + self._patience_s

    def _rests(self, me: Me, node: str) -> bool:
        return me.told.get(node, 0) >= me.rounds > 0

    def _is_near(self, me: Me, count: int) -> bool:
        return count > me.rounds > 0 and (count - me.rounds) % 2 == 1
