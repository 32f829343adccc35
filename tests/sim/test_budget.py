"""Peers with a budget of bytes, over seeds: it holds, the mean stays, and models become one all the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from random import Random

import pytest

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.gossip.byte_budget import HEAD_BYTES, SAVED_S, ByteBudget
from shoal.core.gossip.termination import TerminationRule
from shoal.core.job.job_plan import JobPlan
from shoal.sim.hosts.gossip_world import GossipWorld
from shoal.sim.hosts.peers import GossipSetup
from shoal.sim.hosts.toy_models import ToyLearner, toy_tree
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.scenarios.peer_swarm import GossipScenario, draw, draw_pairwise
from tests.support.sampling import extended

MODEL = 100_000
EXCHANGE = 2 * (MODEL + HEAD_BYTES)
EVERY_S = 60.0
"""The budget is worth an exchange in this time: ten are saved up at first."""
RATE = EXCHANGE / EVERY_S
NEAR = 1e-3


@dataclass
class Run:
    """The result of one run."""

    ended: bool
    over: int
    """The most bytes by which a peer was over what it may have used by then."""
    apart: float
    """The variance of models at the end, relative to that of models that never met."""
    swarm: GossipWorld


def drawn(seed: int) -> GossipScenario:
    """Faults as they come; but no network hands over a whole model twice."""
    scenario = draw(seed)
    conditions = replace(scenario.conditions, message_duplicates=0.0)
    return replace(scenario, mixing=draw_pairwise(Random(f"{seed}/budget")), conditions=conditions)


def run(scenario: GossipScenario, bytes_per_hour: float = 3600 * RATE, limit_s: float = 20_000.0) -> Run:
    """Raises `ConservationViolation` when the mean is moved."""
    drain = TerminationRule(scenario.rounds, convergence_tol=NEAR)
    shared = GossipSetup(
        JobPlan(1, seed=scenario.seed),
        Algorithm(),
        scenario.mixing.mixer,
        {"model": toy_tree((1.0, 2.0, 3.0), 0)},
        drain,
        scenario.seed,
        bytes_per_hour,
    )
    learners = {name: ToyLearner(number) for number, name in enumerate(scenario.weights, 1)}
    blobs = MemoryBlobs(lambda _: MODEL)
    swarm = Watched(
        shared,
        learners,
        scenario.weights,
        scenario.pace_s,
        conditions=scenario.conditions,
        crashes=scenario.crashes,
        blobs=blobs,
    )
    ended = swarm.run(limit_s, 200_000)
    return Run(
        ended, swarm.excess, swarm.conservation.variance() / (swarm.conservation.unmixed_variance() or 1.0), swarm
    )


class Watched(GossipWorld):
    """Looks after every event whether a peer is over what it may have used."""

    excess = 0

    def _check(self) -> None:
        super()._check()
        allowed = max(RATE * SAVED_S, EXCHANGE) + RATE * self.clock.now
        self.excess = max(self.excess, *(round(peer.crossed - allowed) for peer in self.peers.values()))


@cache
def budgeted(seed: int) -> Run:
    """Return the run of that seed without a planted bug."""
    return run(drawn(seed))


@pytest.mark.parametrize("seed", extended([*range(16), 24, 26, 39, 50], but=[0, 2, 24, 50]))
def test_the_budget_holds_and_models_become_one(seed: int) -> None:
    made = budgeted(seed)
    assert made.ended
    assert made.over <= MODEL + HEAD_BYTES, "by more than one message"
    assert made.apart < 1e-3
    assert all(peer.gossip is not None and peer.gossip.finished for peer in made.swarm.peers.values())


def test_it_is_the_budget_that_holds_them_back() -> None:
    """Without one the same peers are done in a tenth of the time, and have used more by then than it allows."""
    free, metered = run(drawn(0), 0.0), budgeted(0)
    assert free.over > EXCHANGE
    assert free.swarm.clock.now < metered.swarm.clock.now / 4


def test_peers_that_have_met_do_not_meet_only_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers that have met are short of bytes at the same times: without a pause of random length they lock."""
    together = budgeted(2)
    assert together.ended
    monkeypatch.setattr(ByteBudget, "seconds_to_earn", lambda self, nbytes: 0.0)
    assert not run(drawn(2), limit_s=2 * together.swarm.clock.now).ended


def begun_anyway(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ByteBudget, "affords", lambda self, nbytes: True)


def forgotten_by_the_next_process(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ByteBudget, "restore", lambda self, kept: None)


@pytest.mark.parametrize(("plant", "seed"), [(begun_anyway, 0), (forgotten_by_the_next_process, 2)])
def test_bugs_are_found(plant, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert budgeted(seed).over <= MODEL + HEAD_BYTES
    plant(monkeypatch)
    assert run(drawn(seed)).over > MODEL + HEAD_BYTES
