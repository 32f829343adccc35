"""Conserving pairwise exchange: by hand where one message decides, and in any interleaving."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.algorithm.filter import Filters
from shoal.core.errors import InvalidJob
from shoal.core.gossip.gossip import GossipPeer, PeerEffect, PeerEvent
from shoal.core.gossip.gossip_state import GossipState, LivePeers
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.tree import Tree
from shoal.core.protocol.machine import JobEvent, MachineState, Save, TaskDone, TaskResult, Tell, Timer, Work
from shoal.core.protocol.peer_message import (
    ExchangeAbort,
    ExchangeAccept,
    ExchangeCommit,
    ExchangeDeny,
    ExchangeGrant,
    ExchangeOffer,
    ExchangeQuery,
    ExchangeRequest,
    MixingMessage,
)
from shoal.filters.half import Half
from shoal.filters.quantize import Quantize
from shoal.mixing.pairwise import Pairwise
from shoal.sim.checks.conservation import MassConservation
from shoal.sim.hosts.toy_models import toy_tree
from shoal.sim.network.blobs import MemoryBlobs

START = toy_tree((1.0, 2.0, 3.0), 0)


class One:
    """A peer on a workbench: what it sends is kept, what it saves is its disk."""

    def __init__(
        self,
        name: str,
        weight: float,
        blobs: MemoryBlobs,
        policy: Pairwise,
        books: MassConservation | None = None,
        filters: Filters = (),
    ) -> None:
        self.name, self.weight, self.blobs, self.policy, self.books = name, weight, blobs, policy, books
        self.filters = filters
        self.disk: dict[str, Any] | None = None
        self.number = 0
        self.sent: list[tuple[str, MixingMessage]] = []
        self.events: list[JobEvent] = []
        self.work: Work | None = None
        self.live: frozenset[str] = frozenset()
        self.start()

    def start(self) -> None:
        """A new process over the disk."""
        self.number += 1
        model, peers = {"model": START}, LivePeers(self.live)
        me = GossipState(self.name, self.number, self.weight, model, self.blobs, Random(self.number), peers=peers)
        me.filters = self.filters
        plan, mixer = JobPlan(1, seed=1), self.policy.mixer()
        if self.disk is None:
            self.gossip = GossipPeer(plan, Algorithm(), me, mixer)
        else:
            self.gossip = GossipPeer.restore(plan, Algorithm(), me, mixer, self.disk)
        self.take(self.gossip.start(0.0))

    def feed(self, event: PeerEvent, now: float = 0.0, spared: int = 1000) -> None:
        """One event; the process dies after `spared` of its effects."""
        self.take(self.gossip.on(event, now), isinstance(event, TaskDone), spared)

    def take(self, effects: list[PeerEffect], learned: bool = False, spared: int = 1000) -> None:
        """Carry effects out, in their order."""
        for effect in effects[:spared]:
            if isinstance(effect, Save) and isinstance(effect.what, MachineState):
                self.disk = effect.what.state
                if self.books is not None:
                    self.books.record_state(self.name, effect.what.state, learned)
            elif isinstance(effect, Tell):
                self.sent.append((effect.to, effect.message))  # type: ignore[arg-type]
            elif isinstance(effect, Work):
                self.work = effect
            elif isinstance(effect, JobEvent):
                self.events.append(effect)
        if spared < len(effects):
            self.start()

    def learn(self, moved: Tree, now: float = 0.0, spared: int = 1000) -> None:
        """A local round ends."""
        assert self.work is not None
        self.feed(TaskDone(self.work.task.id, TaskResult(1.0, self.blobs.put({"model": moved}))), now, spared)

    def said(self, kind: type) -> Any:
        """The last message of that kind, taken out of the post."""
        to, message = next(one for one in reversed(self.sent) if isinstance(one[1], kind))
        self.sent.remove((to, message))
        return message


PLAIN = Pairwise()


def pair(policy: Pairwise = PLAIN, filters: Filters = ()) -> tuple[One, One, MemoryBlobs]:
    blobs = MemoryBlobs()
    a, b = (One(name, weight, blobs, policy, filters=filters) for name, weight in (("a", 1.0), ("b", 3.0)))
    a.live = b.live = frozenset({"a", "b"})
    a.feed(LivePeers(a.live))
    b.feed(LivePeers(b.live))
    return a, b, blobs


def up_to_slot(a: One, b: One) -> ExchangeGrant:
    """`a` learns, and `b` has kept a slot for it."""
    a.learn(toy_tree((4.0, 0.0, 0.0), 1))
    b.feed(a.said(ExchangeRequest))
    slot = b.said(ExchangeGrant)
    assert isinstance(slot, ExchangeGrant)
    return slot


def first(one: One) -> float:
    return float(one.gossip.me.model["w"][0])


def test_both_take_opposite_weighted_steps() -> None:
    a, b, _ = pair()
    a.feed(up_to_slot(a, b))
    b.feed(a.said(ExchangeOffer))
    a.feed(b.said(ExchangeAccept))
    assert first(a) == first(b) == 2.0  # (1 * 5 + 3 * 1) / 4
    b.feed(a.said(ExchangeCommit))
    assert not b.gossip.mixer.is_busy
    assert not a.gossip.mixer.is_busy


@pytest.mark.parametrize("filters", [(Half(),), (Quantize(bucket=2),)], ids=["bf16", "8 bits"])
def test_filtered_models_move_both_by_what_both_have_seen(filters: Filters) -> None:
    """Each reckons with its own model as the other has received it: the steps are opposite, to the last digit."""
    a, b, blobs = pair(filters=filters)
    a.learn(toy_tree((0.1234567, 0.7654321, -3.3333333), 1))
    before = [one.gossip.me.model["w"].astype(float) for one in (a, b)]
    b.feed(a.said(ExchangeRequest))
    a.feed(b.said(ExchangeGrant))
    swap = a.said(ExchangeOffer)
    b.feed(swap)
    answer = b.said(ExchangeAccept)
    a.feed(answer)
    mine, theirs = a.gossip.me.open_model(swap.blob)["w"], a.gossip.me.open_model(answer.blob)["w"]
    assert list(mine) != list(before[0]), "it was rounded on its way"
    moved = [one.gossip.me.model["w"] - was for one, was in zip((a, b), before, strict=True)]
    assert moved[0] == pytest.approx(0.75 * (theirs.astype(float) - mine), abs=1e-6)
    assert 1.0 * moved[0] + 3.0 * moved[1] == pytest.approx(0.0, abs=1e-6)
    assert int(a.gossip.me.model["seen"]) == int(b.gossip.me.model["seen"]) == 1, "counters are as they were"
    assert blobs.get(swap.blob)["model"].layout == blobs.get(answer.blob)["model"].layout  # type: ignore[union-attr]


def test_what_filters_round_off_is_no_distance() -> None:
    """Two that hold the same would never be near: each draws another rounding."""
    a, b, _ = pair(filters=(Quantize(bucket=2),))
    for one in (a, b):
        one.gossip.me.mixed = toy_tree((0.1234567, 0.7654321, -3.3333333), 0)
        one.gossip.me.counts.rounds_done = True
    b.gossip.me.publish_model()
    assert b.gossip.me.filter_error > 0
    b.gossip.me.record_distance("a", 1.9 * b.gossip.me.filter_error)
    b.gossip.me.record_distance("a", 9.0 * b.gossip.me.filter_error)
    near, far = (distance for _, distance in b.gossip.me.convergence.distances)
    assert near == 0.0
    assert far > 0.0


def test_an_exchange_costs_what_filters_leave() -> None:
    plain, *_ = pair()
    half, *_ = pair(filters=(Half(),))
    shown = half.gossip.me.publish_model()
    assert half.gossip.me.model_bytes == shown.nbytes == plain.gossip.me.model_bytes - 3 * 2


def test_who_asks_again_is_not_kept_waiting_by_a_slot_of_which_it_has_not_heard() -> None:
    a, b, _ = pair()
    a.learn(toy_tree((4.0, 0.0, 0.0), 1))
    first_asked = a.said(ExchangeRequest)
    b.feed(first_asked)
    assert isinstance(b.said(ExchangeGrant), ExchangeGrant)  # and it is lost
    again = ExchangeRequest("a", (first_asked.id[0], first_asked.id[1], first_asked.id[2] + 1))
    b.feed(again)
    assert b.said(ExchangeGrant).id == again.id
    b.feed(ExchangeOffer("a", first_asked.id, 1.0, 9.0, a.gossip.me.publish_model()))
    assert isinstance(b.said(ExchangeAbort), ExchangeAbort)


def test_who_has_promised_never_to_take_a_step_does_not_even_if_all_comes_again() -> None:
    """The reservation and the model, both late copies: the promise outlives slot and process."""
    a, b, _ = pair()
    a.learn(toy_tree((4.0, 0.0, 0.0), 1))
    reserve = a.said(ExchangeRequest)
    b.feed(reserve)
    a.feed(b.said(ExchangeGrant))
    swap = a.said(ExchangeOffer)
    b.feed(Timer(), 100.0)  # the slot has run out
    b.feed(ExchangeQuery("a", swap.id), 100.0)
    a.feed(b.said(ExchangeAbort), 100.0)
    b.start()
    b.feed(reserve, 101.0)
    b.feed(swap, 101.0)
    assert first(b) == 1.0
    assert first(a) == 5.0
    assert isinstance(b.said(ExchangeAbort), ExchangeAbort)


def test_a_model_that_arrives_twice_is_mixed_once() -> None:
    a, b, _ = pair()
    a.feed(up_to_slot(a, b))
    swap = a.said(ExchangeOffer)
    b.feed(swap)
    one = b.said(ExchangeAccept)
    b.feed(swap, 1.0)
    assert not b.sent, "it is on its way"
    b.feed(swap, 10.0)
    assert b.said(ExchangeAccept) == one
    a.feed(one)
    a.feed(one)
    assert (first(a), first(b)) == (2.0, 2.0)


def test_late_copies_of_a_settled_exchange_change_nothing() -> None:
    a, b, _ = pair()
    a.learn(toy_tree((4.0, 0.0, 0.0), 1))
    reserve = a.said(ExchangeRequest)
    b.feed(reserve)
    a.feed(b.said(ExchangeGrant))
    swap = a.said(ExchangeOffer)
    b.feed(swap)
    a.feed(b.said(ExchangeAccept))
    b.feed(a.said(ExchangeCommit))
    b.feed(reserve)
    assert isinstance(b.said(ExchangeDeny), ExchangeDeny)
    b.feed(swap)
    assert (first(a), first(b)) == (2.0, 2.0)


def test_a_lost_answer_is_asked_for() -> None:
    a, b, _ = pair()
    a.feed(up_to_slot(a, b))
    b.feed(a.said(ExchangeOffer))
    b.sent.clear()
    a.feed(Timer(), 50.0)
    b.feed(a.said(ExchangeQuery), 50.0)
    a.feed(b.said(ExchangeAccept), 50.0)
    assert first(a) == first(b) == 2.0


def test_a_late_step_is_added_to_what_was_learned_meanwhile() -> None:
    a, b, _ = pair()
    a.feed(up_to_slot(a, b))
    b.feed(a.said(ExchangeOffer))
    a.learn(toy_tree((0.0, 0.0, 10.0), 1), 1.0)
    b.learn(toy_tree((0.0, 7.0, 0.0), 1), 1.0)
    a.feed(b.said(ExchangeAccept), 2.0)
    assert first(a) == first(b) == 2.0
    assert float(a.gossip.me.model["w"][2]) == 13.0
    assert float(b.gossip.me.model["w"][1]) == 9.0


def test_one_exchange_at_a_time() -> None:
    a, b, _ = pair()
    up_to_slot(a, b)
    b.feed(ExchangeRequest("c", ("c", 1, 1)))
    assert b.said(ExchangeDeny).why == "in an exchange"


def test_a_third_party_has_no_say() -> None:
    """A peer cannot settle, resolve or answer an exchange of others."""
    a, b, _ = pair()
    a.feed(up_to_slot(a, b))
    swap = a.said(ExchangeOffer)
    b.feed(ExchangeQuery("c", swap.id))
    b.feed(ExchangeOffer("c", swap.id, 1.0, 1.0, swap.blob))
    a.feed(ExchangeAbort("c", swap.id))
    a.feed(ExchangeAccept("c", swap.id, 1.0, 1.0, swap.blob))
    assert not [message for to, message in b.sent if to == "c"]
    assert a.gossip.mixer.is_busy
    b.feed(swap)
    b.feed(ExchangeCommit("c", swap.id))
    assert b.gossip.mixer.is_busy
    a.feed(b.said(ExchangeAccept))
    assert first(a) == first(b) == 2.0


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_mixed(poison: float) -> None:
    a, b, blobs = pair()
    a.feed(up_to_slot(a, b))
    swap = a.said(ExchangeOffer)
    bad = blobs.put({"model": toy_tree((poison, 0.0, 0.0), 0)})
    b.feed(ExchangeOffer("a", swap.id, swap.weight, swap.longest_step, bad))
    assert "not finite" in b.said(ExchangeAbort).why
    assert first(b) == 1.0


def test_a_dishonest_answer_is_not_mixed() -> None:
    a, b, blobs = pair()
    a.feed(up_to_slot(a, b))
    swap = a.said(ExchangeOffer)
    bad = blobs.put({"model": toy_tree((float("nan"), 0.0, 0.0), 0)})
    a.feed(ExchangeAccept("b", swap.id, 3.0, 1.0, bad))
    assert first(a) == 5.0
    assert "not what was agreed on" in a.events[-1].text
    assert not a.gossip.mixer.is_busy


def measured(w: float, var: float) -> Tree:
    """A model with a statistic."""
    return Tree.of({"w": np.full(3, w, np.float32), "bn.var": np.full(3, var, np.float32)}, statistics=["bn.var"])


@pytest.mark.parametrize("var", [-1.0, 1e12])
def test_statistics_that_cannot_be_are_not_mixed(var: float) -> None:
    a, b, blobs = pair()
    grant = up_to_slot(a, b)
    a.gossip.me.mixed, b.gossip.me.mixed = measured(5.0, 2.0), measured(1.0, 2.0)
    a.feed(grant)
    swap = a.said(ExchangeOffer)
    bad = blobs.put({"model": measured(3.0, var)})
    b.feed(ExchangeOffer("a", swap.id, swap.weight, swap.longest_step, bad))
    assert "it must not be mixed" in b.said(ExchangeAbort).why
    assert first(b) == 1.0
    a.feed(ExchangeAccept("b", swap.id, 3.0, 1.0, bad))
    assert "not what was agreed on" in a.events[-1].text
    assert first(a) == 5.0


def test_a_step_far_longer_than_usual_is_shortened_on_both_sides() -> None:
    a, b, _ = pair(Pairwise(models_per_round=100, burst=100))
    for turn in range(6):
        a.learn(toy_tree((1.0 if turn % 2 else -1.0, 0.0, 0.0), 1))
        b.feed(a.said(ExchangeRequest))
        a.feed(b.said(ExchangeGrant))
        b.feed(a.said(ExchangeOffer))
        a.feed(b.said(ExchangeAccept))
        b.feed(a.said(ExchangeCommit))
    before = first(a) + 3.0 * first(b)
    a.learn(toy_tree((150.0, 0.0, 0.0), 1))
    b.feed(a.said(ExchangeRequest))
    a.feed(b.said(ExchangeGrant))
    b.feed(a.said(ExchangeOffer))
    answer = b.said(ExchangeAccept)
    assert answer.step_fraction < 0.05
    a.feed(answer)
    assert first(b) < 10.0
    assert first(a) + 3.0 * first(b) == pytest.approx(before + 150.0, rel=1e-6)


def test_a_model_that_has_not_moved_is_not_sent() -> None:
    a, b, _ = pair(Pairwise(delta=100.0))
    a.learn(toy_tree((4.0, 0.0, 0.0), 1))  # the first exchange sets the reference
    b.feed(a.said(ExchangeRequest))
    a.feed(b.said(ExchangeGrant))
    b.feed(a.said(ExchangeOffer))
    a.feed(b.said(ExchangeAccept))
    a.sent.clear()
    a.learn(toy_tree((9.0, 0.0, 0.0), 1))
    assert not a.sent
    a.learn(toy_tree((9.0, 0.0, 0.0), 1))
    assert isinstance(a.said(ExchangeRequest), ExchangeRequest)


def test_the_budget_holds() -> None:
    """A peer that may send half a model per round sends every second round, whichever peer begins."""
    a, b, _ = pair(Pairwise(models_per_round=0.5, burst=1.0))
    a.feed(up_to_slot(a, b))
    b.feed(a.said(ExchangeOffer))
    b.feed(ExchangeRequest("c", ("c", 1, 1)))
    assert b.said(ExchangeDeny).why == "over budget"
    a.feed(b.said(ExchangeAccept))
    a.sent.clear()
    a.learn(toy_tree((1.0, 0.0, 0.0), 1))
    assert not a.sent
    a.learn(toy_tree((1.0, 0.0, 0.0), 1))
    assert isinstance(a.said(ExchangeRequest), ExchangeRequest)


@pytest.mark.parametrize(
    "wrong",
    [{"delta": -1.0}, {"delta": float("nan")}, {"partners_asked_max": 0}, {"burst": 0.5}, {"exchange_timeout_s": 0.0}],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match="pairwise"):
        Pairwise(**wrong)


PEERS = st.sampled_from("abc")


class Interleavings(RuleBasedStateMachine):
    """Three peers, and a post in which messages wait, come twice, or vanish; processes die between any two effects."""

    filters: Filters = ()

    def __init__(self) -> None:
        super().__init__()
        weights = {"a": 1.0, "b": 10.0, "c": 359.0}
        blobs = MemoryBlobs()
        self.books = MassConservation(weights, {"model": START}, blobs, Pairwise().mixer, self.filters)
        policy = Pairwise(models_per_round=100, burst=100, slot_timeout_s=5.0, exchange_timeout_s=2.0)
        self.peers = {
            name: One(name, weight, blobs, policy, self.books, self.filters) for name, weight in weights.items()
        }
        for peer in self.peers.values():
            peer.live = frozenset(weights)
            peer.feed(LivePeers(peer.live))
        self.now = 0.0

    def post(self) -> list[tuple[One, int]]:
        """Every message under way."""
        return [(peer, index) for peer in self.peers.values() for index in range(len(peer.sent))]

    @rule(name=PEERS, amount=st.floats(-100, 100), spared=st.sampled_from((0, 1, 2, 1000, 1000)))
    def learn(self, name: str, amount: float, spared: int) -> None:
        self.peers[name].learn(toy_tree((amount, 1.0, -amount), 1), self.now, spared)

    @rule(
        name=st.sampled_from("abc"), depth=st.integers(1, 8), again=st.booleans(), spared=st.sampled_from((0, 1, 1000))
    )
    def meet(self, name: str, depth: int, again: bool, spared: int) -> None:
        """A local round, and then message upon answer, up to a death or a silence; copies may stay under way."""
        self.peers[name].learn(toy_tree((3.0, -1.0, 2.0), 1), self.now)
        speaker = self.peers[name]
        for step in range(depth):
            if not speaker.sent:
                return
            to, message = speaker.sent[-1] if again else speaker.sent.pop()
            speaker = self.peers[to]
            speaker.feed(message, self.now, spared if step == depth - 1 else 1000)

    @precondition(lambda self: self.post())
    @rule(which=st.integers(0, 1000), again=st.booleans(), spared=st.sampled_from((0, 1, 2, 1000, 1000, 1000)))
    def deliver(self, which: int, again: bool, spared: int) -> None:
        post = self.post()
        peer, index = post[which % len(post)]
        to, message = peer.sent[index] if again else peer.sent.pop(index)
        self.peers[to].feed(message, self.now, spared)

    @precondition(lambda self: self.post())
    @rule(which=st.integers(0, 1000))
    def lose(self, which: int) -> None:
        post = self.post()
        peer, index = post[which % len(post)]
        peer.sent.pop(index)

    @rule(seconds=st.sampled_from((0.1, 2.5, 6.0, 100.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for peer in self.peers.values():
            peer.feed(Timer(), self.now)

    @rule(name=PEERS)
    def die(self, name: str) -> None:
        self.peers[name].start()

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        assert self.books.drift() < 1e-6


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


class Filtered(Interleavings):
    """The same of models that are rounded on their way."""

    filters = (Quantize(bucket=2),)


TestFiltered = Filtered.TestCase
TestFiltered.settings = settings(max_examples=25, stateful_step_count=50, deadline=None)
