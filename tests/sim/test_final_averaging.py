"""Final averaging after all local rounds: log2 n models per peer, for all weights and paces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.gossip.termination import TerminationRule
from shoal.core.job.job_plan import JobPlan
from shoal.core.mixing.final_averaging import FREE, FinalAveraging
from shoal.core.mixing.step_limits import StepLimiter
from shoal.core.protocol.peer_message import ExchangeAccept, ExchangeOffer, PeerMessage
from shoal.mixing.pairwise import Pairwise
from shoal.sim.hosts.gossip_world import GossipWorld
from shoal.sim.hosts.peers import GossipSetup
from shoal.sim.hosts.toy_models import ToyLearner, toy_tree
from shoal.sim.network.faults import PeerNetworkConditions
from shoal.sim.scenarios.peer_swarm import run_seed
from shoal.sim.scenarios.swarm import SeedFailed

NEAR, ROUNDS = 1e-12, 8
Patch = pytest.MonkeyPatch


class Counting(GossipWorld):
    """Counts the models that each peer sends after the last local round of all; may let one die in the middle."""

    def __init__(self, *given: Any, dies: str = "", **more: Any) -> None:
        super().__init__(*given, **more)
        self.sent = Counter[str]()
        self._dies = dies

    def send(self, source: str, target: str, message: PeerMessage) -> None:
        super().send(source, target, message)
        gossips = [peer.gossip for peer in self.peers.values()]
        if isinstance(message, ExchangeOffer | ExchangeAccept) and all(
            one is not None and one.finished for one in gossips
        ):
            self.sent[source] += 1
            if source == self._dies and message.step > FREE:
                self._dies = ""
                self.clock.after(0.0, self.peers[source].process.end)
                self.clock.after(3.0, self.peers[source].start)


def averaged(count: int, seed: int = 1, conditions: PeerNetworkConditions | None = None, dies: str = "") -> Counting:
    """Run a job of that many peers, to its end."""
    rng, names = Random(seed), [f"n{number:02}" for number in range(count)]
    start = {"model": toy_tree((1.0, 2.0, 3.0), 0)}
    shared = GossipSetup(JobPlan(1, seed=seed), Algorithm(), Pairwise().mixer, start, TerminationRule(ROUNDS), seed)
    swarm = Counting(
        shared,
        {name: ToyLearner(number) for number, name in enumerate(names, 1)},
        {name: float(rng.randint(1, 5)) for name in names},
        {name: rng.choice((0.5, 0.5, 1.0)) for name in names},
        conditions=conditions or PeerNetworkConditions(delay_s=0.01),
        dies=dies,
    )
    assert swarm.run(5000.0)
    return swarm


def spread(swarm: GossipWorld) -> float:
    return swarm.conservation.variance() / swarm.conservation.unmixed_variance()


@pytest.mark.parametrize(("count", "models"), [(2, 1.0), (3, 2.0), (4, 2.0), (5, 2.4), (8, 3.0), (12, 4.0), (16, 4.0)])
def test_few_models_make_all_one(count: int, models: float) -> None:
    """By random pairs it was 12 for three, 20 for four, 31 for eight and 34 for sixteen."""
    swarm = averaged(count)
    assert sum(swarm.sent.values()) / count <= models
    assert spread(swarm) < NEAR


def test_models_that_take_long_are_sent_as_few_times() -> None:
    """Two peers wait for the exchange of two others, however long that takes."""
    swarm = averaged(4, conditions=PeerNetworkConditions(delay_s=0.01, bytes_per_s=2.0))
    assert sum(swarm.sent.values()) / 4 <= 2.5, "one exchange may have been under way before"
    assert spread(swarm) < NEAR


@pytest.mark.parametrize("dies", ["n00", "n03", "n04"])
def test_when_one_dies_in_the_middle_the_others_do_it_another_way(dies: str) -> None:
    """n04 is the one too many: it gives its mass away first."""
    assert spread(averaged(5, dies=dies)) < 0.01


# The swarm draws all this with faults; the faults that it would find


def masses_unmoved(patch: Patch) -> None:
    """A model's movement since it was shown weighs as much as before, though the mass has changed."""
    take = StepLimiter.apply
    patch.setattr(
        StepLimiter, "apply", lambda self, me, message, step, mass, after: take(self, me, message, step, mass, mass)
    )


def weight_without_mass(patch: Patch) -> None:
    patch.setattr(FinalAveraging, "weight", lambda self, me, step: me.weight)


def mass_forgotten_by_the_snapshot(patch: Patch) -> None:
    patch.setattr(FinalAveraging, "restore", lambda self, state: None)


BUGS: dict[str, Callable[[Patch], None]] = {
    "masses unmoved": masses_unmoved,
    "weight without mass": weight_without_mass,
    "mass forgotten": mass_forgotten_by_the_snapshot,
}


@pytest.mark.parametrize("plant", BUGS.values(), ids=BUGS)
def test_bugs_are_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    with pytest.raises(SeedFailed, match="the weighted sum of all models is off"):
        run_all()


def run_all() -> None:
    for seed in range(1000):
        run_seed(seed)
