"""Newcomers enter by certificate while peers mix, messages are lost and processes die: nothing is lost of anybody."""

from __future__ import annotations

from collections import Counter
from math import inf
from random import Random

import pytest

from shoal.sim.mesh import Weather
from tests.sim import entering
from tests.sim.entering import LATE, NEW, OLD, Town

SEEDS = range(9)


def ran(seed: int) -> Town:
    """The run of that seed, to its end; the books are looked at after every event."""
    rng = Random(seed)
    weather = Weather(
        until_s=rng.choice((8.0, 20.0)),
        delay_s=rng.choice((0.0, 0.02, 0.3)),
        loss=rng.choice((0.0, 0.1, 0.3)),
        duplicate=rng.choice((0.0, 0.2)),
    )
    town = Town(seed, weather, rng.choice((0, 1, 3)))
    assert town.run(2000.0, 60_000), f"seed {seed}: no end after {town.clock.now:.0f} s"
    return town


def rounds(town: Town, name: str) -> dict[str, int]:
    gossip = town.peers[name].gossip
    assert gossip is not None
    return gossip.me.seen


@pytest.fixture(scope="module")
def towns() -> list[Town]:
    return [ran(seed) for seed in SEEDS]


def test_newcomers_come_in_take_part_and_nothing_is_lost(towns: list[Town]) -> None:
    refusals, reached = Counter[str](), 0
    for town in towns:
        refusals.update({code: count for (_, code), count in town.refused.items()})
        for name in NEW:
            assert {at for who, at in town.entered if who == name} == set(OLD)
            reached += sum(rounds(town, one).get(name, 0) >= town.shared.drain.rounds for one in OLD)
        for one in OLD:
            assert min(rounds(town, one).get(name, 0) for name in OLD) >= town.shared.drain.rounds
    assert reached > 0.9 * len(towns) * len(OLD) * len(NEW), "what newcomers learn reaches the others"
    assert refusals["trust.stranger"] > 0
    assert sum(peer.disk.boot - 1 for town in towns for peer in town.peers.values()) > len(SEEDS)
    again = [count for town in towns for count in town.entered.values() if count > 1]
    assert again, "a door that has forgotten is shown the certificate again"


def test_whose_certificate_has_run_out_stays_out(towns: list[Town]) -> None:
    for town in towns:
        for name in LATE:
            assert town.refused[name, "trust.expired"] > 0
            assert not [pair for pair in (*town.entered, *town.taken) if pair[0] == name]
            assert not [one for one in OLD + NEW if name in rounds(town, one)], "its model is in nobody's"


def test_who_shows_its_certificate_only_once_is_not_let_in_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was shown may be lost on its way: so it is shown again, to each, for as long as it is asked for."""
    monkeypatch.setattr(entering, "AGAIN_S", inf)
    shy = [ran(seed) for seed in (12, 13, 23)]
    assert [town for town in shy if len([pair for pair in town.entered if pair[0] in NEW]) < len(OLD) * len(NEW)]
