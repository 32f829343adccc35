"""A node's connection to its coordinator: direct, through a peer (relayed), or not at all.

A relayed node keeps trying its own connection, and uses it again as soon as it is answered there. A peer's status
counts for as long as the coordinator's silence would not be suspicious. A relay that failed is skipped for a while,
then tried after all others; among equals each node prefers peers by a random order of its own, so that nodes that are
cut off together do not all burden the same relay.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from random import Random

from shoal.core.failover.failover import HeldVersion
from shoal.core.gossip.counter_bounds import implausible_status
from shoal.core.protocol.machine import HUB, JobEvent, Send, Tell
from shoal.core.protocol.message import CoordinatorPing, Join
from shoal.core.protocol.peer_message import CoordinatorProbe, CoordinatorStatus, DeclareFailover, RelayRequest

ASK_S = 2.0
"""Seconds between two questions to peers about the coordinator."""

PASSED_OVER_S_MAX = 300.0
"""Longest time in seconds for which a failed relay is skipped, whatever pause it asks for."""


@dataclass(frozen=True)
class RelayFailed:
    """An event: a relayed request was not answered. `pause_s`: seconds for which the relay asks to be spared."""

    node: str
    why: str
    pause_s: float = 0.0


@dataclass(frozen=True)
class RelaySearch:
    """The outcome of a search for a relay: when it goes on, whether one was just chosen, and the peers to ask."""

    due: float
    is_found: bool = False
    asked: tuple[str, ...] = ()


class CoordinatorReachability:
    """The coordinator's reachability from `node`, which suspects it when it has been silent for `timeout_s`."""

    def __init__(self, node: str, timeout_s: float) -> None:
        self._node, self._ttl_s = node, timeout_s
        self.relay = ""
        """The peer that relays requests; empty: they go directly."""
        self.heard_at = self._direct = self._since = 0.0  # last message; last direct one; choice of `relay`
        self.term = 0
        """Highest term that the coordinator has shown; 0: none."""
        self._answering: float | None = None  # start of its uninterrupted answers in the present state of the node
        self._statuses: dict[str, tuple[float, CoordinatorStatus]] = {}
        self._failed: dict[str, tuple[float, float]] = {}  # (failed at, skipped until)

    def start(self, now: float) -> None:
        """Start the timeouts of a new process."""
        self.heard_at = self._direct = now

    # The coordinator

    def record_coordinator(self, now: float, *, direct: bool, term: int = 0) -> None:
        """Record a message of the coordinator, and its term if it has one."""
        if self._answering is None or not self.is_reachable(now):
            self._answering = now
        self.heard_at, self.term = now, max(self.term, term)
        if direct:
            self._direct, self.relay = now, ""

    def is_reachable(self, now: float) -> bool:
        """Return whether the coordinator is reachable in any way."""
        return now < self.heard_at + self._ttl_s

    def is_directly_reachable(self, now: float) -> bool:
        """Return whether it is reachable directly: then this node can relay for others."""
        return now < self._direct + self._ttl_s

    def answering_s(self, now: float) -> float:
        """Return the seconds for which it has answered without interruption, since `forget_answers`."""
        return now - self._answering if self._answering is not None and self.is_reachable(now) else 0.0

    @property
    def suspect_at(self) -> float:
        """Return the time when the connection in use counts as lost, if nothing comes on it until then."""
        return (max(self.heard_at, self._since) if self.relay else self._direct) + self._ttl_s

    # The peers

    def implausible_claims(self, message: CoordinatorStatus | DeclareFailover, version: int) -> list[JobEvent]:
        """Return why a claim about the coordinator is ignored; empty if it is plausible."""
        return implausible_status(message, self.term, version)

    def record_status(self, status: CoordinatorStatus, now: float) -> None:
        """Record a peer's status."""
        self._statuses[status.node] = now, status

    def forget_answers(self) -> None:
        """Forget the coordinator's answers and peers' statuses, but not which relays failed."""
        self._statuses, self._answering = {}, None

    def recent_statuses(self, now: float) -> list[CoordinatorStatus]:
        """Return the statuses that still count."""
        return [status for at, status in self._statuses.values() if now - at <= self._ttl_s]

    def count_missing(self, now: float) -> tuple[int, int]:
        """Return (nodes that miss the coordinator, with this one; highest known term); zeros if any peer reaches it."""
        recent = self.recent_statuses(now)
        if any(status.hears_hub for status in recent):
            return 0, 0
        return 1 + len(recent), max((status.term for status in recent), default=0)

    def record_failure(self, node: str, now: float, pause_s: float = 0.0) -> None:
        """Skip that relay for a while."""
        self._failed[node] = now, now + max(self._ttl_s / 3, min(pause_s, PASSED_OVER_S_MAX))
        self.relay = "" if self.relay == node else self.relay

    def choose_relay(self, now: float) -> str:
        """Choose another relay than the present one; "" while no peer is known that reaches the coordinator."""
        if self.relay:
            self.record_failure(self.relay, now)
        found = [status.node for status in self.recent_statuses(now) if status.hears_hub]
        free = [node for node in found if self._failed.get(node, (0.0, now))[1] <= now]
        self.relay, self._since = min(free, key=self._reluctance, default=""), now
        return self.relay

    def search_relay(self, live: Collection[str], now: float, due: float) -> RelaySearch:
        """Choose a relay when the connection is lost; while none is known, ask these peers when it is due."""
        if now < self.suspect_at:
            return RelaySearch(self.suspect_at)
        if self.choose_relay(now):
            return RelaySearch(self.suspect_at, is_found=True)
        return RelaySearch(due) if now < due else RelaySearch(now + ASK_S, asked=tuple(sorted(live)))

    def send(self, message: Join | CoordinatorPing, live: Collection[str], term: int, now: float) -> list[Send | Tell]:
        """Send to the coordinator, and by a relay while the direct connection is silent; ask one peer at a time."""
        direct = Send(HUB, message)
        if self.is_directly_reachable(now) or not live:
            return [direct]
        if (self.relay and now < self.suspect_at) or self.choose_relay(now):
            return [direct, Tell(self.relay, RelayRequest(self._node, message))]
        asked = sorted(live)[int(now / ASK_S) % len(live)]
        return [direct, Tell(asked, CoordinatorProbe(self._node, term))]

    def status(self, now: float, term: int, base: HeldVersion, *, is_gossiping: bool) -> CoordinatorStatus:
        """Return this node's status, for peers that ask."""
        return CoordinatorStatus(
            self._node, term, self.is_directly_reachable(now), is_gossiping, base.version, base.model
        )

    def _reluctance(self, node: str) -> tuple[float, float]:
        failed_at, _ = self._failed.get(node, (-inf, 0.0))
        return failed_at, Random(f"{self._node}/{node}").random()
