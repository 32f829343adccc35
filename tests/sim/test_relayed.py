"""One node's link to the coordinator is cut: it is relayed, misses no round and is not switched."""

from __future__ import annotations

import pytest

from shoal.sim.network.faults import NetworkCut, NetworkSplit
from tests.sim.peers_scenario import PeerStage
from tests.support.sampling import extended

LOST = "n2"
FOUND_S = 20.0
"""Seconds until it is relayed after the cut: it misses the coordinator for `ttl_s`, and asks."""


def reporters(stage: PeerStage, number: int) -> set[str]:
    """Return the nodes whose reports are in that version."""
    return {node for node, *_ in stage.history.versions[number].reports}


def check_whole(stage: PeerStage) -> None:
    """No node has failed over, and the versions are one row, each made once."""
    assert not any(stage.world.peer(node).log.learned for node in stage.nodes), "nobody had a reason to go away"
    assert {stage.world.peer(node).peer.term for node in stage.nodes} == {1}
    assert [version.number for version in stage.history.versions] == list(range(stage.versions + 1))
    for number in range(1, stage.versions + 1):
        assert len(stage.history.versions[number].reports) == len(reporters(stage, number)), "a report counted twice"


@pytest.mark.parametrize("seed", extended(range(1, 9), but=[1, 2]))
def test_a_relayed_node_misses_no_round(seed: int) -> None:
    stage = PeerStage(cuts=[NetworkCut(LOST, 10.0, 90.0)], seed=seed)
    stage.until(10.0 + FOUND_S)
    first = stage.hub.progress.version + 1
    assert stage.world.peer(LOST).peer.reachability.relay
    stage.until(89.0)
    last = stage.hub.progress.version
    assert last - first >= 5
    assert [number for number in range(first, last + 1) if LOST not in reporters(stage, number)] == []
    stage.finish()
    assert stage.world.peer(LOST).peer.reachability.relay == "", "its own way is whole again"
    check_whole(stage)


@pytest.mark.parametrize("seed", extended(range(1, 5), but=[1]))
def test_another_peer_takes_over_when_the_relay_dies(seed: int) -> None:
    stage = PeerStage(cuts=[NetworkCut(LOST, 10.0, 110.0)], seed=seed)
    stage.until(10.0 + FOUND_S)
    first = stage.world.peer(LOST).peer.reachability.relay
    stage.world.nodes[first].vanish()
    stage.until(40.0 + FOUND_S)
    second = stage.world.peer(LOST).peer.reachability.relay
    assert second not in ("", first)
    version = stage.hub.progress.version
    stage.until(100.0)
    assert all(LOST in reporters(stage, number) for number in range(version + 1, stage.hub.progress.version + 1))
    stage.finish()
    check_whole(stage)


def test_the_others_are_cut_off_from_it_as_well() -> None:
    """No node can help it until the mesh heals: it waits, and is carried then."""
    stage = PeerStage(cuts=[NetworkCut(LOST, 10.0, 120.0)], splits=[NetworkSplit(frozenset({LOST}), 10.0, 70.0)])
    stage.until(69.0)
    assert stage.world.peer(LOST).peer.reachability.relay == ""
    stage.until(80.0)
    assert stage.world.peer(LOST).peer.reachability.relay
    version = stage.hub.progress.version
    stage.until(100.0)
    assert LOST in reporters(stage, version + 2)
    stage.finish()
    check_whole(stage)


def test_who_is_relayed_goes_away_with_the_others_and_is_called_back() -> None:
    """An operator's word reaches it through another, both ways."""
    stage = PeerStage(cuts=[NetworkCut(LOST, 10.0, 160.0)])
    stage.until(10.0 + FOUND_S)
    stage.switch("gossip", 0.0)
    stage.until(60.0)
    assert stage.states() == {"gossip"}
    before = stage.hub.progress.version
    stage.switch("server", 0.0)
    stage.until(120.0)
    assert stage.states() == {"coordinated"}
    merged = next(version for version in stage.history.versions[before:] if version.why.startswith("back at the"))
    assert LOST in {node for node, *_ in merged.reports}
    stage.finish()


def test_who_has_lost_its_way_while_the_coordinator_was_dead_comes_back_with_the_others() -> None:
    stage = PeerStage(cuts=[NetworkCut(LOST, 20.0, 400.0)])
    stage.until(15.0)
    stage.world.coordinator.kill(120.0)
    stage.gossip_at(80.0)
    stage.until(240.0)
    assert stage.states() == {"coordinated"}
    assert LOST in reporters(stage, stage.hub.progress.version)
    stage.finish()
    merged = [version for version in stage.history.versions if version.why.startswith("back at the")]
    assert {node for version in merged for node, *_ in version.reports} == set(stage.nodes), (
        "and what it learned counts"
    )
