"""Newcomers enter by certificate while peers mix, messages are lost and processes die: no work is lost."""

from __future__ import annotations

from collections import Counter
from math import inf
from random import Random

import pytest

from shoal.sim.network.faults import PeerNetworkConditions
from tests.sim import join_certificates
from tests.sim.join_certificates import LATE, NEW, OLD, JoiningWorld

SEEDS = range(4)


def ran(seed: int) -> JoiningWorld:
    """The run of that seed, to its end; the books are looked at after every event."""
    rng = Random(seed)
    conditions = PeerNetworkConditions(
        until_s=rng.choice((8.0, 20.0)),
        delay_s=rng.choice((0.0, 0.02, 0.3)),
        message_loss=rng.choice((0.0, 0.1, 0.3)),
        message_duplicates=rng.choice((0.0, 0.2)),
    )
    world = JoiningWorld(seed, conditions, rng.choice((0, 1, 3)))
    assert world.run(2000.0, 60_000), f"seed {seed}: no end after {world.clock.now:.0f} s"
    return world


def rounds(world: JoiningWorld, name: str) -> dict[str, int]:
    gossip = world.peers[name].gossip
    assert gossip is not None
    return gossip.me.counts.version_vector


@pytest.fixture(scope="module")
def worlds() -> list[JoiningWorld]:
    return [ran(seed) for seed in SEEDS]


def test_newcomers_come_in_take_part_and_nothing_is_lost(worlds: list[JoiningWorld]) -> None:
    refusals, reached = Counter[str](), 0
    for world in worlds:
        refusals.update({code: count for (_, code), count in world.refused.items()})
        for name in NEW:
            assert {at for who, at in world.entered if who == name} == set(OLD)
            reached += sum(rounds(world, one).get(name, 0) >= world.shared.drain.rounds for one in OLD)
        for one in OLD:
            assert min(rounds(world, one).get(name, 0) for name in OLD) >= world.shared.drain.rounds
    assert reached > 0.9 * len(worlds) * len(OLD) * len(NEW), "what newcomers learn reaches the others"
    assert refusals["trust.stranger"] > 0
    assert sum(peer.process.number - 1 for world in worlds for peer in world.peers.values()) > len(SEEDS)
    again = [count for world in worlds for count in world.entered.values() if count > 1]
    assert again, "a door that has forgotten is shown the certificate again"


def test_whose_certificate_has_run_out_stays_out(worlds: list[JoiningWorld]) -> None:
    for world in worlds:
        for name in LATE:
            assert world.refused[name, "trust.expired"] > 0
            assert not [pair for pair in (*world.entered, *world.taken) if pair[0] == name]
            assert not [one for one in OLD + NEW if name in rounds(world, one)], "its model is in nobody's"


def test_who_shows_its_certificate_only_once_is_not_let_in_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate may be lost on its way: so it is shown again, to each, while it is requested."""
    monkeypatch.setattr(join_certificates, "AGAIN_S", inf)
    shy = ran(13)  # a seed that loses one
    assert len([pair for pair in shy.entered if pair[0] in NEW]) < len(OLD) * len(NEW)
