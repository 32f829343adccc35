"""Admitted peers that lie about counters: honest peers go on, know each other, and blame only the liar."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from shoal.core.gossip.counter_bounds import INCARNATION_LEAP, ROUNDS_SPARE, ImplausibleCount
from shoal.core.membership.dissemination import INCARNATION_MAX
from shoal.core.protocol.machine import Effect, Tell, Timer, Wake
from shoal.core.protocol.peer_message import MemberUpdate, Ping, PingAck, StateSync
from shoal.sim.checks.reference_checks import Violation
from shoal.sim.network.host_world import PeerEvent
from shoal.sim.scenarios.membership_runs import MembershipFleet, names
from shoal.sim.scenarios.peer_swarm import GossipScenario, draw, run
from tests.support.sampling import extended

SEEDS = range(300)


def lying() -> list[GossipScenario]:
    """Runs of the swarm with a lying peer."""
    return [scenario for scenario in map(draw, SEEDS) if scenario.byzantine]


def test_the_swarm_draws_liars_of_every_kind() -> None:
    drawn = lying()
    assert len(drawn) > len(SEEDS) / 10
    assert {scenario.mixing.name for scenario in drawn} == {"pairwise", "neighbors", "push_sum"}, "no ring: see `draw`"


@pytest.mark.parametrize("mixing", ["pairwise", "push_sum", "neighbors"])
def test_honest_peers_mix_and_their_mean_stays(mixing: str) -> None:
    """The run checks at each step that the weighted sum is conserved, and at its end that no peer was muted."""
    for scenario in [one for one in lying() if one.mixing.name == mixing and not one.conditions.cuts][:3]:
        swarm = run(scenario)
        assert swarm.wire is not None
        assert swarm.wire.falsified > 5
        assert swarm.conservation.variance() < 0.9 * swarm.conservation.unmixed_variance(), "nobody has mixed"
        for name, peer in swarm.peers.items():
            assert peer.gossip is not None
            seen = peer.gossip.me.counts.version_vector
            assert seen.keys() <= scenario.weights.keys()
            assert max(seen.values()) <= scenario.rounds + ROUNDS_SPARE
            reported = {event.node for event in peer.events if isinstance(event, ImplausibleCount)}
            assert reported <= {scenario.byzantine}, name
        everybody = [event for peer in swarm.peers.values() for event in peer.events]
        assert any(isinstance(event, ImplausibleCount) for event in everybody), "nobody has noticed"


def test_a_version_vector_taken_as_it_came_mutes_honest_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The swarm finds the defect that it is there for."""
    monkeypatch.setattr("shoal.core.gossip.gossip.drop_implausible_counts", lambda message, roster, most: (message, []))
    with pytest.raises(Violation, match=r"muted: .* peers in a version vector; at most 4096"):
        run(draw(177))


# Membership


class Liar:
    """Admitted, and alive; it sends false news to all peers in each period, until `until`."""

    def __init__(self, node: str, roster: Sequence[str], seed: int, until: float) -> None:
        self._node, self._others, self._rng = node, [one for one in roster if one != node], Random(seed)
        self._until, self._left, self.told = until, 0, 0

    def start(self, now: float) -> list[Effect]:
        self._until += now
        return [Wake(now + 1.0)]

    def on(self, event: PeerEvent, now: float) -> list[Effect]:
        if isinstance(event, Ping):
            return [Tell(event.node, PingAck(self._node, 0, event.seq, self._node))]
        if not isinstance(event, Timer):
            return []
        lies = [Tell(to, self._lie()) for to in self._others] if now < self._until else []
        return [*lies, Wake(now + 1.0)]

    def _lie(self) -> StateSync | Ping:
        self.told += 1
        self._left += INCARNATION_LEAP
        incarnation = self._rng.choice(
            [INCARNATION_MAX, INCARNATION_MAX - 1, 2**40, INCARNATION_LEAP, self._left, 2 * INCARNATION_LEAP, 5]
        )
        state = self._rng.choice(["left", "dead", "suspect", "alive"])
        about = self._rng.sample(self._others, self._rng.randint(1, len(self._others)))
        news = tuple(MemberUpdate(one, state, incarnation) for one in about)  # type: ignore[arg-type]
        return self._rng.choice([StateSync(self._node, 0, news), Ping(self._node, 0, self.told, news)])


@pytest.mark.parametrize("seed", extended(range(6), but=[0, 1]))
def test_updates_of_a_liar_evict_nobody_for_good(seed: int) -> None:
    roster = names(6)
    world = MembershipFleet(roster, seed=seed)
    world.start(roster[:-1])
    liar = Liar(roster[-1], roster, seed, until=40.0)
    world.hosts.start(roster[-1], liar)
    world.hosts.run(20.0)
    world.kill([roster[0]])
    world.start([roster[0]])  # one that has forgotten all meets the lies again
    world.hosts.run(60.0)
    honest = frozenset(roster[:-1])

    def agree() -> bool:
        return all(world.views[one].live() >= honest - {one} for one in honest)

    while not agree() and world.clock.now < 120.0:
        world.hosts.run(world.clock.now + 0.5)
    assert liar.told > 100
    assert agree(), {one: view.live() for one, view in world.views.items()}
    assert {event.node for _, event in world.events if isinstance(event, ImplausibleCount)} == {roster[-1]}
    assert all(world.views[one].incarnation < INCARNATION_MAX // 2 for one in honest)
