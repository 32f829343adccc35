"""Peers with nothing but membership: its behavior under faults, and its cost."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache
from random import Random

from shoal.core.membership.membership import Membership
from shoal.core.membership.swim_config import SwimConfig
from shoal.core.protocol.machine import Effect, JobEvent, Tell, Timer, Wake
from shoal.core.protocol.peer_message import MembershipMessage, MemberUpdate
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.faults import PeerNetworkConditions
from shoal.sim.network.host_world import HostWorld, PeerEvent

DAY_S = 86_400.0
HEAD_BYTES = 75
"""Approximate bytes of a message without updates as compact JSON: field names, two peers' names, two numbers."""


class MembershipHost:
    """A machine with nothing but its membership. It ignores other events."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self._set = 0.0

    def start(self, now: float) -> list[Effect]:
        return [*self.membership.start(now), *self._wake()]

    def on(self, event: PeerEvent, now: float) -> list[Effect]:
        if not isinstance(event, Timer | MembershipMessage):
            return []
        effects = self.membership.on(event, now)
        return [*effects, *self._wake(anew=isinstance(event, Timer))]

    def _wake(self, anew: bool = False) -> list[Effect]:
        alarm = self.membership.alarm
        if alarm == self._set and not anew:
            return []
        self._set = alarm
        return [Wake(alarm)]


class MembershipFleet:
    """A fleet of peers whose clocks are days apart.

    `false_deaths`: (seconds, name) of each time that the first peer gave up a running one; none is counted while
    `deaths_expected`. `messages`, `bytes`: sent so far, as JSON, without HTTP and signatures.
    """

    def __init__(
        self,
        names: Collection[str],
        *,
        seed: int = 0,
        pace: SwimConfig | None = None,
        conditions: PeerNetworkConditions | None = None,
    ) -> None:
        self.roster = frozenset(names)
        self.rng = Random(seed)
        self.pace = pace or SwimConfig()
        self.clock = VirtualClock()
        self.hosts = HostWorld(self.clock, Random(self.rng.random()), conditions, carry=self._carry)
        self.hosts.sent = self._sent
        self.views: dict[str, Membership] = {}
        self.deaths_expected = False
        self.false_deaths: list[tuple[float, str]] = []
        self.events: list[tuple[str, JobEvent]] = []
        self.messages = self.bytes = self.largest = 0
        self._reported_dead_by: dict[str, set[str]] = {name: set() for name in self.roster}

    def start(self, names: Iterable[str] | None = None, incarnation: int = 0) -> None:
        """Start new processes of these peers (all of the roster)."""
        for name in sorted(self.roster if names is None else names):
            view = Membership(name, rng=Random(self.rng.random()), pace=self.pace, incarnation=incarnation)
            view.admit(self.roster)
            self.views[name] = view
            self._forget(name)
            self.hosts.start(name, MembershipHost(view), self.rng.uniform(0, 30) * DAY_S)

    def settle(self) -> None:
        """Run until all know each other, at most 100 periods."""
        due = self.clock.now + 100 * self.pace.period_s
        while not self.agree() and self.clock.now < due:
            self.hosts.run(self.clock.now + 0.1 * self.pace.period_s)

    def kill(self, names: Iterable[str]) -> None:
        """Kill their processes."""
        for name in names:
            self.hosts.kill(name)
            del self.views[name]
            self._forget(name)

    def leave(self, name: str) -> None:
        """Let a peer leave, and end its process."""
        self.hosts.carry_out(name, self.views[name].leave())
        self.kill([name])

    def admit(self, roster: Collection[str]) -> None:
        """Set the roster everywhere at once."""
        self.roster = frozenset(roster)
        for name in self.roster:
            self._reported_dead_by.setdefault(name, set())
        for view in self.views.values():
            view.admit(self.roster)

    def agree(self) -> bool:
        """Return whether each running, admitted peer sees exactly the others as live."""
        live = self.roster & self.views.keys()
        return all(view.live() == live - {name} for name, view in self.views.items() if name in live)

    def until(self, seconds: float, step_s: float = 0.1) -> float | None:
        """Run until all agree. Return the seconds that it took; None if it took longer than `seconds`."""
        started = self.clock.now
        while not self.agree():
            if self.clock.now - started > seconds:
                return None
            self.hosts.run(self.clock.now + step_s)
        return self.clock.now - started

    def given_up_by(self, name: str) -> set[str]:
        """Return the running peers that see this one as dead."""
        return {viewer for viewer, view in self.views.items() if viewer != name and name not in view.live()}

    # Counts
    def _carry(self, name: str, effect: Effect) -> None:
        if not isinstance(effect, JobEvent):
            return
        self.events.append((name, effect))
        if effect.kind != "node" or effect.node not in self._reported_dead_by:
            return
        reporters = self._reported_dead_by[effect.node]
        if effect.node in self.views[name].live():
            reporters.discard(name)
            return
        if not reporters and effect.node in self.views and not self.deaths_expected:
            self.false_deaths.append((self.clock.now, effect.node))
        reporters.add(name)

    def _forget(self, name: str) -> None:
        """Forget all reports by and about this peer: it has a new process."""
        self._reported_dead_by[name].clear()
        for reporters in self._reported_dead_by.values():
            reporters.discard(name)

    def _sent(self, sender: str, tell: Tell) -> None:
        if isinstance(tell.message, MembershipMessage):
            size = encoded_size(tell.message)
            self.messages += 1
            self.bytes += size
            self.largest = max(self.largest, size)


def encoded_size(message: MembershipMessage) -> int:
    """Return about the bytes of a message as compact JSON."""
    return HEAD_BYTES + sum(1 + _update_bytes(update) for update in message.updates)


@lru_cache(maxsize=1 << 16)
def _update_bytes(update: MemberUpdate) -> int:
    return len(json.dumps(asdict(update), separators=(",", ":")))


def names(n: int) -> list[str]:
    """Return names for `n` peers."""
    return [f"peer-{i:03}" for i in range(n)]


def halves(roster: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the first half and the rest."""
    middle = len(roster) // 2
    return list(roster[:middle]), list(roster[middle:])
