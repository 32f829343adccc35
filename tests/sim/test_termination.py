"""The end of a job without a server: peers leave when their models are one, despite late and dead peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from shoal.core.algorithm.filter import Filter
from shoal.core.gossip.mixer import Mixing
from shoal.core.gossip.termination import Termination, TerminationRule
from shoal.filters.half import Half
from shoal.filters.quantize import Quantize
from shoal.mixing.all_reduce import AllReduce
from shoal.mixing.neighbors import Neighbors
from shoal.mixing.pairwise import Pairwise
from shoal.mixing.push_sum import PushSum, PushSumMixer
from shoal.sim.hosts.gossip_world import GossipWorld
from shoal.sim.network.faults import PeerNetworkConditions
from shoal.sim.scenarios.peer_swarm import GossipScenario, run
from tests.support.sampling import extended, nightly

SEEDS = 10
MIXINGS: dict[str, Mixing] = {
    "pairwise": Pairwise(),
    "pairwise with a trigger": Pairwise(delta=10.0),
    "ring": Neighbors("ring", exchange_timeout_s=5.0),
    "push_sum": PushSum(),
    "all_reduce": AllReduce(exchange_timeout_s=10.0),
}

Patch = pytest.MonkeyPatch


def scenario(seed: int, mixing: Mixing) -> GossipScenario:
    """Some peers learn ten times as fast as others, and processes die: in the middle of all, or at the end."""
    rng = Random(seed)
    names = [f"n{number}" for number in range(1, rng.randint(2, 8) + 1)]
    conditions = PeerNetworkConditions(
        until_s=rng.choice((10.0, 40.0)), delay_s=rng.choice((0.0, 0.05)), message_loss=rng.choice((0.0, 0.1))
    )
    pace = {name: rng.choice((0.2, 0.5, 2.0)) for name in names}
    weights = {name: float(rng.randint(1, 5)) for name in names}
    return GossipScenario(seed, mixing, weights, pace, rng.randint(5, 14), conditions, rng.choice((0, 2, 4)), near=1e-3)


def spread(swarm: GossipWorld) -> float:
    """Distance of the models at the end, beside that without mixing."""
    return swarm.conservation.variance() / swarm.conservation.unmixed_variance()


@cache
def ended(seed: int, mixing: Mixing) -> GossipWorld:
    """A run without a planted bug."""
    return run(scenario(seed, mixing))


@pytest.mark.parametrize("first", nightly(range(0, 4 * SEEDS, SEEDS), but=[0]))
@pytest.mark.parametrize("mixing", extended(MIXINGS.values(), but=[MIXINGS["pairwise"]]), ids=MIXINGS)
def test_models_are_one_when_peers_part(mixing: Mixing, first: int) -> None:
    assert not [seed for seed in range(first, first + SEEDS) if spread(ended(seed, mixing)) > 0.01]


ROUNDED: dict[str, tuple[Mixing, Filter]] = {
    "pairwise, bf16": (Pairwise(), Half()),
    "pairwise, 8 bits": (Pairwise(), Quantize()),
    "neighbors, bf16": (Neighbors("complete", exchange_timeout_s=5.0), Half()),
    "neighbors, 8 bits": (Neighbors("complete", exchange_timeout_s=5.0), Quantize()),
}


@pytest.mark.parametrize(("mixing", "through"), ROUNDED.values(), ids=ROUNDED)
def test_rounded_models_are_one_up_to_the_rounding(mixing: Mixing, through: Filter) -> None:
    """They end because they are near, not because their patience does."""
    for seed in range(2):
        swarm = run(replace(scenario(seed, mixing), filters=(through,)))
        assert spread(swarm) < 0.02
        for peer in swarm.peers.values():
            assert peer.gossip is not None
            assert peer.gossip._termination is not None
            assert peer.gossip._termination.far_count < TerminationRule.final_exchanges_max


def test_all_learn_all_and_come_to_an_end_by_themselves() -> None:
    for seed in range(SEEDS):
        wanted, swarm = scenario(seed, Pairwise()), ended(seed, Pairwise())
        for peer in swarm.peers.values():
            assert peer.gossip is not None
            assert peer.gossip.me.local_rounds == wanted.rounds
            assert set(peer.gossip.me.counts.version_vector) == set(wanted.weights)
            assert min(peer.gossip.me.counts.version_vector.values()) >= wanted.rounds


def left_in_calm(swarm: GossipWorld) -> bool:
    """True if the faults were over when the first peer left: then no peer leaves with an open exchange."""
    peers = swarm.peers.values()
    is_calm = min(peer.leaving_since for peer in peers) > swarm.conditions.until_s
    assert not (is_calm and any(peer.unsettled for peer in peers)), "somebody has left what was under way"
    return is_calm


@pytest.mark.parametrize("mixing", [MIXINGS["pairwise"], MIXINGS["push_sum"]], ids=["pairwise", "push_sum"])
def test_nobody_leaves_what_is_under_way_to_it(mixing: Mixing) -> None:
    assert sum(left_in_calm(ended(seed, mixing)) for seed in range(SEEDS)) > 5


def test_who_goes_without_asking_leaves_mass_behind(monkeypatch: Patch) -> None:
    """As it was: what was pushed to one that had gone could neither be added nor taken back."""
    monkeypatch.setattr(PushSumMixer, "_query_incoming", lambda self, me, now: [])
    with pytest.raises(AssertionError, match="under way"):
        sum(left_in_calm(run(scenario(seed, PushSum()))) for seed in range(SEEDS))


def counted(patch: Patch) -> None:
    """As it was: a number of turns, and then the others have had as many."""

    def over(self, me, now):
        me.counts.merge({me.node: self.policy.rounds + min(self.far_count, 12)})
        return all(
            me.counts.version_vector.get(node, 0) >= self.policy.rounds + 12 for node in {me.node, *me.peers.nodes}
        )

    patch.setattr(Termination, "may_leave", over)
    patch.setattr(Termination, "count_turn", lambda self: setattr(self, "far_count", self.far_count + 1))
    patch.setattr(Termination, "pause_s", lambda self: self.policy.rest_s)


def nobody_asked(patch: Patch) -> None:
    """A converged peer leaves, though others need it."""
    over = Termination.may_leave
    patch.setattr(
        Termination,
        "may_leave",
        lambda self, me, now: over(self, me, now) or me.counts.claims_near(me.counts.version_vector[me.node]),
    )


BUGS: dict[str, Callable[[Patch], None]] = {
    "turns are counted": counted,
    "nobody is asked": nobody_asked,
}


@pytest.mark.parametrize("plant", BUGS.values(), ids=BUGS)
def test_bugs_are_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    assert any(spread(run(scenario(seed, Pairwise()))) > 0.01 for seed in range(SEEDS))
