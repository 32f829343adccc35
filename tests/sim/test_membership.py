"""Membership under faults: what must hold at every instant, and what must come true once the faults are over."""

import json
from collections import defaultdict
from dataclasses import asdict
from random import Random

import pytest

from shoal.core.membership.dissemination import RANK, SUSPECTED_BY_MAX, precedence
from shoal.core.membership.membership import Membership
from shoal.core.membership.swim_config import SwimConfig
from shoal.core.protocol.machine import Effect, Tell
from shoal.core.protocol.peer_message import MembershipMessage, MemberUpdate, PeerHello, Ping, PingRequest, StateSync
from shoal.sim.network.faults import PeerNetworkConditions
from shoal.sim.network.host_world import PeerEvent
from shoal.sim.scenarios.membership_runs import MembershipFleet, encoded_size, halves, names
from tests.support.sampling import extended

FAULTY_S = 60.0
BOUND_S = 80.0
"""Health may have fallen to a turn in nine seconds: 45 s to recover, then a round of turns, a suspicion, a update."""
SAMPLE_OF_SEEDS = extended(range(5), but=[0])


class Liar:
    """A process that was not admitted; it tells all peers that they are dead, and its friends alive."""

    def __init__(self, roster: list[str], seed: int) -> None:
        self._roster, self._rng = roster, Random(seed)

    def start(self, now: float) -> list[Effect]:
        return [Tell(node, self._lie()) for node in self._roster]

    def on(self, event: PeerEvent, now: float) -> list[Effect]:
        return [Tell(self._rng.choice(self._roster), self._lie())]

    def _lie(self) -> MembershipMessage:
        news = (MemberUpdate(self._rng.choice(self._roster), "dead", 1000), MemberUpdate("friend", "alive", 1))
        kinds = (PeerHello("liar", 0, news), Ping("liar", 0, 1, news), PingRequest("liar", 0, 1, "friend", news))
        return self._rng.choice((*kinds, StateSync("liar", 0, news)))


class Watched(MembershipFleet):
    """Holds every message, and every view as often as it is looked at, against what must always be so."""

    def __init__(self, *args, **kw) -> None:
        super().__init__(*args, **kw)
        # By the process (the object itself, so that no other ever gets its place).
        self.known: dict[tuple[Membership, str], tuple[int, int]] = {}
        self.own: dict[Membership, int] = {}
        self.accusers: set[str] = set()
        self.highest: defaultdict[str, int] = defaultdict(int)

    def _sent(self, sender: str, tell: Tell) -> None:
        super()._sent(sender, tell)
        message = tell.message
        if sender not in self.roster or not isinstance(message, MembershipMessage):
            return
        view = self.views[sender]
        assert message.incarnation == view.incarnation >= self.own.get(view, 0)
        self.own[view] = view.incarnation
        self.highest[sender] = max(self.highest[sender], view.incarnation)
        assert len(message.updates) <= self.pace.piggyback_max
        assert tell.to in self.roster - {sender}
        assert len({update.node for update in message.updates}) == len(message.updates)
        for update in message.updates:
            assert self.roster >= {update.node, *update.suspected_by}
            assert len(update.suspected_by) <= SUSPECTED_BY_MAX
            self.accusers.update(update.suspected_by)
            assert 0 <= update.incarnation <= self.highest[update.node]

    def look(self) -> None:
        for name, view in self.views.items():
            held = {update.node: precedence(update) for update in view.members()}
            assert held.keys() == self.roster - {name}
            for node, now in held.items():
                before = self.known.get((view, node), (-1, 0))
                assert now >= before
                self.known[view, node] = now


def troubled(seed: int) -> Watched:
    """A small fleet that has gone through all kinds of faults, which are over; some of it is dead for good."""
    rng = Random(seed)
    roster = names(rng.randint(2, 8))
    pace = SwimConfig(
        reprobe=rng.choice((0.3, 0.5, 1.0)), helpers=rng.randint(0, 3), piggyback_max=rng.choice((2, 4, 64))
    )
    conditions = PeerNetworkConditions(
        delay_s=rng.choice((0.0, 0.05, 0.3)),
        message_loss=rng.choice((0, 0.1, 0.4)),
        message_duplicates=rng.choice((0, 0.3)),
    )
    world = Watched(roster, seed=seed, pace=pace, conditions=conditions)
    world.start(rng.sample(roster, rng.randint(1, len(roster))))
    world.hosts.start("liar", Liar(roster, seed))
    while world.clock.now < FAULTY_S:
        world.hosts.run(world.clock.now + rng.expovariate(0.5))
        world.look()
        one = rng.choice(roster)
        match rng.randrange(8):
            case 0:
                world.hosts.split(rng.sample(roster, len(roster) // 2))
            case 1:
                world.hosts.heal()
            case 2:
                world.hosts.cut(one, rng.choice(roster))
            case 3 if one in world.views:
                world.hosts.stall(one, rng.uniform(0.1, 8.0))
            case 4 if one in world.views:
                world.kill([one])
            case 5 if one in world.views:
                world.leave(one)
            case _ if one not in world.views:  # half of them have kept their incarnation
                world.start([one], rng.choice((0, world.highest[one])))
    world.hosts.set_conditions(PeerNetworkConditions(delay_s=0.02))
    world.hosts.heal()
    if not world.views:
        world.start(roster[:1])
    return world


@pytest.mark.parametrize(
    "seeds",
    [
        *extended((range(first, first + 20) for first in range(0, 200, 20)), but=[range(20)]),
        *(pytest.param(range(first, first + 200), marks=pytest.mark.nightly) for first in range(1000, 3000, 200)),
    ],
    ids=lambda seeds: f"from-{seeds.start}",
)
def test_when_the_faults_are_over_all_agree(seeds: range) -> None:
    """Every peer that runs is alive in every view, and no other is."""
    for seed in seeds:
        world = troubled(seed)
        took = world.until(BOUND_S, step_s=1.0)
        world.look()
        assert took is not None, (seed, {name: sorted(view.live()) for name, view in world.views.items()})


def test_the_same_seed_gives_the_same_run() -> None:
    one, two = troubled(12), troubled(12)
    one.until(BOUND_S)
    two.until(BOUND_S)
    assert (one.messages, one.bytes, one.events) == (two.messages, two.bytes, two.events)
    assert one.messages > 200


def settled(n: int, seed: int, **kw) -> Watched:
    """A fleet in which all know of all."""
    world = Watched(names(n), seed=seed, **kw)
    world.start()
    assert world.until(15.0) is not None
    return world


@pytest.mark.parametrize("n", [2, 8, 32])
def test_strangers_never_enter(n: int) -> None:
    world = settled(n, 1)
    world.hosts.start("liar", Liar(names(n), 1))
    world.hosts.run(world.clock.now + 20)
    world.look()
    assert world.agree()
    assert world.false_deaths == []
    assert {event.text for _, event in world.events if event.kind == "refusal"} == {"liar: is not admitted"}


@pytest.mark.parametrize("seed", SAMPLE_OF_SEEDS)
def test_a_crashed_peer_is_dead_in_all_views(seed: int) -> None:
    world = settled(8, seed)
    world.kill(["peer-003"])
    assert world.until(25.0) is not None
    world.hosts.run(world.clock.now + 60.0)
    assert world.agree()
    assert world.false_deaths == []


@pytest.mark.parametrize("seed", SAMPLE_OF_SEEDS)
def test_a_split_of_eight_is_over_ten_seconds_after_it_heals(seed: int) -> None:
    world = settled(8, seed)
    left, right = halves(names(8))
    world.hosts.split(left)
    world.deaths_expected = True
    world.hosts.run(world.clock.now + 120.0)
    for side in (left, right):
        assert all(world.views[name].live() == frozenset(side) - {name} for name in side)
    world.hosts.heal()
    world.deaths_expected = False
    assert world.until(10.0) is not None
    world.hosts.run(world.clock.now + 60.0)
    assert world.agree()
    assert world.false_deaths == []


@pytest.mark.parametrize("seed", SAMPLE_OF_SEEDS)
def test_one_message_in_ten_may_be_lost_among_eight(seed: int) -> None:
    world = settled(8, seed)
    world.hosts.set_conditions(PeerNetworkConditions(message_loss=0.1, delay_s=0.02))
    world.hosts.run(world.clock.now + 300.0)
    assert world.false_deaths == []
    assert world.agree()


def test_lifeguard_is_worth_it() -> None:
    """One message in five is lost; beside it plain SWIM, with suspicions that last as long as Lifeguard's mostly do."""
    found = {}
    for name, pace in (
        ("swim", SwimConfig(health_max=0, suspicion=3.0, slack=1.0, buddy=False)),
        ("lifeguard", SwimConfig()),
    ):
        world = settled(8, 1, pace=pace)
        world.hosts.set_conditions(PeerNetworkConditions(message_loss=0.2))
        world.hosts.run(world.clock.now + 300.0)
        found[name] = len(world.false_deaths)
    assert found["swim"] >= 10
    assert found["lifeguard"] <= found["swim"] / 5


def test_who_is_held_up_accuses_nobody() -> None:
    """The others give it up meanwhile; when it goes on it finds a pile of messages, and blames no peer for the rest."""
    world = settled(8, 1)
    for _ in range(10):
        world.hosts.run(world.clock.now + 0.1)  # so that it happens in all parts of a turn
        world.hosts.stall("peer-003", 20.0)
        world.hosts.run(world.clock.now + 19.0)
        assert len(world.given_up_by("peer-003")) == 7
        assert world.until(11.0) is not None
    assert world.accusers == set(names(8)) - {"peer-003"}


def test_a_peer_with_a_lost_disk_is_alive_again() -> None:
    world = settled(8, 1)
    world.kill(["peer-003"])
    assert world.until(25.0) is not None
    for incarnation in (0, 0):
        world.start(["peer-003"], incarnation)
        assert world.until(5.0) is not None
        assert {held.incarnation for held in world.views["peer-001"].members() if held.node == "peer-003"} != {0}
        world.kill(["peer-003"])


def test_a_peer_that_starts_anew_unnoticed_knows_all_at_once() -> None:
    world = settled(32, 1)
    world.kill(["peer-003"])
    world.start(["peer-003"])
    world.hosts.run(world.clock.now + 0.1)
    assert world.agree()


def test_goodbyes_are_believed_sooner_than_silence() -> None:
    world = settled(8, 1)
    world.leave("peer-003")
    assert (world.until(5.0) or 0.0) < 3.0
    assert all(view.state_of("peer-003") == "left" for view in world.views.values())


def test_the_roster_decides_who_may_be_there() -> None:
    world = settled(8, 1)
    world.admit(names(7))
    world.hosts.run(world.clock.now + 20.0)
    assert world.agree()
    assert all(view.live() == world.roster - {name} for name, view in world.views.items() if name in world.roster)
    assert "peer-007: is not admitted" in {event.text for _, event in world.events}
    world.admit(names(9))
    world.start(["peer-008"])
    assert world.until(20.0) is not None


def test_what_all_this_costs() -> None:
    """A ping and its pong for each peer and second; a ping more in two seconds while a peer is dead."""
    for n in (8, 16):
        world = settled(n, 1)
        world.hosts.run(world.clock.now + 60.0)
        before = world.messages
        world.hosts.run(world.clock.now + 100.0)
        assert world.messages - before == pytest.approx(2 * 100 * n, rel=0.03)
        world.kill(["peer-003"])
        world.hosts.run(world.clock.now + 60.0)
        before = world.messages
        world.hosts.run(world.clock.now + 100.0)
        assert world.messages - before == pytest.approx(2.5 * 100 * (n - 1), rel=0.05)


def test_bytes_are_about_those_of_json() -> None:
    for updates in (0, 1, 20):
        news = tuple(
            MemberUpdate(f"peer-{i:03}", list(RANK)[i % 4], i, ("peer-001",) * (i % 3)) for i in range(updates)
        )
        for message in (Ping("peer-001", 3, 12345, news), PingRequest("peer-001", 3, 12345, "peer-002", news)):
            text = json.dumps(asdict(message), separators=(",", ":"))
            assert encoded_size(message) == pytest.approx(len(text), abs=30)
