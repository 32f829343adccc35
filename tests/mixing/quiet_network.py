"""Peers by hand: one whose messages the test writes, or several on a quiet network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

import numpy as np

from shoal.core.gossip.gossip_state import GossipState, LivePeers
from shoal.core.gossip.mixer import Mixing
from shoal.core.model.tree import Array, Tree
from shoal.core.protocol.machine import Effect, Tell
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.peer_message import PeerMessage
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.scenarios.mixing_runs import MixingRun


def names(size: int) -> tuple[str, ...]:
    return tuple(f"n{number:03}" for number in range(size))


def vector(*values: float, seen: int = 0) -> Tree:
    return Tree.of({"w": np.array(values), "seen": np.array(seen)})


def still(mixing: Mixing, size: int, **more) -> MixingRun:
    """Peers with random models of seven numbers and a counter, and weights from 1 to 100."""
    rng = np.random.default_rng(size)
    models = {name: vector(*rng.normal(size=7), seen=int(rng.integers(100))) for name in names(size)}
    return MixingRun(mixing, models, {name: float(np.exp(rng.uniform(0, 4.6))) for name in models}, **more)


class One:
    """One peer, `a`, and what it tells others."""

    def __init__(self, mixing: Mixing, live: Iterable[str], model: Tree, weight: float = 1.0) -> None:
        self.mixing, self.blobs = mixing, MemoryBlobs()
        self.me = GossipState("a", 1, weight, {"model": model}, self.blobs, Random(1), peers=LivePeers(frozenset(live)))
        self.mixer = mixing.mixer()
        self.told: list[tuple[str, PeerMessage]] = []
        self.effects: list[Effect] = []
        self.ring(0.0)

    @property
    def w(self) -> Array:
        return self.me.model["w"]

    def body(self, tree: Tree, slot: str = "model") -> BlobRef:
        return self.blobs.put({slot: tree})

    def _took(self, effects: Sequence[Effect]) -> list[tuple[str, PeerMessage]]:
        self.effects = list(effects)
        self.told = [(effect.to, effect.message) for effect in effects if isinstance(effect, Tell)]
        return self.told

    def turn(self, now: float) -> list[tuple[str, PeerMessage]]:
        self.me.local_rounds += 1
        return self._took(self.mixer.begin_turn(self.me, now))

    def hear(self, message, now: float = 0.0) -> list[tuple[str, PeerMessage]]:
        return self._took(self.mixer.on(message, self.me, now))

    def ring(self, now: float) -> list[tuple[str, PeerMessage]]:
        return self._took(self.mixer.on_timer(self.me, now))

    def reborn(self) -> One:
        """Another process over what this one has saved."""
        other = One(self.mixing, self.me.peers.nodes, self.me.model, self.me.weight)
        other.blobs = other.me.blobs = self.blobs
        other.me.process_number, other.me.local_rounds = self.me.process_number + 1, self.me.local_rounds
        other.mixer = self.mixing.mixer()
        other.mixer.restore(self.mixer.state())
        return other
