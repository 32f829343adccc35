"""Peers that mix without training, in rounds of one second: speed, cost and limit of convergence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random

import numpy as np

from shoal.core.gossip.gossip_state import GossipState, LivePeers
from shoal.core.gossip.mixer import Mixing
from shoal.core.model.tree import Array, Tree
from shoal.core.protocol.machine import Effect, JobEvent, Tell
from shoal.core.protocol.peer_message import MixingMessage
from shoal.sim.checks.conservation import floats
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.faults import PeerNetworkConditions
from shoal.sim.network.network import Network

Away = Callable[[int], Iterable[str]]
"""Returns the peers that are away in round 0, 1, …"""


class MixingRun:
    """A run in which each peer has a turn per round, unless it waits. Absent peers neither send nor receive."""

    def __init__(
        self,
        mixing: Mixing,
        models: Mapping[str, Tree],
        weights: Mapping[str, float],
        *,
        conditions: PeerNetworkConditions | None = None,
        away: Away = lambda _: (),
        seed: int = 0,
    ) -> None:
        self.clock, self.blobs, self.rng = VirtualClock(), MemoryBlobs(), Random(seed)
        self.mesh = Network(self.clock, conditions or PeerNetworkConditions(), self.rng)
        self.weights, self.rounds, self.there = weights, 0, frozenset(models)
        self.sent: list[MixingMessage] = []
        self.events: list[JobEvent] = []
        self.models_sent = 0.0
        self._away, self._nbytes = away, next(iter(models.values())).layout.nbytes
        self.holdings = {
            name: GossipState(name, 1, weights[name], {"model": models[name]}, self.blobs, Random(f"{seed}/{name}"))
            for name in sorted(models)
        }
        self.mixers = {name: mixing.mixer() for name in self.holdings}

    def round(self) -> None:
        """Run one second, which begins with the turns of all present peers."""
        self.there = frozenset(self.holdings) - set(self._away(self.rounds))
        for name in sorted(self.there):
            self.holdings[name].peers = LivePeers(self.there - {name})
            self._carry_out(name, self.mixers[name].on_timer(self.holdings[name], self.clock.now))
        for name in sorted(self.there):
            if not self.mixers[name].is_waiting:
                self.holdings[name].local_rounds += 1
                self._carry_out(name, self.mixers[name].begin_turn(self.holdings[name], self.clock.now))
        self.rounds += 1
        end: list[bool] = []
        self.clock.at(float(self.rounds), end.append, True)
        while not end:
            self.clock.step()
        kept = [ref for mixer in self.mixers.values() for ref in mixer.blob_refs()]
        self.blobs.keep_only([*kept, *self.mesh.blob_refs()])

    def _carry_out(self, name: str, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Tell):
                self._send(name, effect)
            elif isinstance(effect, JobEvent):
                self.events.append(replace(effect, node=name))
        alarm = self.mixers[name].alarm
        if alarm < np.inf:
            self.clock.at(alarm, self._ring, name, alarm)

    def _send(self, name: str, tell: Tell) -> None:
        message: MixingMessage = tell.message  # type: ignore[assignment]
        self.sent.append(message)
        blob = getattr(message, "blob", None)
        if blob is not None:
            self.models_sent += blob.nbytes / self._nbytes / len(self.holdings)
        self.mesh.send(name, tell.to, message, lambda one: self._receive(tell.to, one))

    def _receive(self, name: str, message: MixingMessage) -> None:
        if name in self.there:
            self._carry_out(name, self.mixers[name].on(message, self.holdings[name], self.clock.now))

    def _ring(self, name: str, alarm: float) -> None:
        if name in self.there and self.mixers[name].alarm == alarm:
            self._carry_out(name, self.mixers[name].on_timer(self.holdings[name], self.clock.now))

    def models(self) -> Array:
        """Return `float64[peers, values]`, in the order of the names."""
        return np.stack([floats(me.model) for me in self.holdings.values()])

    def mean(self, weights: Mapping[str, float] | None = None) -> Array:
        """Return the mean of the models by these weights (None: the peers' own)."""
        shares = np.array([(weights or self.weights)[name] for name in self.holdings])
        mean: Array = shares @ self.models() / shares.sum()
        return mean

    def variance(self) -> float:
        """Return the weighted mean squared distance from the weighted mean."""
        shares = np.array([self.weights[name] for name in self.holdings])
        return float(shares @ ((self.models() - self.mean()) ** 2).sum(axis=1) / shares.sum())
