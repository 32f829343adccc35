"""The counters that an admitted peer claims are bounded, field by field."""

from __future__ import annotations

from random import Random

import pytest

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.gossip.counter_bounds import (
    INCARNATION_LEAP,
    ROUND_LEAP,
    ROUNDS_SPARE,
    STRANGERS_MAX,
    TERM_LEAP,
    VERSION_LEAP,
    ImplausibleCount,
)
from shoal.core.gossip.gossip import GossipPeer, ModelRejected, PeerEffect
from shoal.core.gossip.gossip_state import GossipState, LivePeers
from shoal.core.gossip.termination import TerminationRule
from shoal.core.job.job_plan import JobPlan
from shoal.core.membership.dissemination import INCARNATION_MAX
from shoal.core.protocol.machine import Tell, Timer
from shoal.core.protocol.message import CoordinatorAlive
from shoal.core.protocol.peer_message import (
    CoordinatorStatus,
    DeclareFailover,
    MemberUpdate,
    ModelOffer,
    Ping,
    PushShare,
    RingChunk,
    StateSync,
)
from shoal.mixing.all_reduce import AllReduce
from shoal.mixing.neighbors import Neighbors
from shoal.mixing.push_sum import PushSum
from shoal.sim.hosts.toy_models import toy_tree
from shoal.sim.network.blobs import MemoryBlobs
from tests.core.membership_scenario import begun
from tests.core.test_failover_peer import Bench

TREE = toy_tree((1.0, 2.0, 3.0), 0)


def blamed(effects: list[PeerEffect]) -> set[str]:
    return {one.node for one in effects if isinstance(one, ImplausibleCount)}


# Terms and versions: a word about the hub


def lonely(term: int = 3) -> Bench:
    """A node that has heard the hub in this term, and hears it no more."""
    bench = Bench()
    bench.feed(bench.task(term), 0.0)
    bench.feed(CoordinatorAlive(term), 0.5)
    bench.feed(Timer(), 16.0)
    return bench


@pytest.mark.parametrize("term", [2**62, 2**53, 3 + 2 * TERM_LEAP + 1])
@pytest.mark.parametrize("kind", ["declare", "bulletin"])
def test_a_term_out_of_reach_is_refused_and_its_sender_blamed(term: int, kind: str) -> None:
    bench = lonely()
    if kind == "declare":
        bench.feed(DeclareFailover("b", term, 0, bench.model, "x"), 17.0)
    else:
        bench.feed(CoordinatorStatus("b", term, False, False, 0, None), 17.0)
    assert blamed(bench.effects) == {"b"}
    bench.feed(Timer(), 40.0)
    bench.feed(CoordinatorStatus("c", 3, False, False, 0, None), 40.5)
    bench.feed(Timer(), 41.0)
    assert bench.peer.gossip is not None, "it goes away with those that are right"
    assert bench.peer.term == 4


def test_a_term_between_one_and_two_leaps_is_refused_and_nobody_blamed() -> None:
    bench = lonely()
    bench.feed(DeclareFailover("b", 3 + TERM_LEAP + 1, 0, bench.model, "x"), 17.0)
    assert blamed(bench.effects) == set()
    assert bench.peer.gossip is None
    bench.feed(DeclareFailover("b", 3 + TERM_LEAP, 0, bench.model, "x"), 18.0)
    assert bench.peer.term == 3 + TERM_LEAP


def test_leaps_do_not_add_up() -> None:
    """A value accepted from hearsay does not justify the next leap, not in the next process either."""
    bench = lonely()
    bench.feed(DeclareFailover("b", 3 + TERM_LEAP, 0, bench.model, "x"), 17.0)
    bench.feed(DeclareFailover("b", 3 + 2 * TERM_LEAP, 0, bench.model, "x"), 18.0)
    assert bench.peer.term == 3 + TERM_LEAP
    assert bench.peer.snapshot()["heard"] == 3


def test_a_version_out_of_reach_is_refused() -> None:
    bench = lonely()
    held = bench.peer.base.version
    bench.feed(DeclareFailover("b", 4, held + 2 * VERSION_LEAP + 2, bench.model, "x"), 17.0)
    assert blamed(bench.effects) == {"b"}
    assert (bench.peer.base.version, bench.peer.gossip) == (held, None)


# Version vectors and rounds: mixing


class Mixing:
    """Peer `a` of a, b and c, which has made no round yet."""

    def __init__(self, mixer, drain: TerminationRule | None = TerminationRule(10)) -> None:  # noqa: B008 - frozen
        self.blobs = MemoryBlobs()
        self.body = self.blobs.put({"model": TREE})
        me = GossipState("a", 1, 5.0, {"model": TREE}, self.blobs, Random(1))
        self.gossip = GossipPeer(JobPlan(1), Algorithm(), me, mixer, termination=drain)
        self.gossip.start(0.0)
        self.gossip.on(LivePeers(frozenset("abc"), roster=frozenset("abc")), 0.0)

    @property
    def seen(self) -> dict[str, int]:
        return self.gossip.me.counts.version_vector

    def push(self, number: int, seen: dict[str, int]) -> list[PeerEffect]:
        return self.gossip.on(PushShare("b", ("b", 1, number), 1.0, self.body, seen), 1.0)


@pytest.mark.parametrize("count", [2**63 - 1, 10 + ROUNDS_SPARE + 1])
def test_a_count_that_cannot_be_is_not_taken_over_and_its_sender_is_blamed(count: int) -> None:
    bench = Mixing(PushSum().mixer())
    effects = bench.push(1, {"a": count, "b": 4, "c": 2})
    assert blamed(effects) == {"b"}
    assert bench.seen == {"b": 4, "c": 2}, "the step itself is taken: both sides must agree on that"
    assert bench.gossip.mixer.counters()["refused"] == 0


def test_names_that_the_roster_does_not_have_are_not_taken_over() -> None:
    bench = Mixing(PushSum().mixer())
    assert blamed(bench.push(1, {"b": 1, "new": 3})) == set(), "perhaps it knows a newer roster"
    many = {f"x{number}": 1 for number in range(STRANGERS_MAX + 1)}
    assert blamed(bench.push(2, {"b": 2, **many})) == {"b"}
    assert bench.seen == {"b": 2}


def test_a_newer_roster_lets_names_in() -> None:
    bench = Mixing(PushSum().mixer())
    bench.gossip.on(LivePeers(frozenset("abc"), roster=frozenset(["a", "b", "c", "new"])), 1.0)
    bench.push(1, {"b": 1, "new": 3})
    assert bench.seen == {"b": 1, "new": 3}


def test_what_is_declined_is_looked_at_as_well() -> None:
    bench = Mixing(PushSum().mixer())
    push = PushShare("b", ("b", 1, 1), 1.0, bench.body, {"a": 2**63 - 1})
    assert blamed(bench.gossip.on(ModelRejected(push, "quarantine"), 1.0)) == {"b"}


def test_the_own_count_never_leaves_what_others_believe() -> None:
    """After a liar's highest possible count, the next count mutes no peer."""
    bench = Mixing(PushSum().mixer())
    bench.push(1, {"a": 10 + ROUNDS_SPARE})
    bench.gossip.me.counts.merge({"a": 10 + ROUNDS_SPARE + 1})
    assert bench.seen["a"] == 10 + ROUNDS_SPARE


@pytest.mark.parametrize("round_", [2**63 - 1, ROUND_LEAP + 1])
def test_a_round_of_mixing_out_of_reach_is_not_followed(round_: int) -> None:
    bench = Mixing(Neighbors("complete").mixer())
    effects = bench.gossip.on(ModelOffer("b", round_, bench.body), 1.0)
    assert blamed(effects) == {"b"}
    bench.gossip.mixer.begin_turn(bench.gossip.me, 2.0)
    assert bench.gossip.mixer.counters()["round"] == 1
    ring = Mixing(AllReduce().mixer())
    piece = ring.blobs.put({"piece": TREE})
    assert blamed(ring.gossip.on(RingChunk("b", round_, 0, 0, 1.0, piece, group="x"), 1.0)) == {"b"}
    ring.gossip.mixer.begin_turn(ring.gossip.me, 2.0)
    assert ring.gossip.mixer.counters()["round"] == 1


# How often a peer had to overrule others


@pytest.mark.parametrize("state", ["left", "dead", "suspect", "alive"])
@pytest.mark.parametrize("incarnation", [INCARNATION_MAX, INCARNATION_MAX - 1, 5 * INCARNATION_LEAP])
def test_an_incarnation_that_its_peer_never_said_is_not_believed(state, incarnation: int) -> None:
    peer = begun("bcd")
    peer.on(Ping("c", 0, 1), 0.1)
    effects = peer.on(StateSync("b", 0, (MemberUpdate("c", state, incarnation),)), 0.2)
    assert blamed(effects) == {"b"}
    assert peer.state_of("c") == "alive"


def test_within_a_few_leaps_it_is_passed_over_and_nobody_is_blamed() -> None:
    peer = begun("bcd")
    peer.on(Ping("c", 0, 1), 0.1)
    assert blamed(peer.on(StateSync("b", 0, (MemberUpdate("c", "left", INCARNATION_LEAP + 1),)), 0.2)) == set()
    assert peer.state_of("c") == "alive"
    peer.on(StateSync("b", 0, (MemberUpdate("c", "left", INCARNATION_LEAP),)), 0.2)
    assert peer.state_of("c") == "left", "so far it can be true"
    peer.on(Ping("c", INCARNATION_LEAP + 1, 2), 0.3)
    assert peer.state_of("c") == "alive"


def test_a_leap_that_came_first_is_given_up_when_its_peer_speaks_and_never_told_on() -> None:
    peer = begun("b")
    peer.on(StateSync("b", 0, (MemberUpdate("c", "left", 2**50),)), 0.1)
    assert peer.state_of("c") == "left", "it never spoke here: nothing is known better"
    told = [one.message.updates for one in peer.on(Ping("d", 0, 1), 0.2) if isinstance(one, Tell)]
    assert all(update.node != "c" for news in told for update in news)
    effects = peer.on(Ping("c", 0, 1), 0.3)
    assert peer.state_of("c") == "alive"
    told = [one.message.updates for one in effects if isinstance(one, Tell) and one.to == "c"]
    assert all(update.incarnation < 2**50 for news in told for update in news)


def test_it_overrules_by_a_leap_at_most_and_once_in_a_period() -> None:
    peer = begun("bcd")
    peer.on(StateSync("b", 0, (MemberUpdate("a", "left", 2**50),)), 1.0)
    assert peer.incarnation == INCARNATION_LEAP
    peer.on(StateSync("b", 0, (MemberUpdate("a", "left", 2**50),)), 1.5)
    assert peer.incarnation == INCARNATION_LEAP
    peer.on(StateSync("b", 0, (MemberUpdate("a", "dead", INCARNATION_LEAP),)), 1.6)
    assert peer.incarnation == INCARNATION_LEAP + 1, "what is of its own time is overruled at once"
    peer.on(StateSync("b", 0, (MemberUpdate("a", "left", 2**50),)), 2.1)
    assert peer.incarnation == 2 * INCARNATION_LEAP + 1


def test_two_updates_about_one_peer_in_one_message_are_a_lie() -> None:
    peer = begun("bcd")
    assert blamed(peer.on(StateSync("b", 0, (MemberUpdate("c", "left", 1), MemberUpdate("c", "alive", 2))), 0.1)) == {
        "b"
    }
