"""Processes that speak to each other over a mesh, of any machine: started, killed, held up and parted.

What happens to single messages is the mesh's business (`Weather`). Whatever is seeded alike happens alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random
from typing import Protocol

from shoal.core.machine import Effect, Event, Tell, Timer, Wake
from shoal.core.peer_message import PeerMessage
from shoal.sim.clock import Clock
from shoal.sim.mesh import Mesh, Weather

PeerEvent = PeerMessage | Event


class Peer(Protocol):
    """A machine that can be hosted. `now` is in seconds of its own clock."""

    def start(self, now: float) -> Sequence[Effect]: ...

    def on(self, event: PeerEvent, now: float) -> Sequence[Effect]: ...


@dataclass
class _Process:
    """One run of a peer, from its start to its death."""

    peer: Peer
    ahead_s: float
    alarm: float = -inf
    frozen_until: float = 0.0
    shown: float = -inf

    def now(self, clock: Clock) -> float:
        """What its own clock shows. Rounding must not let it ring before the time that it was set to."""
        self.shown = max(self.shown, clock.now + self.ahead_s)
        return self.shown


class Hosts:
    """Starts, kills and holds up peers, and carries what they tell each other. `Wake` and `Tell` are carried out here.

    All else goes to `carry(name, effect)`, which may plan on the clock and come back with `feed`. Before each effect
    `strikes(name)` may say that the process dies there, so that it dies between any two of its effects.
    """

    def __init__(
        self,
        clock: Clock,
        rng: Random,
        weather: Weather | None = None,
        *,
        carry: Callable[[str, Effect], None] | None = None,
        strikes: Callable[[str], bool] | None = None,
    ) -> None:
        self.clock = clock
        self.sent: Callable[[str, Tell], None] = _look_away
        """Told of every message that sets out: (sender, what)."""
        self._rng = rng
        self._mesh = Mesh(clock, weather or Weather(), rng)
        self._carry, self._strikes = carry or _look_away, strikes
        self._processes: dict[str, _Process] = {}
        self._sides: tuple[frozenset[str], ...] = ()
        self._cuts: set[tuple[str, str]] = set()

    # ------------------------------------------------------------------------------------------------------ processes
    @property
    def running(self) -> list[str]:
        """The names of the peers that run, sorted."""
        return sorted(self._processes)

    def start(self, name: str, peer: Peer, ahead_s: float = 0.0) -> None:
        """Run this peer under that name; whoever ran under it is dead. Its clock shows `ahead_s` more than ours."""
        process = self._processes[name] = _Process(peer, ahead_s)
        self._do(name, process, peer.start(process.now(self.clock)))

    def kill(self, name: str) -> None:
        """Its process ends; what it has sent is still under way."""
        del self._processes[name]

    def stall(self, name: str, seconds: float) -> None:
        """Hold its process up: all that it should have taken by then waits, and comes in the order in which it came."""
        self._processes[name].frozen_until = self.clock.now + seconds

    def feed(self, name: str, event: PeerEvent) -> None:
        """Give it an event now (when it runs again, if it is held up). Nothing happens if it is dead."""
        process = self._processes.get(name)
        if process is not None:
            self._feed(name, process, event)

    def do(self, name: str, effects: Sequence[Effect]) -> None:
        """Carry out effects of this peer that came of something else than an event."""
        self._do(name, self._processes[name], effects)

    def now(self, name: str) -> float:
        """What the clock of this peer shows."""
        return self._processes[name].now(self.clock)

    # -------------------------------------------------------------------------------------------------------- network
    def split(self, *sides: Collection[str]) -> None:
        """From now on nothing passes between two of these; those that are in none of them make up one more."""
        self._sides = tuple(frozenset(side) for side in sides)

    def cut(self, sender: str, receiver: str) -> None:
        """From now on nothing passes in this direction."""
        self._cuts.add((sender, receiver))

    def heal(self) -> None:
        """Undo all splits and cuts."""
        self._sides = ()
        self._cuts.clear()

    def turn(self, weather: Weather) -> None:
        """Let the weather be this from now on, for messages that set out."""
        self._mesh = Mesh(self.clock, weather, self._rng)

    def passes(self, sender: str, receiver: str) -> bool:
        """Whether there is a way."""
        apart = any((sender in side) != (receiver in side) for side in self._sides)
        return not apart and (sender, receiver) not in self._cuts

    def run(self, until: float) -> None:
        """Let happen what is planned up to that time."""
        self.clock.run(until)

    # ----------------------------------------------------------------------------------------------------------- ways
    def _do(self, name: str, process: _Process, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if self._processes.get(name) is not process:
                return  # what was carried out has ended it
            if self._strikes is not None and self._strikes(name):
                self.kill(name)
                return
            match effect:
                case Tell():
                    self._send(name, effect)
                case Wake(at=at):
                    process.alarm = at
                    self.clock.at(at - process.ahead_s, self._ring, name, process, at)
                case _:
                    self._carry(name, effect)

    def _ring(self, name: str, process: _Process, at: float) -> None:
        if process.alarm == at and self._processes.get(name) is process:  # no later Wake has replaced it
            process.alarm, process.shown = -inf, max(process.shown, at)
            self._feed(name, process, Timer())

    def _send(self, sender: str, tell: Tell) -> None:
        self.sent(sender, tell)
        if self.passes(sender, tell.to):
            self._mesh.send(sender, tell.to, tell, partial(self._arrive, sender))

    def _arrive(self, sender: str, tell: Tell) -> None:
        if self.passes(sender, tell.to):  # a cut also takes what is under way
            self.feed(tell.to, tell.body)

    def _feed(self, name: str, process: _Process, event: PeerEvent) -> None:
        if self._processes.get(name) is not process:
            return
        if self.clock.now < process.frozen_until:
            self.clock.at(process.frozen_until, self._feed, name, process, event)
            return
        self._do(name, process, process.peer.on(event, process.now(self.clock)))


def _look_away(*_: object) -> None:
    return None
