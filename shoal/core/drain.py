"""When peers that have learned all may part: agreed on by what their models hold, not counted.

After its last local round a peer goes on mixing, and takes a turn at it now and then.

    all have learned     its model holds (`seen`) all local rounds of everybody that is there
    it is near           its last meetings with `partners` different others since then were with models that differ from
                         its own by less than `near` of its length; or it has been moved further `most` times since
                         then; or the last averaging (`shoal.core.doubling`) has made it the mean of everybody that is
                         there. It says so, and takes it back: it counts its rounds on, odd when near, even when not
    all are near         the rounds of everybody that is there, as its model holds them, say so: it may go
    none is waited for   ... unless somebody who may come back has been away for less than `linger_s`

It goes as well when nothing new has come for `silence_s`, so it ends in any case; time in which budgets of bytes keep
it from meeting anybody does not count. Who can reach nobody goes at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

from shoal.core.errors import InvalidJob
from shoal.core.peer_message import Seen

GROWTH = 1.5
"""Of the pauses between turns."""


class Me(Protocol):
    """What of a peer is looked at here: see `Holding`."""

    node: str
    seen: Seen
    live: frozenset[str]
    away: frozenset[str]
    beyond: frozenset[str]
    unreached: frozenset[str]
    told: Seen
    together: frozenset[str]
    meetings: list[tuple[str, float]]
    hindered_until: float

    def learn_of(self, seen: Seen) -> None:
        """Let the model's version vector hold this as well."""


@dataclass(frozen=True)
class Drain:
    """The end of a job without a server, for peers that make `rounds` local rounds each."""

    rounds: int
    most: int = 100
    near: float = 1e-3
    """How little a meeting may move a model, relative to its length, so that models count as one."""
    partners: int = 3
    """With how many others, or all if there are fewer."""
    linger_s: float = 60.0
    silence_s: float = 60.0
    rest_s: float = 0.1
    """Between two turns, while models draw near."""
    idle_s: float = 2.0
    """The same while others learn, who begin meetings by themselves."""
    longest_s: float = 60.0
    """It grows up to this, and `rest_s` up to a quarter of `silence_s`, as long as meetings bring nothing new."""

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.partners < 1 or self.most < 0:
            raise InvalidJob("drain: rounds and partners are at least 1, most at least 0")
        if not (0 < self.near < inf and self.linger_s >= 0 and self.silence_s > 0):
            raise InvalidJob("drain: near and silence_s must be positive, linger_s at least 0")
        if not 0 < self.rest_s <= self.idle_s <= self.longest_s < inf:
            raise InvalidJob("drain: rest_s, idle_s and longest_s must be positive, each at least as long as the last")


class Draining:
    """One peer's end, from its last local round on. What a process knew of it, the next one finds out again.

    `in_step`: peers mix in rounds, with the same few others each time, so that these are all that can be asked.
    """

    def __init__(self, policy: Drain, *, in_step: bool) -> None:
        self.policy, self._in_step = policy, in_step
        self.met: set[str] = set()
        """Whose models were near, since one was not."""
        self.count = 0
        """How often one was not since all have learned."""
        self.one = False
        """Whether models were near when it last could reach anybody. (Silence ends it too, and too many meetings.)"""
        self._agreed = False
        self._live: frozenset[str] = frozenset()
        self._away: frozenset[str] = frozenset()
        self._since = self._new_at = -inf
        self._idle, self._news, self._idle_met = 0, -1, False

    def over(self, me: Me, now: float) -> bool:
        """Whether this peer may go. To be called after whatever has happened."""
        self._take_meetings(me, now)
        if me.away - self._away or not self._agreed:
            self._since = now
        self._away = me.away
        rounds = self.policy.rounds
        self.one = (self._agreed and self._is_near(me)) if me.live else self.one
        near = self._agreed and (self.count >= self.policy.most or self._is_near(me))
        own = max(me.seen.get(me.node, 0), rounds)
        if near != self._says_near(own):
            me.learn_of({me.node: own + 1})
        news = sum(me.seen.values()) + sum(me.told.values())
        if news != self._news:
            self._idle, self._news, self._new_at = 0, news, now
        if now < me.hindered_until:
            self._new_at = now
        waits = bool(me.away) and now < self._since + self.policy.linger_s
        counts = [max(me.seen.get(node, 0), me.told.get(node, 0)) for node in self._there(me)]
        said = near and all(map(self._says_near, counts))
        silent = self._agreed and now >= self._new_at + self.policy.silence_s
        return not waits and (said or silent)

    def _take_meetings(self, me: Me, now: float) -> None:
        """Meetings count once all have learned, and anew when somebody comes back."""
        meetings, me.meetings = me.meetings, []
        agreed, rounds = self._agreed, self.policy.rounds
        self._agreed = all(me.seen.get(node, 0) >= rounds for node in self._there(me))
        self._idle_met = self._idle_met or bool(meetings)
        come, self._live = me.live - self._live, me.live
        if not (agreed and self._agreed) or come:
            self.met, self.count = set(), 0
        elif any(distance >= self.policy.near for _, distance in meetings):
            self.met = set()
            self.count, self._idle, self._new_at = self.count + 1, 0, now
        elif meetings:
            self.met = {partner for partner, _ in meetings} | (set() if self._in_step else self.met)

    def _there(self, me: Me) -> frozenset[str]:
        """Who has a say: nobody, for one that nothing can reach any more."""
        return me.live | me.beyond if me.live else me.live

    def turned(self) -> None:
        """A turn at mixing is being taken."""
        self._idle += self._idle_met  # who has not met anybody since the last turn must not become slower
        self._idle_met = False

    def pause_s(self) -> float:
        """Until the next turn. Who mixes in step holds the others up, and is not idle."""
        if self._in_step:
            return self.policy.rest_s
        first, longest = self.policy.idle_s, self.policy.longest_s
        if self._agreed:
            first, longest = self.policy.rest_s, self.policy.silence_s / 4
        return min(longest, first * GROWTH ** min(self._idle, 64))

    def _says_near(self, count: int) -> bool:
        return count > self.policy.rounds and (count - self.policy.rounds) % 2 == 1

    def _is_near(self, me: Me) -> bool:
        if me.live and me.live <= me.together:
            return True
        met = self.met & me.live
        could_be = met if self._in_step and met else me.live - (me.unreached - met)
        return len(met) >= min(self.policy.partners, len(could_be))
