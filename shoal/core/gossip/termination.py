"""Termination: peers that have made all local rounds agree to leave, by the rounds in their models.

After its last local round a peer goes on mixing, and takes a turn now and then.

    all rounds are in    its model holds (`version_vector`) all local rounds of all live peers
    it has converged     since then its last exchanges with several different peers were with models that differ from
                         its own by less than the tolerance; or its exchanges since then have used up their number; or
                         the final averaging (`shoal.core.mixing.final_averaging`) made it the mean of all live peers.
                         It reports this, and takes it back, by counting its rounds on: odd when near, even when not
    all have converged   the rounds of all live peers, as its model holds them, say so: it may leave
    none is missing      ... unless a peer that may come back has been absent for less than `linger_s`

It also leaves when nothing new has come for `silence_s`, so it ends in any case; time in which byte budgets prevent
exchanges does not count. A peer that can reach no other leaves at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from shoal.core.errors import InvalidJob
from shoal.core.gossip.gossip_state import GossipState

GROWTH = 1.5
"""Growth of the pauses between turns."""


@dataclass(frozen=True)
class TerminationRule:
    """The end of a job without a coordinator, for peers that make `rounds` local rounds each."""

    rounds: int
    final_exchanges_max: int = 100
    convergence_tol: float = 1e-3
    """Distance of two models, relative to their length, below which they count as one."""
    partners: int = 3
    """Number of different peers to be near; all, if there are fewer."""
    linger_s: float = 60.0
    silence_s: float = 60.0
    rest_s: float = 0.1
    """Seconds between two turns while models converge."""
    idle_s: float = 2.0
    """Seconds between two turns while other peers train, who begin exchanges themselves."""
    longest_s: float = 60.0
    """`idle_s` grows up to this, and `rest_s` to a quarter of `silence_s`, while exchanges bring nothing new."""

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.partners < 1 or self.final_exchanges_max < 0:
            raise InvalidJob("drain: rounds and partners are at least 1, final_exchanges_max at least 0")
        if not (0 < self.convergence_tol < inf and self.linger_s >= 0 and self.silence_s > 0):
            raise InvalidJob("drain: convergence_tol and silence_s must be positive, linger_s at least 0")
        if not 0 < self.rest_s <= self.idle_s <= self.longest_s < inf:
            raise InvalidJob("drain: rest_s, idle_s and longest_s must be positive, each at least as long as the last")


class Termination:
    """One peer's termination, from its last local round on. A new process collects its knowledge again.

    `in_step`: peers mix in rounds with the same few others, so that only these can be near.
    """

    def __init__(self, policy: TerminationRule, *, in_step: bool) -> None:
        self.policy, self._in_step = policy, in_step
        self.near_partners: set[str] = set()
        """Peers whose models were near, since one was not."""
        self.far_count = 0
        """Number of times that a model was not near since all rounds are in."""
        self.has_converged = False
        """True if models were near when it last could reach others. Silence and the limit end it, too."""
        self._agreed = False
        self._live: frozenset[str] = frozenset()
        self._away: frozenset[str] = frozenset()
        self._since = self._new_at = -inf
        self._idle, self._news, self._idle_met = 0, -1, False
        self.turn_at = inf
        """Time of the next turn at mixing; infinite: none is planned."""
        self._turned_at = -inf

    def may_leave(self, me: GossipState, now: float) -> bool:
        """Return whether this peer may leave. Call it after every event."""
        self._count_distances(me, now)
        if me.peers.absent - self._away or not self._agreed:
            self._since = now
        self._away = me.peers.absent
        rounds = self.policy.rounds
        self.has_converged = (self._agreed and self._is_near(me)) if me.peers.nodes else self.has_converged
        near = self._agreed and (self.far_count >= self.policy.final_exchanges_max or self._is_near(me))
        own = max(me.counts.version_vector.get(me.node, 0), rounds)
        if near != me.counts.claims_near(own):
            me.counts.merge({me.node: own + 1})
        news = sum(me.counts.version_vector.values()) + sum(me.counts.reported.values())
        if news != self._news:
            self._idle, self._news, self._new_at = 0, news, now
        if now < me.convergence.blocked_until:
            self._new_at = now
        waits = bool(me.peers.absent) and now < self._since + self.policy.linger_s
        counts = [
            max(me.counts.version_vector.get(node, 0), me.counts.reported.get(node, 0)) for node in self._voters(me)
        ]
        is_near = near and all(map(me.counts.claims_near, counts))
        silent = self._agreed and now >= self._new_at + self.policy.silence_s
        return not waits and (is_near or silent)

    def _count_distances(self, me: GossipState, now: float) -> None:
        """Count distances once all rounds are in; start again when a peer comes back."""
        meetings, me.convergence.distances = me.convergence.distances, []
        agreed, rounds = self._agreed, self.policy.rounds
        self._agreed = all(me.counts.version_vector.get(node, 0) >= rounds for node in self._voters(me))
        self._idle_met = self._idle_met or bool(meetings)
        come, self._live = me.peers.nodes - self._live, me.peers.nodes
        if not (agreed and self._agreed) or come:
            self.near_partners, self.far_count = set(), 0
        elif any(distance >= self.policy.convergence_tol for _, distance in meetings):
            self.near_partners = set()
            self.far_count, self._idle, self._new_at = self.far_count + 1, 0, now
        elif meetings:
            self.near_partners = {partner for partner, _ in meetings} | (set() if self._in_step else self.near_partners)

    def _voters(self, me: GossipState) -> frozenset[str]:
        """Return the peers whose agreement counts; none for a peer that can reach no other."""
        return me.peers.nodes | me.peers.unreachable if me.peers.nodes else me.peers.nodes

    def take_turn(self, me: GossipState, now: float) -> bool:
        """Count a turn and return True if one is due; else plan it."""
        self.turn_at = max(self._turned_at + self.pause_s(), me.convergence.blocked_until)
        if now < self.turn_at:
            return False
        self._turned_at = now
        self.count_turn()
        return True

    def plan_turn(self, me: GossipState, now: float) -> None:
        """Plan the turn after one that begins now."""
        self.turn_at = max(now + self.policy.rest_s, me.convergence.blocked_until)

    def count_turn(self) -> None:
        """Count a turn of mixing."""
        self._idle += self._idle_met  # without an exchange since the last turn it does not slow down
        self._idle_met = False

    def pause_s(self) -> float:
        """Return the seconds until the next turn. Synchronous peers never slow down: others wait for them."""
        if self._in_step:
            return self.policy.rest_s
        first, longest = self.policy.idle_s, self.policy.longest_s
        if self._agreed:
            first, longest = self.policy.rest_s, self.policy.silence_s / 4
        return min(longest, first * GROWTH ** min(self._idle, 64))

    def _is_near(self, me: GossipState) -> bool:
        if me.peers.nodes and me.peers.nodes <= me.convergence.consensus_with:
            return True
        met = self.near_partners & me.peers.nodes
        could_be = met if self._in_step and met else me.peers.nodes - (me.convergence.unanswering - met)
        return len(met) >= min(self.policy.partners, len(could_be))
