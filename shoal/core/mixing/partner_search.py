"""The search for a partner for an exchange: live, answering, and not busy."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from random import Random

from shoal.core.gossip.gossip_state import GossipState
from shoal.core.mixing.exchange_pacing import ModelTokens, PairwisePolicy
from shoal.core.mixing.final_averaging import FinalAveraging
from shoal.core.mixing.open_exchanges import OpenExchanges

WAIT_MAX_S = 3600.0
"""Longest time in seconds for which a busy peer is left alone, whatever it asks for."""

SKIPPED_MAX_S = 600.0
"""Longest time in seconds for which a silent partner is skipped."""


class PartnerReachability:
    """Partners that do not answer this peer's calls; each is skipped for longer each time, never for ever."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._missed: dict[str, tuple[int, float]] = {}

    def record_miss(self, node: str, now: float) -> None:
        """Record a call without an answer."""
        count = self._missed.get(node, (0, 0.0))[0] + 1
        self._missed[node] = count, now + min(SKIPPED_MAX_S, self._first_s * 2 ** min(count - 1, 30))

    def record_answer(self, node: str) -> None:
        self._missed.pop(node, None)

    def retain(self, live: frozenset[str]) -> None:
        """Forget peers that are not live."""
        if self._missed.keys() - live:
            self._missed = {node: one for node, one in self._missed.items() if node in live}

    def skipped_until(self, node: str) -> float:
        """Return when it may be called again."""
        return self._missed.get(node, (0, -inf))[1]

    @property
    def unanswering(self) -> frozenset[str]:
        """Peers that have not answered twice in a row."""
        return frozenset(node for node, (count, _) in self._missed.items() if count > 1)


class PartnerSearch:
    """One peer's search for a partner: attempts in its turn, and peers that are silent or busy."""

    def __init__(
        self, policy: PairwisePolicy, exchanges: OpenExchanges, averaging: FinalAveraging, tokens: ModelTokens
    ) -> None:
        self._attempts_max = policy.partners_asked_max
        self._exchanges, self._averaging, self._tokens = exchanges, averaging, tokens
        self.reachability = PartnerReachability(policy.exchange_timeout_s)
        self.next_try = inf
        """Time of the next call; infinite: none is planned."""
        self._attempts = 0
        self._asked: set[str] = set()  # in this turn
        self._busy_until: dict[str, float] = {}
        self._saves_until = -inf
        self._due = inf

    def begin_turn(self, me: GossipState, now: float) -> None:
        """Begin to call partners."""
        self._asked.clear()
        asked = len(self._averaging.partners_to_ask(me, now) or ())
        self._attempts, self.next_try = max(self._attempts_max, asked), now

    def end_turn(self) -> None:
        """Call no partner until the next turn."""
        self._attempts, self.next_try = 0, inf

    def succeed(self) -> None:
        """Record that the turn has led to an exchange."""
        self._attempts = 0

    def advance_averaging(self, me: GossipState, now: float) -> None:
        """Begin or advance the final averaging, and plan its next call."""
        exchanges = self._exchanges
        self._averaging.advance(me, now, hindered=exchanges.current is None and bool(exchanges.in_doubt))
        due, before = self._averaging.due_at, self._due
        self._due = due
        if due < inf:
            self._attempts = max(1, self._attempts)
            waits = due == before and self.next_try < inf
            self.next_try = max(due, self.next_try if waits else now)

    def end_exchange(self, me: GossipState, now: float) -> None:
        """End the exchange in flight, or stop waiting for it; another attempt follows soon."""
        self._exchanges.current = None
        if self._attempts:
            self.next_try = now + (0.1 if me.counts.rounds_done else 0.5) * me.rng.random()

    def defer(self, node: str, wait_s: float, now: float) -> None:
        """Do not call that peer for `wait_s`, as it asks."""
        self._busy_until[node] = now + min(wait_s, WAIT_MAX_S)

    def next_partner(self, me: GossipState, now: float) -> str:
        """Return a live peer to call that has no open exchange with this one; empty: none may be called now."""
        self.next_try = inf
        free = self._candidates(me, now)
        short = self._tokens.is_used_up and self._averaging.current is None
        if not free or not self._attempts or short or not me.norm < inf:
            return ""
        own_s = me.budget.wait_s(me.exchange_bytes)
        if own_s:  # both partners earn bytes at the same time: a random delay varies the pairs
            self._saves_until = now + own_s + me.rng.random() * me.budget.seconds_to_earn(me.exchange_bytes)
        free_at = min(self._busy_until.get(node, now) for node in free)
        at = max(self._saves_until, self._exchanges.sending_until, free_at)
        if at > now:
            self.next_try = at
            me.convergence.blocked_until = me.convergence.blocked_until if self._averaging.is_over else at
            return ""
        self._attempts -= 1
        partner = self._choose(free, me.rng, now)
        self._asked.add(partner)
        return partner

    def _candidates(self, me: GossipState, now: float) -> frozenset[str]:
        """Return the peers to call: the partner of the final averaging, those that need a report, or any."""
        planned, asked = self._averaging.current, self._averaging.partners_to_ask(me, now)
        in_doubt = self._exchanges.in_doubt
        if self._exchanges.gives_all or (planned is not None and in_doubt):
            return frozenset()
        if planned is None and asked is not None:
            asked -= self._asked
        return (me.peers.nodes if asked is None else asked) - {doubt.partner for doubt in in_doubt.values()}

    def _choose(self, nodes: Collection[str], rng: Random, now: float) -> str:
        """Return one of these that may be called now: at random among those that answer."""
        free = sorted(node for node in nodes if self._busy_until.get(node, now) <= now)
        answering = [node for node in free if self.reachability.skipped_until(node) <= now]
        return rng.choice(answering) if answering else min(free, key=self.reachability.skipped_until)
