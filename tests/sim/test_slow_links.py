"""Models that take long on their way: they arrive, are mixed, and none is sent again while it is still under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.gossip.mixer import Mixing
from shoal.core.gossip.termination import TerminationRule
from shoal.core.gossip.transfer import Transfer, transfer_id
from shoal.core.job.job_plan import JobPlan
from shoal.core.mixing.exchange_pacing import CEILING_S, TIMES, ExchangeTimeout
from shoal.core.mixing.pairwise_mixer import PairwiseMixer
from shoal.core.protocol.machine import Timer
from shoal.core.protocol.peer_message import ExchangeCommit, ExchangeGrant, ExchangeOffer, ExchangeRequest, PeerMessage
from shoal.mixing.neighbors import Neighbors
from shoal.mixing.pairwise import Pairwise
from shoal.mixing.push_sum import PushSum
from shoal.sim.hosts.gossip_world import GossipWorld
from shoal.sim.hosts.peers import GossipSetup
from shoal.sim.hosts.toy_models import ToyLearner, toy_tree
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.network.faults import PeerNetworkConditions
from tests.mixing.test_pairwise import pair, up_to_slot

MODEL = 10_000_000
MBIT = 125_000.0


class Counted(GossipWorld):
    """Counts messages by their kind, models, and exchanges that came to their end."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.kinds = Counter[str]()
        self.models = 0
        self.settled: set[Any] = set()
        self.copies = Counter[Any]()

    def send(self, source: str, target: str, message: PeerMessage) -> None:
        self.kinds[type(message).__name__] += 1
        self.models += getattr(message, "blob", None) is not None
        self.copies[source, target, transfer_id(message)] += getattr(message, "blob", None) is not None
        if isinstance(message, ExchangeCommit):
            self.settled.add(message.id)
        super().send(source, target, message)

    @property
    def models_per_exchange(self) -> float:
        return self.models / max(1, len(self.settled))


def slow(mixing: Mixing, mbit: float, *, loss: float = 0.0, seed: int = 1, until_s: float = 900.0) -> Counted:
    """Four peers that learn for as long as the test looks: a local round takes half a minute."""
    names = ["n1", "n2", "n3", "n4"]
    conditions = PeerNetworkConditions(delay_s=0.03, message_loss=loss, bytes_per_s=mbit * MBIT)
    start = {"model": toy_tree((1.0, 2.0, 3.0), 0)}
    shared = GossipSetup(JobPlan(1, seed=seed), Algorithm(), mixing.mixer, start, TerminationRule(10_000), seed)
    swarm = Counted(
        shared,
        {name: ToyLearner(number) for number, name in enumerate(names, 1)},
        {name: float(number) for number, name in enumerate(names, 1)},
        dict.fromkeys(names, 30.0),
        conditions=conditions,
        blobs=MemoryBlobs(lambda _: MODEL),
    )
    swarm.run(until_s)
    return swarm


@pytest.mark.parametrize(("mbit", "loss", "least"), [(0.5, 0.0, 3), (2.0, 0.0, 15), (2.0, 0.01, 15), (20.0, 0.01, 60)])
@pytest.mark.parametrize("seed", [1, 2])
def test_exchanges_of_models_that_take_long_are_completed(mbit: float, loss: float, least: int, seed: int) -> None:
    """As it was: at 2 Mbit/s a model takes 40 s one way, and 400 of them were sent for no exchange at all."""
    swarm = slow(Pairwise(), mbit, loss=loss, seed=seed)
    assert len(swarm.settled) >= least
    assert swarm.models <= 2.15 * len(swarm.settled) + 4, "two for each exchange, and those that are open at the end"


def blind(patch: pytest.MonkeyPatch) -> None:
    """Shells do not tell the machine that models move."""
    patch.setattr(PairwiseMixer, "on_transfer", lambda self, transfer, me, now: [])


def hasty(patch: pytest.MonkeyPatch) -> None:
    """No wait is longer than a message takes."""
    blind(patch)
    patch.setattr(ExchangeTimeout, "timeout_s", lambda self, nbytes: self.floor_s)


@pytest.mark.parametrize("plant", [blind, hasty])
def test_it_is_because_models_are_seen_to_move(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    swarm = slow(Pairwise(), 2.0, until_s=500.0)
    assert len(swarm.settled) < 3
    assert swarm.models > 40


@pytest.mark.parametrize("mixing", [Neighbors(), PushSum()], ids=["neighbors", "push_sum"])
def test_no_other_way_of_mixing_sends_again_what_is_under_way(mixing: Mixing) -> None:
    swarm = slow(mixing, 2.0, until_s=600.0)
    assert swarm.models > 20
    assert max(swarm.copies.values()) == 1


def test_patience_follows_bytes_and_the_rate_at_which_they_came() -> None:
    patience = ExchangeTimeout(10.0)
    assert patience.timeout_s(0) == 10.0
    assert patience.timeout_s(10_000_000) == 10.0 + TIMES * 80, "as at 1 Mbit/s, when nothing is known"
    patience.record(0, 1.0)
    assert patience.timeout_s(10_000_000) == 10.0 + TIMES * 80, "no bytes say nothing about the rate"
    patience.record(10_000_000, 40.0)
    assert patience.timeout_s(10_000_000) == 10.0 + TIMES * 40
    assert patience.timeout_s(10**12) == CEILING_S


def test_a_trickle_does_not_keep_its_slot() -> None:
    """A sender of single bytes could hold a peer up without end."""
    a, b, _ = pair()
    xid = up_to_slot(a, b).id
    for second in range(200):
        b.feed(Transfer("a", xid, second, leaving=False), float(second))
    b.feed(ExchangeRequest("c", ("c", 1, 1), b.gossip.me.norm), 200.0)
    assert isinstance(b.said(ExchangeGrant), ExchangeGrant)


def test_a_third_party_keeps_no_slot() -> None:
    a, b, _ = pair()
    xid = up_to_slot(a, b).id
    b.feed(Transfer("c", xid, 1_000_000, leaving=False), 20.0)
    b.feed(Timer(), 31.0)
    b.feed(ExchangeRequest("c", ("c", 1, 1), b.gossip.me.norm), 31.0)
    assert isinstance(b.said(ExchangeGrant), ExchangeGrant)


def test_who_leaves_waits_while_models_move() -> None:
    a, b, _ = pair()
    a.feed(up_to_slot(a, b), 0.0)
    assert 0.0 < a.gossip.mixer.moving_until <= 5.0
    a.feed(Transfer("b", a.said(ExchangeOffer).id, 10, leaving=True), 100.0)
    assert 100.0 < a.gossip.mixer.moving_until <= 105.0
