"""Peers that only look after one another, in a mesh: what membership does under faults, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache
from random import Random

from shoal.core.machine import Effect, Note, Tell, Timer, Wake
from shoal.core.membership import Membership
from shoal.core.pace import Pace
from shoal.core.peer_message import MembershipMessage, Rumour
from shoal.sim.clock import Clock
from shoal.sim.hosts import Hosts, PeerEvent
from shoal.sim.mesh import Weather

DAY_S = 86_400.0
HEAD_BYTES = 75
"""What a message without rumours takes as compact JSON, about: names of its fields, two names of peers, two numbers."""


class Member:
    """A peer with nothing but its membership. Foreign events are not for it."""

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


class Members:
    """A fleet, whose clocks are days apart.

    `false_deaths`: (seconds, name) of each time that a running peer was given up by one at least of the others, and
    before by none; not counted while `excused` is set. `messages`, `bytes`: sent so far, and the bytes of them as JSON,
    without what HTTP and signatures add.
    """

    def __init__(
        self, names: Collection[str], *, seed: int = 0, pace: Pace | None = None, weather: Weather | None = None
    ) -> None:
        self.roster = frozenset(names)
        self.rng = Random(seed)
        self.pace = pace or Pace()
        self.clock = Clock()
        self.hosts = Hosts(self.clock, Random(self.rng.random()), weather, carry=self._carry)
        self.hosts.sent = self._sent
        self.views: dict[str, Membership] = {}
        self.excused = False
        self.false_deaths: list[tuple[float, str]] = []
        self.notes: list[tuple[str, Note]] = []
        self.messages = self.bytes = self.largest = 0
        self._doubted_by: dict[str, set[str]] = {name: set() for name in self.roster}

    def start(self, names: Iterable[str] | None = None, incarnation: int = 0) -> None:
        """Run these (all of the roster), with a new process each."""
        for name in sorted(self.roster if names is None else names):
            view = Membership(name, rng=Random(self.rng.random()), pace=self.pace, incarnation=incarnation)
            view.admit(self.roster)
            self.views[name] = view
            self._forget(name)
            self.hosts.start(name, Member(view), self.rng.uniform(0, 30) * DAY_S)

    def settle(self) -> None:
        """Run until all know of each other, at most 100 periods."""
        due = self.clock.now + 100 * self.pace.period_s
        while not self.agree() and self.clock.now < due:
            self.hosts.run(self.clock.now + 0.1 * self.pace.period_s)

    def kill(self, names: Iterable[str]) -> None:
        """End their processes."""
        for name in names:
            self.hosts.kill(name)
            del self.views[name]
            self._forget(name)

    def leave(self, name: str) -> None:
        """Let it say goodbye, and end."""
        self.hosts.do(name, self.views[name].leave())
        self.kill([name])

    def admit(self, roster: Collection[str]) -> None:
        """Let the roster be this, everywhere at once."""
        self.roster = frozenset(roster)
        for name in self.roster:
            self._doubted_by.setdefault(name, set())
        for view in self.views.values():
            view.admit(self.roster)

    def agree(self) -> bool:
        """Whether everybody who runs holds exactly those for live who run and are admitted."""
        live = self.roster & self.views.keys()
        return all(view.live() == live - {name} for name, view in self.views.items() if name in live)

    def until(self, seconds: float, step_s: float = 0.1) -> float | None:
        """Run until all agree. Returned are the seconds that it took; None if it took longer than that."""
        begun = self.clock.now
        while not self.agree():
            if self.clock.now - begun > seconds:
                return None
            self.hosts.run(self.clock.now + step_s)
        return self.clock.now - begun

    def given_up_by(self, name: str) -> set[str]:
        """Those of the running peers that hold this one for dead."""
        return {viewer for viewer, view in self.views.items() if viewer != name and name not in view.live()}

    # ---------------------------------------------------------------------------------------------------------- counts
    def _carry(self, name: str, effect: Effect) -> None:
        if not isinstance(effect, Note):
            return
        self.notes.append((name, effect))
        if effect.kind != "node" or effect.node not in self._doubted_by:
            return
        doubted = self._doubted_by[effect.node]
        if effect.node in self.views[name].live():
            doubted.discard(name)
            return
        if not doubted and effect.node in self.views and not self.excused:
            self.false_deaths.append((self.clock.now, effect.node))
        doubted.add(name)

    def _forget(self, name: str) -> None:
        """A new process has no opinions, and there are none about it."""
        self._doubted_by[name].clear()
        for doubted in self._doubted_by.values():
            doubted.discard(name)

    def _sent(self, sender: str, tell: Tell) -> None:
        if isinstance(tell.body, MembershipMessage):
            size = size_of(tell.body)
            self.messages += 1
            self.bytes += size
            self.largest = max(self.largest, size)


def size_of(message: MembershipMessage) -> int:
    """About how many bytes it takes as compact JSON."""
    return HEAD_BYTES + sum(1 + _rumour_bytes(rumour) for rumour in message.news)


@lru_cache(maxsize=1 << 16)
def _rumour_bytes(rumour: Rumour) -> int:
    return len(json.dumps(asdict(rumour), separators=(",", ":")))


def names(n: int) -> list[str]:
    """Names for so many peers."""
    return [f"peer-{i:03}" for i in range(n)]


def halves(roster: Sequence[str]) -> tuple[list[str], list[str]]:
    """The first half and the rest."""
    middle = len(roster) // 2
    return list(roster[:middle]), list(roster[middle:])
