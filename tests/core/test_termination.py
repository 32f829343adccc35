"""When a peer may go, by hand: who must have learned, who must be near, who is waited for."""

from __future__ import annotations

from random import Random

import pytest

from shoal.core.errors import InvalidJob
from shoal.core.gossip.gossip import RoundRetry
from shoal.core.gossip.gossip_state import GossipState, LivePeers, RoundCounts
from shoal.core.gossip.termination import Termination, TerminationRule
from shoal.sim.hosts.toy_models import toy_tree
from shoal.sim.network.blobs import MemoryBlobs


class One:
    """A peer `a` that has made its three rounds, and two others."""

    def __init__(self, *, in_step: bool = False, **more: float) -> None:
        self.draining = Termination(TerminationRule(3, **more), in_step=in_step)  # type: ignore[arg-type]
        peers, counts = LivePeers(frozenset("bc")), RoundCounts({"a": 3}, rounds=3, rounds_done=True)
        model = {"model": toy_tree((1.0, 0.0, 0.0), 0)}
        self.me = GossipState("a", 1, 1.0, model, MemoryBlobs(), Random(1), 3, peers, counts)

    def after(self, now: float, *met: tuple[str, float], **seen: int) -> bool:
        """It has met these, and heard of that many rounds: may it go?"""
        self.me.counts.merge(seen)
        for partner, distance in met:
            self.me.record_distance(partner, distance)
        return self.draining.may_leave(self.me, now)


def test_it_goes_when_all_have_learned_and_all_are_near() -> None:
    one = One()
    assert not one.after(0.0, ("b", 0.0), ("c", 0.0), b=2, c=3)
    assert not one.after(1.0, b=3), "what was met before all had learned says nothing"
    assert not one.after(2.0, ("b", 0.0))
    assert one.me.counts.version_vector["a"] == 3
    assert not one.after(3.0, ("c", 0.0))
    assert one.me.counts.version_vector["a"] == 4, "it says that it is near"
    assert not one.after(4.0, b=4)
    assert one.after(5.0, c=4)
    assert one.draining.has_converged
    one.me.peers = LivePeers(frozenset())
    assert one.after(6.0)
    assert one.draining.has_converged, "the others have gone before it"


def test_who_ends_otherwise_does_not_say_that_models_are_one() -> None:
    silent, far, alone = One(silence_s=60.0), One(final_exchanges_max=1), One()
    silent.after(0.0, b=3, c=3)
    silent.after(1.0, ("b", 0.0))
    assert silent.after(62.0)
    far.after(0.0, b=4, c=4)
    assert far.after(1.0, ("b", 0.5))
    alone.me.peers = LivePeers(frozenset())
    assert alone.after(0.0)
    assert [ended.draining.has_converged for ended in (silent, far, alone)] == [False] * 3


def test_a_meeting_with_one_that_is_far_begins_it_anew() -> None:
    one = One()
    one.after(0.0, b=3, c=3)
    one.after(1.0, ("b", 0.0), ("c", 0.0), b=4, c=4)
    assert one.after(2.0)
    assert not one.after(3.0, ("b", 0.5))
    assert one.me.counts.version_vector["a"] == 5, "it takes back that it is near"
    assert not one.after(4.0, ("b", 0.0)), "c has not been met since this model was moved"
    assert one.after(4.0, ("c", 0.0))
    assert one.me.counts.version_vector["a"] == 6
    assert not one.after(5.0, b=5)
    assert one.after(6.0, b=6)


def test_it_ends_after_so_many_meetings_that_were_far_or_when_nothing_is_new() -> None:
    one = One(final_exchanges_max=3, silence_s=60.0)
    one.after(0.0, b=4, c=4)
    assert [one.after(1.0 + n, ("b", 0.5)) for n in range(3)] == [False, False, True]
    other = One(silence_s=60.0)
    assert not other.after(0.0, b=3, c=3)
    assert not other.after(59.0, ("b", 0.0))
    assert other.after(60.0)


def test_it_waits_for_ever_for_one_that_is_there_and_a_while_for_one_that_may_come_back() -> None:
    one = One(linger_s=20.0, silence_s=60.0)
    assert not one.after(0.0, b=4, c=2)
    assert not one.after(10_000.0)
    one.me.peers = LivePeers(frozenset("b"), frozenset("c"))
    assert not one.after(10_000.0)
    assert not one.after(10_019.0, ("b", 0.0))
    assert one.after(10_020.0)
    one.me.peers = LivePeers(frozenset("bc"), frozenset())
    assert not one.after(10_021.0)


def test_it_waits_for_one_that_only_others_can_reach() -> None:
    one = One(silence_s=60.0)
    one.me.peers = LivePeers(frozenset("b"), unreachable=frozenset("c"))
    one.after(0.0, b=4, c=2)
    assert not one.after(1000.0, ("b", 0.0))
    one.after(1001.0, c=4)
    assert one.after(1002.0, ("b", 0.0))


def test_who_comes_back_is_met_again() -> None:
    one = One()
    one.after(0.0, b=4, c=4)
    one.me.peers = LivePeers(frozenset("b"), frozenset("c"))
    one.after(1.0, ("b", 0.0))
    one.me.peers = LivePeers(frozenset("bc"), frozenset())
    assert not one.after(2.0)
    assert not one.after(3.0, ("c", 0.0))
    assert one.after(4.0, ("b", 0.0))


@pytest.mark.parametrize("beyond", ["", "bc"])
def test_who_can_reach_nobody_goes_at_once(beyond: str) -> None:
    one = One()
    one.me.peers = LivePeers(frozenset(), unreachable=frozenset(beyond))
    one.after(0.0)
    assert one.after(0.0)


def test_in_step_the_last_round_with_whomever_counts() -> None:
    one = One(in_step=True)
    one.after(0.0, b=4, c=4)
    assert not one.after(1.0, ("b", 0.5), ("c", 0.0))
    assert one.after(2.0, ("c", 0.0))
    assert one.draining.pause_s() == one.draining.policy.rest_s


def test_pauses_grow_while_nothing_is_new() -> None:
    one = One()
    pauses = []
    for _ in range(20):
        one.after(0.0, ("b", 0.0), b=2, c=2)
        one.draining.count_turn()
        pauses.append(one.draining.pause_s())
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (3.0, 60.0)
    one.draining.count_turn()
    assert one.draining.pause_s() == 60.0
    one.after(1.0, b=3)
    one.draining.count_turn()
    assert one.draining.pause_s() == 2.0, "nobody was met"
    assert one.draining.pause_s() == 2.0
    one.after(2.0, c=3)
    one.after(2.0)
    assert one.draining.pause_s() == 0.1


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 0},
        {"convergence_tol": 0.0},
        {"partners": 0},
        {"rest_s": 5.0},
        {"silence_s": 0.0},
        {"final_exchanges_max": -1},
    ],
)
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidJob):
        TerminationRule(**{"rounds": 3, **wrong})  # type: ignore[arg-type]


def test_a_turn_is_taken_after_a_pause_and_when_the_byte_budget_allows_it() -> None:
    one = One()
    assert one.draining.take_turn(one.me, 0.0)
    one.draining.plan_turn(one.me, 0.0)
    assert one.draining.turn_at == one.draining.policy.rest_s
    assert not one.draining.take_turn(one.me, 0.01), "the pause is not over"
    one.me.convergence.blocked_until = 50.0
    assert not one.draining.take_turn(one.me, 49.0), "bytes are short"
    assert one.draining.turn_at == 50.0
    assert one.draining.take_turn(one.me, 50.0)


def test_a_failed_round_is_tried_again_after_pauses_that_double() -> None:
    retry = RoundRetry()
    assert not retry.is_pending
    assert [retry.fail(10.0) for _ in range(8)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    retry.expire(69.0)
    assert retry.is_pending
    retry.expire(70.0)
    assert not retry.is_pending
    retry.succeed()
    assert retry.fail(0.0) == 1.0
