"""Peers that live and cannot call each other; and peers whose models differ too much to be exchanged."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.gossip.gossip_state import LivePeers
from shoal.core.gossip.termination import TerminationRule
from shoal.core.job.job_plan import JobPlan
from shoal.core.mixing.partner_search import SKIPPED_MAX_S, PartnerReachability
from shoal.core.protocol.machine import Timer
from shoal.core.protocol.peer_message import (
    ExchangeAbort,
    ExchangeCommit,
    ExchangeDeny,
    ExchangeGrant,
    ExchangeOffer,
    ExchangeRequest,
    PeerMessage,
)
from shoal.mixing.pairwise import Pairwise
from shoal.sim.hosts.gossip_world import GossipWorld
from shoal.sim.hosts.peers import GossipSetup
from shoal.sim.hosts.toy_models import ToyLearner, toy_tree
from shoal.sim.network.faults import PeerNetworkConditions
from tests.mixing.test_pairwise import pair, up_to_slot

MOVED = toy_tree((4.0, 0.0, 0.0), 1)


class Parted(GossipWorld):
    """Nothing passes between n1 and three of the others, which are alive, as all peers know."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.exchanges = Counter[str]()

    def send(self, source: str, target: str, message: PeerMessage) -> None:
        if {source, target} in [{"n1", other} for other in ("n2", "n3", "n4")]:
            return
        if isinstance(message, ExchangeCommit):
            self.exchanges.update((source, target))
        super().send(source, target, message)


def parted(rounds: int, until_s: float, mixing: Pairwise | None = None) -> Parted:
    names = [f"n{number}" for number in range(1, 7)]
    start = {"model": toy_tree((1.0, 2.0, 3.0), 0)}
    shared = GossipSetup(
        JobPlan(1, seed=1), Algorithm(), (mixing or Pairwise()).mixer, start, TerminationRule(rounds), 1
    )
    swarm = Parted(
        shared,
        {name: ToyLearner(number) for number, name in enumerate(names, 1)},
        dict.fromkeys(names, 1.0),
        dict.fromkeys(names, 1.0),
        conditions=PeerNetworkConditions(delay_s=0.01),
    )
    swarm.run(until_s)
    return swarm


def test_who_cannot_be_reached_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each draw of it cost ten seconds without another exchange."""
    found = parted(10_000, 200.0).exchanges
    monkeypatch.setattr(PartnerReachability, "record_miss", lambda self, node, now: None)
    before = parted(10_000, 200.0).exchanges
    assert before["n1"] < before["n6"] / 3
    assert found["n1"] > 3 * before["n1"]
    assert found["n1"] > found["n6"] / 4


def test_the_end_does_not_wait_for_meetings_with_those_that_cannot_be_met() -> None:
    swarm = parted(10, 2000.0)
    assert swarm.over()
    assert swarm.conservation.variance() < 0.01 * swarm.conservation.unmixed_variance()


def test_it_is_tried_again_less_and_less_often_and_for_ever() -> None:
    reach = PartnerReachability(10.0)
    now, pauses = 0.0, []
    for _ in range(20):
        reach.record_miss("b", now)
        pauses.append(reach.skipped_until("b") - now)
        now = reach.skipped_until("b")
    assert pauses[:4] == [10.0, 20.0, 40.0, 80.0]
    assert max(pauses) == pauses[-1] == SKIPPED_MAX_S
    assert reach.unanswering == {"b"}
    reach.record_answer("b")
    assert reach.skipped_until("b") < 0
    reach.record_miss("b", now)
    reach.retain(frozenset("c"))
    assert reach.skipped_until("b") < 0, "it was gone, and is back"


def test_the_only_one_that_there_is_is_asked_all_the_same() -> None:
    a, _, _ = pair()
    a.learn(MOVED)
    for second in (0.0, 10.0, 11.0):
        a.feed(Timer(), second)
    assert len([one for one in a.sent if isinstance(one[1], ExchangeRequest)]) == 2


def test_who_has_died_is_not_waited_for() -> None:
    a, _, _ = pair()
    a.learn(MOVED)
    assert a.gossip.mixer.is_busy
    a.feed(LivePeers(frozenset("a")), 1.0)
    assert not a.gossip.mixer.is_busy


# Models of which one is far longer than the other


def test_models_that_would_be_refused_are_not_sent() -> None:
    """A peer that has learned nothing yet, and one that has: as it was, the model crossed and was refused then."""
    a, b, _ = pair()
    b.gossip.me.mixed = toy_tree((0.0, 0.0, 0.0), 0)
    a.learn(toy_tree((500.0, 0.0, 0.0), 1))
    reserve = a.said(ExchangeRequest)
    assert reserve.norm == pytest.approx(501.0, rel=0.01)
    b.feed(reserve)
    assert "more than 100 times" in b.said(ExchangeDeny).why
    b.gossip.me.mixed = toy_tree((20.0, 0.0, 0.0), 0)
    b.feed(ExchangeRequest("a", ("a", 1, 9), reserve.norm), 1.0)
    assert isinstance(b.said(ExchangeGrant), ExchangeGrant), "at once, when its own has grown"


def test_nor_is_one_that_has_grown_since_it_was_announced() -> None:
    a, b, _ = pair()
    slot = up_to_slot(a, b)
    a.gossip.me.mixed = toy_tree((5000.0, 0.0, 0.0), 0)
    a.feed(slot)
    never = a.said(ExchangeAbort)
    assert not [one for one in a.sent if isinstance(one[1], ExchangeOffer)]
    b.feed(never)
    assert not b.gossip.mixer.is_busy, "the slot is free again"


def test_after_a_zero_start_peers_mix() -> None:
    """Each learns in steps of hundreds, from nothing."""

    class Strider(ToyLearner):
        def train(self, *given: Any, **more: Any) -> Any:
            found = super().train(*given, **more)
            self._model = toy_tree((300.0 * int(self._model["seen"]), 200.0 * self._number, 0.0), 0)
            return found

    names = ["n1", "n2", "n3"]
    start = {"model": toy_tree((0.001, 0.0, 0.0), 0)}
    shared = GossipSetup(JobPlan(1, seed=1), Algorithm(), Pairwise().mixer, start, TerminationRule(6), 1)
    learners = {name: Strider(number) for number, name in enumerate(names, 1)}
    swarm = GossipWorld(shared, learners, dict.fromkeys(names, 1.0), {"n1": 0.5, "n2": 1.0, "n3": 5.0})
    assert swarm.run(1000.0)
    for peer in swarm.peers.values():
        assert peer.gossip is not None
        assert set(peer.gossip.me.counts.version_vector) == set(names)
