"""Peers of a job without a coordinator, on one virtual clock, under a check of conservation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any

from shoal.core.algorithm.learner import Learner
from shoal.core.gossip.gossip_state import LivePeers
from shoal.core.gossip.transfer import Transfer, transfer_id
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.peer_message import PeerMessage
from shoal.sim.checks.conservation import ConservationViolation, MassConservation
from shoal.sim.hosts.byzantine import ByzantineWire
from shoal.sim.hosts.peers import GossipSetup, PeerSetup, SimulatedPeer
from shoal.sim.hosts.sim_process import SimulatedProcess
from shoal.sim.hosts.world import World
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.faults import CrashPlan, Faults, PeerNetworkConditions
from shoal.sim.network.network import Network

DRIFT_MAX = 1e-6
"""Allowed error of single-precision models, relative to their size."""

SWEEP_STEPS = 256
LIVE_PEERS_INTERVAL_S = 2.0
"""Interval in seconds at which peers learn which peers are live."""


class GossipWorld(World):
    """Peers, the network between them, and time. All peers start at time 0."""

    def __init__(
        self,
        shared: GossipSetup,
        learners: Mapping[str, Learner],
        weights: Mapping[str, float],
        pace_s: Mapping[str, float],
        *,
        conditions: PeerNetworkConditions | None = None,
        crashes: int = 0,
        blobs: MemoryBlobs | None = None,
    ) -> None:
        clock = VirtualClock()
        super().__init__(clock, blobs if blobs is not None else MemoryBlobs(), SWEEP_STEPS)
        self.shared, self.conditions = shared, conditions or PeerNetworkConditions()
        rng = Random(shared.seed)
        self.mesh = Network(clock, self.conditions, rng)
        self.wire: ByzantineWire | None = None
        """A codec that messages pass; None: they arrive as sent."""
        self.conservation = MassConservation(weights, shared.slots, self.blobs, shared.mixing, shared.filters)
        faults = Faults(until_s=self.conditions.until_s)

        def make(name: str) -> SimulatedPeer:
            process = SimulatedProcess(clock, CrashPlan(clock, rng, crashes, faults))
            work_s = partial(_pace, rng, pace_s[name])
            return SimulatedPeer(
                PeerSetup(name, weights[name], learners[name], work_s), shared, process, self.blobs, self
            )

        self.peers = {name: make(name) for name in sorted(learners)}
        for peer in self.peers.values():
            clock.after(0.0, peer.start)
        clock.after(0.0, self.update_live_peers)

    def send(self, source: str, target: str, message: PeerMessage) -> None:
        """Send a message to another peer, through the codec if there is one."""
        arrives = self.wire(source, message) if self.wire is not None else message
        if arrives is None:
            return
        blob = getattr(message, "blob", None)
        nbytes, xid = blob.nbytes if blob is not None else 0, transfer_id(message)

        def moving(crossed: int, leaving: bool) -> None:
            at, other = (source, target) if leaving else (target, source)
            if xid is not None:
                self.peers[at].feed(Transfer(other, xid, crossed, leaving))

        self.mesh.send(source, target, arrives, self.peers[target].receive, nbytes=nbytes, moving=moving)

    def live_peers(self, viewer: str) -> LivePeers:
        """Return the live peers, and those that may come back; all see the same."""
        staying = {name for name, peer in self.peers.items() if not peer.left}
        up = frozenset(name for name in staying if self.peers[name].process.up)
        return LivePeers(up, frozenset(staying) - up, roster=frozenset(self.peers))

    def record_state(self, node: str, state: dict[str, Any], learned: bool) -> None:
        """Record the new state of a peer's disk in the account of mass."""
        self.conservation.record_state(node, state, learned)

    def update_live_peers(self) -> None:
        """Tell all peers which peers are live, now and at every interval."""
        for peer in self.peers.values():
            peer.update_live_peers()
        self.clock.after(LIVE_PEERS_INTERVAL_S, self.update_live_peers)

    def over(self) -> bool:
        """Return whether all peers have left."""
        return all(peer.left for peer in self.peers.values())

    def _after_step(self) -> None:
        """Check conservation too. Raises `ConservationViolation`."""
        super()._after_step()
        if self.conservation.touched and self.conservation.conserving:
            self._check()

    def _check(self) -> None:
        self.conservation.touched = False
        drift = self.conservation.drift()
        if not drift <= DRIFT_MAX:
            raise ConservationViolation(
                f"at {self.clock.now:.3f} s the weighted sum of all models is off by {drift:.3g} of its size"
            )

    def _blob_refs(self) -> list[BlobRef]:
        return [*self.mesh.blob_refs(), *(ref for peer in self.peers.values() for ref in peer.blob_refs())]


def _pace(rng: Random, seconds: float) -> float:
    return seconds * rng.choice((1.0, 1.0, 0.7, 1.6))
