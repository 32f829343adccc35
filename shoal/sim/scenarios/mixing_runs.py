"""Peers that mix and do not train, in rounds of one second: how fast they agree, what it costs, and on what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random

import numpy as np

from shoal.core.gossip import Holding, Mixing
from shoal.core.machine import Effect, Note, Tell
from shoal.core.message import Ref
from shoal.core.peer_message import MixingMessage
from shoal.core.tree import Array, Tree
from shoal.sim.bodies import MemoryBodies
from shoal.sim.books import floats
from shoal.sim.clock import Clock
from shoal.sim.mesh import Mesh, Weather

Away = Callable[[int], Iterable[str]]
"""Who is away in round 0, 1, …"""


class Still:
    """Each peer has a turn per round, unless it still waits. Who is away has none, sends nothing and hears nothing."""

    def __init__(
        self,
        mixing: Mixing,
        models: Mapping[str, Tree],
        weights: Mapping[str, float],
        *,
        weather: Weather | None = None,
        away: Away = lambda _: (),
        seed: int = 0,
    ) -> None:
        self.clock, self.bodies, self.rng = Clock(), MemoryBodies(), Random(seed)
        self.mesh = Mesh(self.clock, weather or Weather(), self.rng)
        self.weights, self.rounds, self.there = weights, 0, frozenset(models)
        self.sent: list[MixingMessage] = []
        self.notes: list[Note] = []
        self.models_sent = 0.0
        self._away, self._nbytes = away, next(iter(models.values())).layout.nbytes
        self.holdings = {
            name: Holding(name, 1, weights[name], {"model": models[name]}, self.bodies, Random(f"{seed}/{name}"))
            for name in sorted(models)
        }
        self.mixers = {name: mixing.mixer() for name in self.holdings}

    def round(self) -> None:
        """Let a second pass, at whose beginning all that are there have their turn."""
        self.there = frozenset(self.holdings) - set(self._away(self.rounds))
        for name in sorted(self.there):
            self.holdings[name].live = self.there - {name}
            self._carry_out(name, self.mixers[name].ring(self.holdings[name], self.clock.now))
        for name in sorted(self.there):
            if not self.mixers[name].waiting:
                self.holdings[name].round += 1
                self._carry_out(name, self.mixers[name].turn(self.holdings[name], self.clock.now))
        self.rounds += 1
        end: list[bool] = []
        self.clock.at(float(self.rounds), end.append, True)
        while not end:
            self.clock.step()
        kept: list[Ref | None] = [ref for mixer in self.mixers.values() for ref in mixer.names()]
        self.bodies.keep_only([*kept, *(getattr(message, "body", None) for message in self.mesh.flying.values())])

    def _carry_out(self, name: str, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Tell):
                self._send(name, effect)
            elif isinstance(effect, Note):
                self.notes.append(replace(effect, node=name))
        alarm = self.mixers[name].alarm
        if alarm < np.inf:
            self.clock.at(alarm, self._ring, name, alarm)

    def _send(self, name: str, tell: Tell) -> None:
        message: MixingMessage = tell.body  # type: ignore[assignment]
        self.sent.append(message)
        body = getattr(message, "body", None)
        if body is not None:
            self.models_sent += body.nbytes / self._nbytes / len(self.holdings)
        self.mesh.send(name, tell.to, message, lambda one: self._hear(tell.to, one))

    def _hear(self, name: str, message: MixingMessage) -> None:
        if name in self.there:
            self._carry_out(name, self.mixers[name].on(message, self.holdings[name], self.clock.now))

    def _ring(self, name: str, alarm: float) -> None:
        if name in self.there and self.mixers[name].alarm == alarm:
            self._carry_out(name, self.mixers[name].ring(self.holdings[name], self.clock.now))

    def models(self) -> Array:
        """`float64[peers, values]`, in the order of the names."""
        return np.stack([floats(me.model) for me in self.holdings.values()])

    def mean(self, weights: Mapping[str, float] | None = None) -> Array:
        """The mean of the models, by these weights (None: the peers' own)."""
        shares = np.array([(weights or self.weights)[name] for name in self.holdings])
        mean: Array = shares @ self.models() / shares.sum()
        return mean

    def variance(self) -> float:
        """The weighted mean squared distance from the weighted mean."""
        shares = np.array([self.weights[name] for name in self.holdings])
        return float(shares @ ((self.models() - self.mean()) ** 2).sum(axis=1) / shares.sum())
