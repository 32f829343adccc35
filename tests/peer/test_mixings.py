"""Every way of mixing among peers over real sockets: their models become one, and what is conserved stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from shoal.core.errors import InvalidJob
from shoal.mixing.push_sum import PushSumMixer
from shoal.plugins import mixings
from shoal_peer.peer_process import StandalonePeer
from tests.peer.scenario import PATIENCE_S, apart, drift, folders, node, to_its_end
from tests.support.ports import free_ports

ROUNDS = 4
TABLES = {
    "pairwise": "",
    "neighbors": 'graph = "ring"',
    "push_sum": "",
    "all_reduce": "",
}


def table(name: str) -> str:
    return f'[gossip.mixing]\nname = "{name}"\n{TABLES[name]}'


def test_all_ways_are_tried() -> None:
    assert TABLES.keys() == CHECKS.keys() == mixings().keys()


def mean_stays(made: list[StandalonePeer]) -> None:
    assert drift(made) < 1e-6


def mass_stays(made: list[StandalonePeer]) -> None:
    masses = [one.gossip.mixer.mass for one in made if isinstance(one.gossip.mixer, PushSumMixer)]
    assert sum(masses) == pytest.approx(sum(one.gossip.me.weight for one in made))
    assert len(masses) == 3


def nothing_more(made: list[StandalonePeer]) -> None:
    """The first peer to leave may move the mean."""


CHECKS = {"pairwise": mean_stays, "push_sum": mass_stays, "neighbors": nothing_more, "all_reduce": nothing_more}


@pytest.mark.parametrize(("name", "check"), CHECKS.items(), ids=CHECKS)
def test_three_peers_become_one(name: str, check: Callable[[list[StandalonePeer]], None], tmp_path: Path) -> None:
    async def scene() -> None:
        ports = free_ports(3)
        peers = folders(tmp_path, rounds=ROUNDS, ports=ports, more=table(name))
        async with AsyncExitStack() as stack:
            made = [
                await stack.enter_async_context(node(peers / who, number, port=port, audit=True))
                for number, (who, port) in enumerate(zip("abc", ports, strict=True), 1)
            ]
            summaries = await asyncio.wait_for(asyncio.gather(*(to_its_end(one) for one in made)), 2 * PATIENCE_S)
            assert [one.rounds for one in summaries] == [ROUNDS] * 3
            assert all(one.settled and one.rounds_by_peer == dict.fromkeys("abc", ROUNDS) for one in summaries)
            assert all(not one.group.refusals.counts for one in made)
            assert apart(made) < 0.005
            assert made[0].status()["exchanges"] == made[0].gossip.mixer.counters()
            check(made)

    asyncio.run(scene())


def test_filtered_models_become_one_too_and_cost_less(tmp_path: Path) -> None:
    """Eight bits per number: what crosses is that much shorter, what is conserved stays, and they end by themselves."""

    async def scene(filters: str) -> tuple[int, float]:
        ports = free_ports(2)
        folder = tmp_path / (filters[-5:-1] or "plain")
        folder.mkdir()
        peers = folders(folder, "ab", rounds=ROUNDS, ports=ports, more=filters)
        async with AsyncExitStack() as stack:
            made = [
                await stack.enter_async_context(node(peers / who, number, port=port, audit=True))
                for number, (who, port) in enumerate(zip("ab", ports, strict=True), 1)
            ]
            summaries = await asyncio.wait_for(asyncio.gather(*(to_its_end(one) for one in made)), 2 * PATIENCE_S)
            assert all(one.settled and one.rounds_by_peer == dict.fromkeys("ab", ROUNDS) for one in summaries)
            assert all(not one.group.refusals.counts for one in made)
            assert drift(made) < 1e-6
            return made[0].group.expected_model.body_bytes, apart(made)

    whole, _ = asyncio.run(scene(""))
    short, distance = asyncio.run(scene('[[filters]]\nname = "half"'))
    assert short < whole
    assert distance < 0.02


def test_peers_mix_the_momentum_of_diloco_through_filters_too(tmp_path: Path) -> None:
    async def scene() -> None:
        ports = free_ports(2)
        more = '[[filters]]\nname = "half"'
        peers = folders(tmp_path, "ab", rounds=ROUNDS, ports=ports, more=more, algorithm="diloco")
        async with AsyncExitStack() as stack:
            made = [
                await stack.enter_async_context(node(peers / who, number, port=port, audit=True))
                for number, (who, port) in enumerate(zip("ab", ports, strict=True), 1)
            ]
            summaries = await asyncio.wait_for(asyncio.gather(*(to_its_end(one) for one in made)), 2 * PATIENCE_S)
            assert all(one.settled and one.rounds_by_peer == dict.fromkeys("ab", ROUNDS) for one in summaries)
            assert all(not one.group.refusals.counts for one in made)
            assert drift(made) < 1e-6
            momenta = [one.gossip.me.slots["m"]["w"] for one in made]
            assert momenta[0] == pytest.approx(momenta[1], rel=0.05)
            assert abs(momenta[0]).max() > 1

    asyncio.run(scene())


@pytest.mark.parametrize(("name", "field"), [("top_k", "fraction = 0.5"), ("quantize", "bits = 4"), ("delta", "")])
def test_a_filter_that_peers_cannot_use_is_refused_before_anything_starts(
    name: str, field: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidJob, match=f"peers cannot show their models through the filter {name}"):
        folders(tmp_path, more=f'[[filters]]\nname = "{name}"\n{field}')


@pytest.mark.parametrize("mixing", ["push_sum", "all_reduce"])
def test_a_mixing_of_which_filters_would_move_the_mean_says_so(mixing: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=f"filter half under {mixing}: what it loses would move the mean"):
        folders(tmp_path, more=f'[gossip.mixing]\nname = "{mixing}"\n[[filters]]\nname = "half"')


def test_what_is_wrong_with_a_mixing_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="models_per_round: Input should be greater than 0"):
        folders(tmp_path, more='[gossip.mixing]\nname = "pairwise"\nmodels_per_round = 0.0')
    with pytest.raises(InvalidJob, match="no mixing is called 'rings'"):
        folders(tmp_path, more='[gossip.mixing]\nname = "rings"')
