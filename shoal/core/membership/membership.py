"""Membership without a server: SWIM (Das, Gupta, Motivala 2002) with Lifeguard (Dadgar et al. 2018).

    at the start    PeerHello to a few peers; each answers with its full state
    each period     Ping the next peer in a shuffled order
    no PingAck      PingRequest to some others, which ping it: PingAck, or PingNack
    still none      it is suspect; others confirm that, or it refutes it by a higher incarnation
    no refutation   it is dead: no peer begins anything with it
    dead            one of the dead is pinged now and then, for ever, so that partitions heal

Updates travel on these messages, each a bounded number of times. Lifeguard's three extensions: a peer that doubts its
own health is slower to suspect (`health`), a suspicion is the shorter the more peers hold it independently, and a
suspect learns of it first. A process that was delayed (its alarm comes late) draws no conclusion from silence.

The roster of admitted peers comes from elsewhere (`admit`). An admitted peer without any update counts as dead. That
does no harm: its first message takes it back.
"""

from __future__ import annotations

from random import Random

from shoal.core.gossip.counter_bounds import implausible
from shoal.core.membership.dissemination import LIVE, UNKNOWN, fault_in
from shoal.core.membership.failure_detector import FailureDetector, Reachability
from shoal.core.membership.member_table import MembershipWriter, MemberTable
from shoal.core.membership.swim_config import SwimConfig
from shoal.core.protocol.machine import Effect, JobEvent, Tell, Timer
from shoal.core.protocol.peer_message import (
    Liveness,
    MembershipMessage,
    MemberUpdate,
    PeerHello,
    PingRequest,
    StateSync,
)


class Membership:
    """One peer's view of the others. `now` is this process's clock, which is never compared with others.

    It wants to be called by `alarm`; its owner merges that with its other alarms.
    """

    def __init__(self, node: str, *, rng: Random, pace: SwimConfig | None = None, incarnation: int = 0) -> None:
        self.node, self.pace = node, pace or SwimConfig()
        self._rng = rng
        self._table = MemberTable(node, incarnation, self.pace)
        self._messages = MembershipWriter(self._table, rng)
        self._detector = FailureDetector(self._table, self._messages, self.pace, rng)
        self._informed = False

    # State
    @property
    def incarnation(self) -> int:
        """Number of times that this peer has refuted a suspicion. Storing it is useful, but not necessary."""
        return self._table.incarnation

    @property
    def health(self) -> int:
        """Doubt in this peer's own health: 0 is good."""
        return self._detector.health

    @property
    def alarm(self) -> float:
        """Return the time when it wants to be called again; infinite before the start and after the leave."""
        return self._detector.alarm

    def live(self) -> frozenset[str]:
        """Return the peers that are not given up, suspects included, without this one."""
        return frozenset(self._table.live)

    def dead(self) -> frozenset[str]:
        """Return the peers that were given up or never heard of, and have not left."""
        return frozenset(held.node for held in self._table if held.state == "dead")

    def reachable(self) -> frozenset[str]:
        """Return the live peers that this peer can reach."""
        return frozenset(self._table.live) - self._detector.reachability.unreachable

    def state_of(self, node: str) -> Liveness:
        """Return the state of an admitted peer. Raises `KeyError` for others."""
        return "alive" if node == self.node else self._table[node].state

    def heard_s(self, node: str, now: float) -> float:
        """Return the seconds since that peer's own last message; infinite without one."""
        return self._table.heard_s(node, now)

    def members(self) -> tuple[MemberUpdate, ...]:
        """Return the entries of all admitted peers but this one, by name."""
        return tuple(self._table)

    # Actions
    def admit(self, nodes: frozenset[str], ways: Reachability | None = None) -> None:
        """Set the roster. All state of other peers is forgotten at once."""
        self._table.admit(nodes)
        self._detector.admit(ways or Reachability())

    def start(self, now: float) -> list[Effect]:
        """Send hello to a few peers. The first period begins at a random time."""
        self._table.announce()
        self._informed = False
        self._detector.start(now)
        return [self._messages.hello(node) for node in self._some(self._detector.callable_peers(), self.pace.helpers)]

    def leave(self) -> list[Effect]:
        """Send `left` to a few peers, which spread it. From now on messages are ignored."""
        self._detector.stop()
        live, ways = self._table.live, self._detector.reachability
        some = self._some(sorted(live - ways.uncallable), 2 * self.pace.helpers)
        callers = sorted(live & ways.callers)  # no other peer may be able to reach them
        word = (MemberUpdate(self.node, "left", self.incarnation),)
        return [self._messages.sync(node, word) for node in [*callers, *some]]

    def on(self, event: MembershipMessage | Timer, now: float) -> list[Effect]:
        """Handle a message, or a timer."""
        if not self._detector.is_running:
            return []
        self._detector.handle_delay(now)
        effects = [] if isinstance(event, Timer) else self._receive(event, now)
        effects += self._detector.probe_indirectly(now)
        self._table.expire_suspicions(now)
        if self._detector.is_period_due(now):
            effects += self._detector.begin_period(now)
            effects += self._request_state()
        return [*self._report_transitions(), *effects]

    def _receive(self, message: MembershipMessage, now: float) -> list[Effect]:
        sender, table = message.node, self._table
        why = self._refusal(message)
        if why:
            return [JobEvent("refusal", f"{sender}: {why}", 0, sender)]
        why = self._fault(message, now)
        if why:
            return [implausible(sender, f"{sender}: {why}")]
        table.record_own_incarnation(sender, message.incarnation, now)
        was_live = sender in table.live
        old = isinstance(message, StateSync)
        self._informed |= old
        news = (update for update in message.updates if update.node == sender or not table.is_leap(update))
        updates = (*news, MemberUpdate(sender, "alive", message.incarnation))
        hidden = self._detector.reachability.unreachable  # their silence cannot be observed
        heard = [table.merge_update(update, now, old=old and update.node not in hidden) for update in updates]
        effects = self._detector.answer(message, now, behind=[held for held in heard if held is not None])
        if (sender in table.live and not was_live) or isinstance(message, PeerHello):
            effects += [self._messages.sync(sender, piece) for piece in table.full_state(sender)]
        return effects

    def _refusal(self, message: MembershipMessage) -> str:
        """Return why this message is ignored; empty if it is not."""
        if message.node not in self._table:
            return "is not admitted"
        if len(message.updates) > self.pace.piggyback_max:
            return f"sent {len(message.updates)} updates at once, at most {self.pace.piggyback_max} are allowed"
        if isinstance(message, PingRequest) and message.target not in self._table and message.target != self.node:
            return f"wants {message.target} probed, which is not admitted"
        return ""

    def _fault(self, message: MembershipMessage, now: float) -> str:
        """Return why no honest peer can have sent this; "" if one can. See `shoal.core.gossip.counter_bounds`."""
        updates = (MemberUpdate(message.node, "alive", message.incarnation), *message.updates)
        if len({update.node for update in message.updates}) < len(message.updates):
            return "sends two updates about one peer at once"
        for update in updates:
            if why := fault_in(update):
                return why
            if update.node != message.node and self._table.is_implausible(update, now):
                return f"reports incarnation {update.incarnation} of {update.node}, which is far above that peer's own"
        return ""

    def _request_state(self) -> list[Tell]:
        """Ask a peer for its full state if none has come, and now and then about peers that only others reach."""
        detector = self._detector
        asks = detector.reachability.unreachable and self._rng.random() < self.pace.reprobe
        if not asks and self._informed:
            return []
        return [self._messages.hello(node) for node in self._some(detector.callable_peers(), 1)]

    def _report_transitions(self) -> list[JobEvent]:
        """Return job events of peers that were given up or are live again, and update the order of probes."""
        self._detector.adjust_health(self._table.refutations)
        turned, self._table.transitions, self._table.refutations = self._table.transitions, [], 0
        events = []
        for before, after in turned:
            if after.state in LIVE:
                self._detector.add_target(after.node)
                word = "is there" if before.incarnation == UNKNOWN else "is back"
            elif after.state == "left":
                word = "has left"
            else:
                word = f"is dead: suspected by {', '.join(before.suspected_by)}" if before.suspected_by else "is dead"
            events.append(JobEvent("node", f"{after.node} {word}", 0, after.node))
        return events

    def _some(self, nodes: list[str], most: int) -> list[str]:
        return self._rng.sample(nodes, min(most, len(nodes)))
