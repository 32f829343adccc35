"""A job that peers carry on by themselves, on one virtual clock, and the books that must balance all the while."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from random import Random

from shoal.core.algorithm import tree_slot
from shoal.core.gossip import Live
from shoal.core.learner import Learner
from shoal.core.message import Ref
from shoal.core.peer_message import PeerMessage
from shoal.core.transfer import Transfer, transfer_id
from shoal.sim.bodies import MemoryBodies
from shoal.sim.books import Books, Unbalanced
from shoal.sim.clock import Clock
from shoal.sim.faults import Fate, Faults
from shoal.sim.liars import Wire
from shoal.sim.mesh import Mesh, Weather
from shoal.sim.peers import Peer, Shared

DRIFT_MAX = 1e-6
"""Of single-precision models, relative to their size."""

SWEEP_STEPS = 256
SEE_S = 2.0
"""How often a peer looks who is there."""


class Flock:
    """Peers, the network between them, and time."""

    def __init__(
        self,
        shared: Shared,
        learners: Mapping[str, Learner],
        weights: Mapping[str, float],
        pace_s: Mapping[str, float],
        *,
        weather: Weather | None = None,
        crashes: int = 0,
        bodies: MemoryBodies | None = None,
    ) -> None:
        self.clock, self.shared = Clock(), shared
        self.weather = weather or Weather()
        rng = Random(shared.seed)
        self.bodies = bodies if bodies is not None else MemoryBodies()
        self.mesh = Mesh(self.clock, self.weather, rng)
        self.wire: Wire | None = None
        """What messages go through besides; None: they arrive as they were sent."""
        self.books = Books(weights, tree_slot(shared.slots, "model"), self.bodies, shared.mixing, shared.filters)
        faults = Faults(until_s=self.weather.until_s)
        self.peers = {
            name: Peer(
                name=name,
                weight=weights[name],
                shared=shared,
                learner=learners[name],
                work_s=partial(self._pace, rng, pace_s[name]),
                clock=self.clock,
                bodies=self.bodies,
                send=self._send,
                fate=Fate(self.clock, rng, crashes, faults),
                ledger=self.books,
                there=self._there,
            )
            for name in sorted(learners)
        }

    def _pace(self, rng: Random, seconds: float) -> float:
        return seconds * rng.choice((1.0, 1.0, 0.7, 1.6))

    def _send(self, source: str, target: str, message: PeerMessage) -> None:
        arrives = self.wire(source, message) if self.wire is not None else message
        if arrives is None:
            return
        body = getattr(message, "body", None)
        nbytes, xid = body.nbytes if body is not None else 0, transfer_id(message)

        def moving(crossed: int, leaving: bool) -> None:
            at, other = (source, target) if leaving else (target, source)
            if xid is not None:
                self.peers[at].feed(Transfer(other, xid, crossed, leaving))

        self.mesh.send(source, target, arrives, self.peers[target].receive, nbytes=nbytes, moving=moving)

    def _there(self) -> Live:
        """Who is up, and who may come back."""
        staying = {name for name, peer in self.peers.items() if not peer.left}
        up = frozenset(name for name in staying if self.peers[name].up)
        return Live(up, frozenset(staying) - up, roster=frozenset(self.peers))

    def look(self) -> None:
        """Let everybody see who is there, again and again."""
        for peer in self.peers.values():
            peer.see()
        self.clock.after(SEE_S, self.look)

    def over(self) -> bool:
        """Whether all have come to their end."""
        return all(peer.left for peer in self.peers.values())

    def run(self, limit_s: float, steps_max: int = 1_000_000) -> bool:
        """Let things happen until it is over; False when it is not by then. Raises `Unbalanced`."""
        for name in self.peers:
            self.clock.after(0.0, self.peers[name].start)
        self.clock.after(0.0, self.look)
        while self.clock.now < limit_s and self.clock.steps < steps_max and self.clock.step():
            if not self.clock.steps % SWEEP_STEPS:
                self._sweep()
            if self.books.touched and self.books.conserving:
                self._check()
            if self.over():
                return True
        return False

    def _check(self) -> None:
        self.books.touched = False
        drift = self.books.drift()
        if not drift <= DRIFT_MAX:
            raise Unbalanced(
                f"at {self.clock.now:.3f} s the weighted sum of all models is off by {drift:.3g} of its size"
            )

    def _sweep(self) -> None:
        refs: list[Ref | None] = [name for peer in self.peers.values() for name in peer.names()]
        refs += [getattr(message, "body", None) for message in self.mesh.flying.values()]
        self.bodies.keep_only(refs)
