"""Blobs that a crash may lose: no saved state names one, whatever fails and whenever a process dies."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from shoal.core.gossip.gossip import GossipPeer
from shoal.core.model.tree import Slots
from shoal.core.protocol.message import BlobRef
from shoal.mixing.all_reduce import AllReduce
from shoal.sim.hosts.gossip_world import GossipWorld
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.network.faults import PeerNetworkConditions
from shoal.sim.scenarios.peer_swarm import GossipScenario, run

SEEDS = range(20)
Patch = pytest.MonkeyPatch


def scenario(seed: int) -> GossipScenario:
    """Some peers that average in rounds, on a network that loses messages, and whose processes die."""
    rng = Random(seed)
    names = [f"n{number}" for number in range(1, rng.randint(2, 6) + 1)]
    conditions = PeerNetworkConditions(until_s=20.0, delay_s=0.05, message_loss=rng.choice((0.0, 0.1)))
    return GossipScenario(
        seed, AllReduce(exchange_timeout_s=10.0), dict.fromkeys(names, 1.0), dict.fromkeys(names, 0.5), 6, conditions, 4
    )


def watched(patch: Patch) -> tuple[set[str], list[str]]:
    """Record the blobs that are stored as transient alone, and all saved states; check each against the others."""
    transient, states = set[str](), list[str]()
    put, record = MemoryBlobs.put, GossipWorld.record_state

    def durable(self: MemoryBlobs, slots: Slots) -> BlobRef:
        ref = put(self, slots)
        transient.discard(ref.digest)
        return ref

    def passing(self: MemoryBlobs, slots: Slots) -> BlobRef:
        ref = put(self, slots)
        transient.add(ref.digest)
        return ref

    def saved(self: GossipWorld, node: str, state: dict[str, Any], learned: bool) -> None:
        states.append(text := json.dumps(state))
        assert not any(digest in text for digest in transient), "a saved state names what a crash may lose"
        record(self, node, state, learned)

    patch.setattr(MemoryBlobs, "put", durable)
    patch.setattr(MemoryBlobs, "put_transient", passing)
    patch.setattr(GossipWorld, "record_state", saved)
    return transient, states


def test_no_saved_state_names_one(monkeypatch: Patch) -> None:
    transient, states = watched(monkeypatch)
    worlds = [run(scenario(seed)) for seed in SEEDS]
    assert sum(peer.process.number - 1 for world in worlds for peer in world.peers.values()) > 20, "processes die"
    assert len(transient) > 500, "chunks are transient"
    assert len(states) > 500


def test_a_model_that_is_stored_like_a_chunk_is_found(monkeypatch: Patch) -> None:
    watched(monkeypatch)
    monkeypatch.setattr(GossipPeer, "_slots_ref", lambda self: self.me.blobs.put_transient(self.me.slots))
    with pytest.raises(AssertionError, match="what a crash may lose"):
        run(scenario(0))
