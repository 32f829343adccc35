"""What one peer believes of the others, and what of that it still has to tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

from shoal.core.pace import Pace
from shoal.core.peer_message import Rumour
from shoal.core.plausible import INCARNATION_LEAP
from shoal.core.rumours import INCARNATION_MAX, LIVE, UNHEARD, Retelling, merge, patience, rank


class Beliefs:
    """One belief for each admitted peer but this one; nobody else's name is ever kept."""

    def __init__(self, node: str, incarnation: int, pace: Pace) -> None:
        self.node, self.incarnation, self._pace = node, incarnation, pace
        self.live: set[str] = set()
        self.turned: list[tuple[Rumour, Rumour]] = []
        """(before, after) of each peer that was given up, or is there again; whoever reads it empties it."""
        self.doubts = 0
        """How often this peer had to defend itself; whoever reads it sets it back."""
        self._held: dict[str, Rumour] = {}
        self._since: dict[str, float] = {}  # when the suspicions began that run
        self._retelling = Retelling(pace.retell)
        self._own_word: dict[str, int] = {}
        """The highest incarnation that each peer itself has said here."""
        self._said_at: dict[str, float] = {}
        """When it last spoke."""
        self._raised_at = -inf

    def __iter__(self) -> Iterator[Rumour]:
        """In the order of the names."""
        return iter(self._held.values())

    def __contains__(self, node: str) -> bool:
        return node in self._held

    def __getitem__(self, node: str) -> Rumour:
        return self._held[node]

    def admit(self, nodes: frozenset[str]) -> None:
        """Forget all others. Whoever is new counts as dead until somebody tells otherwise."""
        old, self._held = self._held, {}
        for node in sorted(nodes - {self.node}):
            held = old.get(node, Rumour(node, "dead", UNHEARD))
            self._held[node] = replace(held, accusers=tuple(a for a in held.accusers if a in nodes or a == self.node))
        self.live &= self._held.keys()
        self._since = {node: at for node, at in self._since.items() if node in self._held}
        self._retelling.keep({*self._held, self.node})
        self._own_word = {node: said for node, said in self._own_word.items() if node in self._held}
        self._said_at = {node: at for node, at in self._said_at.items() if node in self._held}

    # ------------------------------------------------------------------------------------------------------- hearing
    def hear_itself(self, node: str, incarnation: int, now: float) -> None:
        """Take in what a peer itself says: a belief that is a leap above that was never true, and is given up."""
        said = self._own_word[node] = max(incarnation, self._own_word.get(node, 0))
        self._said_at[node] = now
        if self._held[node].incarnation > said + INCARNATION_LEAP:
            self._believe(Rumour(node, "alive", incarnation), now)

    def leaps(self, rumour: Rumour) -> bool:
        """Return whether a rumour is more than a leap above what the peer itself has said here, if it ever spoke."""
        return rumour.node in self._own_word and not self._is_confirmed(rumour)

    def is_made_up(self, rumour: Rumour, now: float) -> bool:
        """Return whether the peer cannot have come so far since it last spoke here, so that nobody honest tells this.

        It may have risen by a leap in each period and at a start, and whoever tells it may know a leap more.
        """
        if rumour.node not in self._own_word:
            return False
        periods = (now - self._said_at[rumour.node]) / self._pace.period_s
        return rumour.incarnation > self._own_word[rumour.node] + INCARNATION_LEAP * (periods + 4)

    def _is_confirmed(self, rumour: Rumour) -> bool:
        """Return whether a rumour may be told on: a leap that came by hearsay alone ends here."""
        return rumour.incarnation <= self._own_word.get(rumour.node, 0) + INCARNATION_LEAP

    def hear(self, rumour: Rumour, now: float, *, old: bool = False) -> Rumour | None:
        """Take a rumour in. Returned is what is believed, if the rumour is behind that.

        `old`: it is no news but has been held all along, perhaps by one who alone was out of that peer's reach. So
        nobody whom this peer knows to live is given up on such a word: if it is dead, its silence will tell.
        """
        if rumour.node == self.node:
            self._defend(rumour, now)
            return None
        held = self._held.get(rumour.node)
        if held is None:  # rosters change, and not everywhere at once
            return None
        if rank(rumour) < rank(held):
            return held
        if rumour == held:
            return None
        if old and rumour.state == "dead" and held.state in LIVE and held.incarnation == rumour.incarnation:
            return None
        accusers = tuple(a for a in rumour.accusers if a in self._held or a == self.node)
        self._believe(merge(held, replace(rumour, accusers=accusers)), now)
        return None

    def accuse(self, node: str, now: float) -> None:
        """This peer suspects that one, by what it has seen itself."""
        held = self._held[node]
        if held.state in LIVE:
            self._believe(merge(held, Rumour(node, "suspect", held.incarnation, (self.node,))), now)

    def announce(self) -> None:
        """Tell the others of this peer."""
        self._retelling.fresh(self.node)

    def _believe(self, belief: Rumour, now: float) -> None:
        held = self._held[belief.node]
        if belief == held:
            return
        node = belief.node
        self._held[node] = belief
        if self._is_confirmed(belief):
            self._retelling.fresh(node)
        if belief.state != "suspect":
            self._since.pop(node, None)
        elif rank(held) != rank(belief):
            self._since[node] = now
        if (held.state in LIVE) != (belief.state in LIVE):
            self.live ^= {node}
            self.turned.append((held, belief))

    def _defend(self, rumour: Rumour, now: float) -> None:
        """Overrule an outdated belief about this peer; it may be of a time that a lost disk knew of.

        What is ahead of this peer may be made up as well: it follows by a leap at most, and once in a period.
        """
        if rumour.state == "alive" and rumour.incarnation <= self.incarnation:
            return
        if rumour.incarnation > self.incarnation:
            if now < self._raised_at + self._pace.period_s:
                return
            self._raised_at = now
        if self.incarnation <= rumour.incarnation < INCARNATION_MAX:
            self.incarnation = min(rumour.incarnation + 1, self.incarnation + INCARNATION_LEAP)
            self.doubts += rumour.state != "alive"
            self.announce()

    # ---------------------------------------------------------------------------------------------------- suspicions
    def verdicts(self) -> Iterator[float]:
        """When each suspicion that runs becomes certainty."""
        return map(self._verdict_at, self._since)

    def condemn(self, now: float) -> None:
        """Give those up whose time to speak is over."""
        for node in [node for node in self._since if now >= self._verdict_at(node)]:
            self._believe(merge(self._held[node], replace(self._held[node], state="dead")), now)

    def adjourn(self, seconds: float) -> None:
        """Nothing could be heard for so long: it does not count."""
        self._since = {node: at + seconds for node, at in self._since.items()}

    def accused(self) -> list[str]:
        """Those whom this peer itself suspects."""
        return [node for node in self._since if self.node in self._held[node].accusers]

    def _verdict_at(self, node: str) -> float:
        accusers = len(self._held[node].accusers)
        periods = patience(len(self.live) + 1, accusers, self._pace.suspicion, self._pace.slack)
        return self._since[node] + periods * self._pace.period_s

    # ------------------------------------------------------------------------------------------------------- telling
    def news(self, to: str, behind: Iterable[Rumour] = ()) -> tuple[Rumour, ...]:
        """What that peer is told: first what it is accused of, then what it is behind with, then what is new."""
        held, most = self._held[to], self._pace.news_most
        told_off = held.state == "suspect" if self._pace.buddy else False
        if told_off or (held.state not in LIVE and held.incarnation != UNHEARD):
            behind = (held, *behind)
        first = {rumour.node: rumour for rumour in behind}
        told = [rumour for rumour in first.values() if self._is_confirmed(rumour)][:most]
        mine = Rumour(self.node, "alive", self.incarnation)
        fresh = self._retelling.pick(most - len(told), len(self._held), first)
        return (*told, *(mine if node == self.node else self._held[node] for node in fresh))

    def everything(self, to: str) -> list[tuple[Rumour, ...]]:
        """All that is believed, for a peer that is new or was away, in pieces, and first what is believed of it."""
        known = (held for held in self if held.incarnation != UNHEARD and self._is_confirmed(held))
        table = sorted(known, key=lambda held: held.node != to)
        most = self._pace.news_most
        return [tuple(table[first : first + most]) for first in range(0, max(1, len(table)), most)]
