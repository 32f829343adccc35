"""Processes of any state machine on a network: started, killed, stalled and partitioned.

Conditions of single messages belong to the network (`PeerNetworkConditions`). Runs with equal seeds are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random
from typing import Protocol

from shoal.core.protocol.machine import Effect, Event, Tell, Timer, Wake
from shoal.core.protocol.peer_message import PeerMessage
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.faults import PeerNetworkConditions
from shoal.sim.network.network import Network

PeerEvent = PeerMessage | Event


class HostedMachine(Protocol):
    """A machine that can be hosted. `now` is in seconds of its own clock."""

    def start(self, now: float) -> Sequence[Effect]: ...

    def on(self, event: PeerEvent, now: float) -> Sequence[Effect]: ...


@dataclass
class _HostedProcess:
    """One process of a machine, from its start to its death."""

    peer: HostedMachine
    ahead_s: float
    alarm: float = -inf
    frozen_until: float = 0.0
    shown: float = -inf

    def now(self, clock: VirtualClock) -> float:
        """Return the time of its own clock. Rounding must not make an alarm early."""
        self.shown = max(self.shown, clock.now + self.ahead_s)
        return self.shown


class HostWorld:
    """Processes and the messages between them. `Wake` and `Tell` are carried out here.

    All other effects go to `carry(name, effect)`, which may plan on the clock and call `feed`. Before each effect
    `strikes(name)` decides whether the process dies there, so that it dies between any two of its effects.
    """

    def __init__(
        self,
        clock: VirtualClock,
        rng: Random,
        conditions: PeerNetworkConditions | None = None,
        *,
        carry: Callable[[str, Effect], None] | None = None,
        strikes: Callable[[str], bool] | None = None,
    ) -> None:
        self.clock = clock
        self.sent: Callable[[str, Tell], None] = _ignore
        """Called with (sender, effect) for every message."""
        self._rng = rng
        self._mesh = Network(clock, conditions or PeerNetworkConditions(), rng)
        self._carry, self._strikes = carry or _ignore, strikes
        self._processes: dict[str, _HostedProcess] = {}
        self._sides: tuple[frozenset[str], ...] = ()
        self._cuts: set[tuple[str, str]] = set()

    # Processes
    @property
    def running(self) -> list[str]:
        """The names of the running processes, sorted."""
        return sorted(self._processes)

    def start(self, name: str, peer: HostedMachine, ahead_s: float = 0.0) -> None:
        """Start this machine under that name in place of any other. Its clock is `ahead_s` ahead."""
        process = self._processes[name] = _HostedProcess(peer, ahead_s)
        self._carry_out(name, process, peer.start(process.now(self.clock)))

    def kill(self, name: str) -> None:
        """End the process; messages that it has sent stay in transit."""
        del self._processes[name]

    def stall(self, name: str, seconds: float) -> None:
        """Suspend the process for that time; it handles its events in their order afterwards."""
        self._processes[name].frozen_until = self.clock.now + seconds

    def feed(self, name: str, event: PeerEvent) -> None:
        """Feed an event, now or after a stall; ignored if the process is dead."""
        process = self._processes.get(name)
        if process is not None:
            self._feed(name, process, event)

    def carry_out(self, name: str, effects: Sequence[Effect]) -> None:
        """Carry out effects that come from no event."""
        self._carry_out(name, self._processes[name], effects)

    def now(self, name: str) -> float:
        """Return the time of this process's clock."""
        return self._processes[name].now(self.clock)

    # Network
    def split(self, *sides: Collection[str]) -> None:
        """Partition these groups from each other; all other processes form one more group."""
        self._sides = tuple(frozenset(side) for side in sides)

    def cut(self, sender: str, receiver: str) -> None:
        """Stop all messages in this direction."""
        self._cuts.add((sender, receiver))

    def heal(self) -> None:
        """Undo all partitions and cuts."""
        self._sides = ()
        self._cuts.clear()

    def set_conditions(self, conditions: PeerNetworkConditions) -> None:
        """Set the conditions for messages that are sent from now on."""
        self._mesh = Network(self.clock, conditions, self._rng)

    def passes(self, sender: str, receiver: str) -> bool:
        """Return whether messages pass."""
        apart = any((sender in side) != (receiver in side) for side in self._sides)
        return not apart and (sender, receiver) not in self._cuts

    def run(self, until: float) -> None:
        """Run until that time."""
        self.clock.run(until)

    # Effects and events
    def _carry_out(self, name: str, process: _HostedProcess, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if self._processes.get(name) is not process:
                return  # an effect has ended it
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

    def _ring(self, name: str, process: _HostedProcess, at: float) -> None:
        if process.alarm == at and self._processes.get(name) is process:  # no later Wake has replaced it
            process.alarm, process.shown = -inf, max(process.shown, at)
            self._feed(name, process, Timer())

    def _send(self, sender: str, tell: Tell) -> None:
        self.sent(sender, tell)
        if self.passes(sender, tell.to):
            self._mesh.send(sender, tell.to, tell, partial(self._arrive, sender))

    def _arrive(self, sender: str, tell: Tell) -> None:
        if self.passes(sender, tell.to):  # a cut also takes what is under way
            self.feed(tell.to, tell.message)

    def _feed(self, name: str, process: _HostedProcess, event: PeerEvent) -> None:
        if self._processes.get(name) is not process:
            return
        if self.clock.now < process.frozen_until:
            self.clock.at(process.frozen_until, self._feed, name, process, event)
            return
        self._carry_out(name, process, process.peer.on(event, process.now(self.clock)))


def _ignore(*_: object) -> None:
    return None
