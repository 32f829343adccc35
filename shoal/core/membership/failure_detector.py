"""The failure detector of SWIM: probes of the other peers in turn, direct and through others."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from random import Random

from shoal.core.membership.member_table import MembershipWriter, MemberTable
from shoal.core.membership.swim_config import SwimConfig
from shoal.core.protocol.machine import Effect
from shoal.core.protocol.peer_message import MembershipMessage, MemberUpdate, Ping, PingAck, PingNack, PingRequest

CALLERS_PERIODS = 3
"""Periods of silence, beyond the expected ones, after which a caller is suspect."""

POLL_COUNT = 8
"""Peers that an uncallable peer polls in each period."""


@dataclass(frozen=True)
class Reachability:
    """One peer's ways to reach the others. Peers that are not named can be called."""

    callers: frozenset[str] = frozenset()
    """They call this peer, and get its messages with the response: later, or never."""
    unreachable: frozenset[str] = frozenset()
    """Neither side can call the other. Their state is known from third peers only."""
    poll_count: int = 0
    """Peers to poll for messages in each period; 0: this peer can be called."""

    @property
    def uncallable(self) -> frozenset[str]:
        """Peers that this one cannot call."""
        return self.callers | self.unreachable


@dataclass
class _Probe:
    """The peer that is probed in this period, and the answers so far."""

    target: str
    seq: int
    ask_at: float
    answered: bool = False
    asked: frozenset[str] = frozenset()
    silent: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _IndirectProbe:
    """A probe on behalf of another peer: `seq` is this peer's number, `theirs` the one to answer with."""

    target: str
    seq: int
    theirs: int
    due: float


class FailureDetector:
    """One peer's probes. It suspects peers in the table that do not answer."""

    def __init__(self, table: MemberTable, messages: MembershipWriter, pace: SwimConfig, rng: Random) -> None:
        self.health = 0
        """Doubt in this peer's own health, which slows it down: 0 is good."""
        self.reachability = Reachability()
        self._table, self._messages, self._pace, self._rng = table, messages, pace, rng
        self._targets: list[str] = []
        self._polled = 0
        self._probe: _Probe | None = None
        self._indirect_probes: dict[str, _IndirectProbe] = {}  # by the requesting peer, which has one probe at a time
        self._next = inf

    @property
    def is_running(self) -> bool:
        """Return whether it has started, and not stopped."""
        return self._next < inf

    @property
    def alarm(self) -> float:
        """Return the time when the next action is due, or a suspicion expires."""
        if not self.is_running:
            return inf
        asks = self._probe.ask_at if self._probe is not None and not self._probe.answered else inf
        indirect = (one.due for one in self._indirect_probes.values())
        return min(self._next, asks, *indirect, *self._table.suspicion_deadlines())

    def start(self, now: float) -> None:
        """Plan the first period, at a random time."""
        self._next = now + self._rng.random() * self._pace.period_s

    def stop(self) -> None:
        """End all probing."""
        self._next = inf

    def admit(self, ways: Reachability) -> None:
        """Forget peers that are not in the table any more."""
        table, self.reachability = self._table, ways
        self._targets = [node for node in self._targets if node in table]
        kept = {asker: one for asker, one in self._indirect_probes.items() if asker in table and one.target in table}
        self._indirect_probes = kept
        if self._probe is not None and self._probe.target not in table:
            self._probe = None

    def callable_peers(self) -> list[str]:
        """Return the peers that this one can call, dead ones included, by name."""
        return [held.node for held in self._table if held.node not in self.reachability.uncallable]

    def add_target(self, node: str) -> None:
        """Add a live peer to the present order of probes, at random, so that it waits half a round on average."""
        if node not in self._targets:
            self._targets.insert(self._rng.randrange(len(self._targets) + 1), node)

    def adjust_health(self, worse: int) -> None:
        """Add to the doubt in this peer's own health, or subtract from it."""
        self.health = min(max(self.health + worse, 0), self._pace.health_max)

    # Messages
    def answer(self, message: MembershipMessage, now: float, behind: list[MemberUpdate]) -> list[Effect]:
        """Return the replies to a probe or an answer. `behind`: updates that the sender lacks."""
        match message:
            case Ping() | PingRequest(target=self._table.node):
                return [self._messages.ack(message.node, message.seq, self._table.node, behind)]
            case PingRequest():
                return self._probe_for(message, now)
            case PingAck():
                return self._receive_ack(message)
            case PingNack():
                probe = self._probe
                if probe is not None and (probe.seq, probe.target) == (message.seq, message.target):
                    probe.silent.add(message.node)
        return []

    def _probe_for(self, request: PingRequest, now: float) -> list[Effect]:
        known = self._indirect_probes.get(request.node)
        if known is not None and known.theirs == request.seq:
            return []  # the same request, a second time
        ping = self._messages.ping(request.target)
        due = now + self._pace.timeout_s
        self._indirect_probes[request.node] = _IndirectProbe(request.target, self._messages.seq, request.seq, due)
        return [ping]

    def _receive_ack(self, ack: PingAck) -> list[Effect]:
        probe, sender = self._probe, ack.node
        expected = probe is not None and (probe.seq, probe.target) == (ack.seq, ack.of)
        if probe is not None and expected and sender in {probe.target, *probe.asked}:
            probe.answered = True
        done = [a for a, one in self._indirect_probes.items() if (one.target, one.seq) == (sender, ack.seq)]
        return [self._messages.ack(asker, self._indirect_probes.pop(asker).theirs, sender) for asker in done]

    # Time
    def handle_delay(self, now: float) -> None:
        """End the probe after a delay of this process: answers may wait unread, so its silence means nothing."""
        late = now - self.alarm
        if late <= self._pace.timeout_s:
            return
        self._probe = None
        self._indirect_probes.clear()
        self._table.extend_suspicions(late)
        self._next = now + self._pace.period_s
        self.adjust_health(+1)

    def probe_indirectly(self, now: float) -> list[Effect]:
        """Ask others to ping a target without an answer; send a nack for indirect probes without one."""
        effects: list[Effect] = []
        probe = self._probe
        if probe is not None and not probe.answered and now >= probe.ask_at:
            probe.ask_at = inf
            others = [node for node in self.callable_peers() if self._table[node].state == "alive"]
            others = [node for node in others if node != probe.target]
            some = self._rng.sample(others, min(self._pace.helpers, len(others)))
            probe.asked = frozenset(some)
            effects += [self._messages.request(node, probe.seq, probe.target) for node in some]
        for asker in [asker for asker, one in self._indirect_probes.items() if now >= one.due]:
            one = self._indirect_probes.pop(asker)
            effects.append(self._messages.nack(asker, one.theirs, one.target))
        return effects

    def is_period_due(self, now: float) -> bool:
        """Return whether the next period begins now."""
        return now >= self._next

    def begin_period(self, now: float) -> list[Effect]:
        """End the last probe; ping the next peer, remind suspects, and try a dead peer."""
        self._end_probe(now)
        slower = 1 + self.health
        self._next = now + self._pace.period_s * slower
        effects: list[Effect] = []
        target = self._next_target()
        if target in self.reachability.callers:
            self._check_caller(target, now)
        elif target is not None:
            effects.append(self._messages.ping(target))
            self._probe = _Probe(target, self._messages.seq, now + self._pace.timeout_s * slower)
        within = self.callable_peers()
        others = [node for node in self._table.own_suspects() if self._pace.buddy and node != target and node in within]
        dead = [node for node in within if self._table[node].state == "dead"]
        if dead and (target is None or self._rng.random() < self._pace.reprobe):
            others.append(self._rng.choice(dead))
        others += [node for node in self._peers_to_poll() if node not in {target, *others}]
        return [*effects, *(self._messages.ping(node) for node in others)]

    def _peers_to_poll(self) -> list[str]:
        """Return the peers that an uncallable peer polls for messages in this period, in turn."""
        live = [node for node in self.callable_peers() if node in self._table.live]
        count = min(self.reachability.poll_count, len(live))
        some = [live[(self._polled + step) % len(live)] for step in range(count)]
        self._polled += count
        return some

    def _check_caller(self, node: str, now: float) -> None:
        """Suspect a caller that has been silent for too long; one that never called is left to others."""
        periods = CALLERS_PERIODS + len(self.callable_peers()) // POLL_COUNT + self.health
        if periods * self._pace.period_s < self._table.heard_s(node, now) < inf:
            self._table.suspect(node, now)

    def _next_target(self) -> str | None:
        """Return the next live peer; each is probed once before any is probed twice."""
        live = self._table.live - self.reachability.unreachable
        if not live.intersection(self._targets):
            self._targets = sorted(live)
            self._rng.shuffle(self._targets)
        while self._targets:
            node = self._targets.pop()
            if node in live:
                return node
        return None

    def _end_probe(self, now: float) -> None:
        """End the period's probe: adjust this peer's health, and suspect a target without an answer."""
        probe, self._probe = self._probe, None
        if probe is None:
            return
        if probe.answered:
            self.adjust_health(-1)
            return
        # Silent helpers suggest that this peer is unhealthy.
        self.adjust_health(len(probe.asked - probe.silent) if probe.asked else 1)
        self._table.suspect(probe.target, now)
