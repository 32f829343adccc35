"""A node that can do without its hub, by hand: what it obeys, and what it takes along."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.client.worker import Worker
from shoal.core.errors import InvalidJob
from shoal.core.failover.failover import Failover, ForcedFailover, ModelHeld
from shoal.core.failover.failover_peer import FailoverPeer, GossipBuilder
from shoal.core.gossip.gossip import GossipPeer, PeerEffect
from shoal.core.gossip.gossip_state import GossipState, LivePeers
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import HUB, Amend, MachineState, Save, Send, TaskDone, TaskResult, Tell, Timer, Work
from shoal.core.protocol.message import (
    Ack,
    Amendment,
    BlobRef,
    CoordinatorAlive,
    CoordinatorPing,
    Join,
    NoTask,
    Poll,
    Report,
    Task,
)
from shoal.core.protocol.peer_message import (
    CoordinatorProbe,
    CoordinatorStatus,
    DeclareFailover,
    ExchangeAbort,
    ExchangeAccept,
    ExchangeCommit,
    ExchangeDeny,
    ExchangeQuery,
    ExchangeRequest,
    RelayRequest,
    RelayResponse,
)
from shoal.mixing.pairwise import Pairwise
from shoal.sim.hosts.toy_models import toy_tree
from shoal.sim.network.blobs import MemoryBlobs

FAILOVER = Failover(min_gossip_s=30.0)
START = toy_tree((1.0, 2.0, 3.0), 0)


class Bench:
    """Node `a` of a job of three."""

    def __init__(self, failover: Failover = FAILOVER) -> None:
        self.blobs = MemoryBlobs()
        self.model = self.blobs.put({"model": START})
        self.failover = failover
        self.effects: list[PeerEffect] = []
        self.peer = self.made(Worker("a"))
        self.take(self.peer.start(0.0))
        self.feed(LivePeers(frozenset("abc")), 0.0)

    def made(self, worker: Worker) -> FailoverPeer:
        """The machine of a process."""
        builder = GossipBuilder(
            self.gossip,
            lambda state: GossipPeer.restore(JobPlan(1), Algorithm(), self.holding({}), Pairwise().mixer(), state),
            Algorithm(),
            self.blobs,
        )
        return FailoverPeer(worker, builder, failover=self.failover, population=3)

    def holding(self, slots: Slots) -> GossipState:
        return GossipState("a", 1, 5.0, slots, self.blobs, Random(1))

    def gossip(self, slots: Slots) -> GossipPeer:
        return GossipPeer(JobPlan(1), Algorithm(), self.holding(slots), Pairwise().mixer())

    def take(self, effects: list[PeerEffect]) -> None:
        self.effects = effects

    def feed(self, event: Any, now: float) -> None:
        """Act as a shell: the model of a task is there at once."""
        effects = self.peer.on(event, now)
        for task in [effect.task for effect in effects if isinstance(effect, Work) and effect.task.kind == "train"]:
            assert task.blob is not None
            effects += self.peer.on(ModelHeld(task.version, task.blob), now)
        self.take(effects)

    def said(self, kind: type) -> list[Any]:
        """Return its last messages to the hub or to peers."""
        blobs = [effect.message for effect in self.effects if isinstance(effect, Send | Tell)]
        return [body for body in blobs if isinstance(body, kind)]

    def task(self, n: int, term: int = 1, version: int = 0, kind: Any = "train", **named: Any) -> Task:
        return Task((term, n), "a", kind, version, 7, self.model, **named)

    def silent_until(self, now: float) -> None:
        """The alarm rings every second; the others miss the hub as well."""
        at = 0.0
        while at < now:
            at += 1.0
            self.feed(Timer(), at)
            if self.said(CoordinatorProbe):
                for node in "bc":
                    self.feed(CoordinatorStatus(node, 1, False, False, 0, self.model), at)

    def away(self) -> None:
        """It has gone away from version 0, in term 2."""
        self.feed(self.task(1), 0.0)
        self.silent_until(40.0)
        assert self.peer.state == "gossip"


def test_a_silent_hub_is_missed_by_two_before_anybody_goes() -> None:
    bench = Bench()
    bench.feed(bench.task(1), 0.0)
    for second in range(1, 60):
        bench.feed(Timer(), float(second))
    assert bench.peer.state == "suspect", "nobody else has said that it misses the hub"
    bench.feed(CoordinatorStatus("b", 1, False, False, 0, bench.model), 60.0)
    assert bench.peer.state == "gossip"
    assert bench.peer.term == 2
    assert [
        effect.to
        for effect in bench.effects
        if isinstance(effect, Tell) and isinstance(effect.message, DeclareFailover)
    ] == [*("b", "c")]


def test_a_majority_is_more_than_half_of_all() -> None:
    assert [Failover(failover_quorum="majority").votes_needed(count) for count in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]
    assert Failover(failover_quorum=3).votes_needed(8) == 3


def test_nothing_of_an_older_term_is_obeyed() -> None:
    bench = Bench()
    bench.away()
    model = bench.peer.gossip
    for message in (bench.task(9), bench.task(9, kind="gossip", recall=True), NoTask((1, 9)), CoordinatorAlive(1)):
        bench.feed(message, 41.0)
        assert bench.peer.gossip is model
        assert bench.peer.task is None
        assert not [effect for effect in bench.effects if isinstance(effect, Work)]
    assert bench.peer.term == 2


def test_what_was_ordered_before_the_hub_began_a_new_term_is_obeyed_as_it_gives_it_in_that() -> None:
    bench = Bench()
    bench.feed(CoordinatorAlive(2), 0.0)
    bench.feed(bench.task(3), 1.0)
    assert not [effect for effect in bench.effects if isinstance(effect, Work)], "it may be of a hub that was cut off"
    bench.feed(bench.task(3, issued_in_term=1), 1.0)
    assert not [effect for effect in bench.effects if isinstance(effect, Work)]
    bench.feed(bench.task(3, issued_in_term=2), 2.0)
    assert [effect.task.id for effect in bench.effects if isinstance(effect, Work)] == [(1, 3)]
    assert bench.peer.term == 2
    bench.feed(bench.task(4, issued_in_term=3), 3.0)
    assert bench.peer.term == 3


def test_an_order_in_hand_is_amended_though_the_hub_has_begun_a_new_term() -> None:
    bench = Bench()
    bench.feed(bench.task(3), 0.0)
    bench.feed(CoordinatorAlive(2), 1.0)
    bench.feed(Amendment((1, 2), revision=1, recall=True), 2.0)
    assert not [effect for effect in bench.effects if isinstance(effect, Amend)], "of a task that it does not hold"
    bench.feed(Amendment((1, 3), revision=1, recall=True), 2.0)
    assert [effect.task.recall for effect in bench.effects if isinstance(effect, Amend)] == [True]


def test_an_older_declaration_is_overtaken() -> None:
    bench = Bench()
    bench.away()
    bench.feed(DeclareFailover("b", 2, 5, bench.model, "late"), 41.0)
    assert bench.peer.base.version == 0
    bench.feed(DeclareFailover("b", 7, 5, bench.model, "newer"), 41.0)
    assert bench.peer.term == 7


def test_who_hears_the_hub_stays_whatever_others_declare() -> None:
    bench = Bench()
    bench.feed(bench.task(1), 0.0)
    bench.feed(DeclareFailover("b", 9, 0, bench.model, "I hear nothing"), 5.0)
    assert bench.peer.state == "coordinated"
    bench.feed(CoordinatorProbe("b", 1), 5.0)
    assert bench.said(CoordinatorStatus) == [CoordinatorStatus("a", 1, True, False, 0, bench.model)]


def test_who_misses_the_hub_follows_a_declaration_at_once() -> None:
    bench = Bench()
    bench.feed(bench.task(1), 0.0)
    bench.feed(Timer(), 16.0)
    bench.feed(DeclareFailover("b", 4, 3, bench.model, "gone"), 17.0)
    assert (bench.peer.state, bench.peer.term, bench.peer.base.version) == ("gossip", 4, 3)
    bench.feed(CoordinatorProbe("c", 1), 18.0)
    assert bench.said(DeclareFailover) == [DeclareFailover("a", 4, 3, bench.model, "the hub is silent")]


def test_a_report_that_nobody_acknowledged_is_taken_along() -> None:
    bench = Bench()
    bench.feed(bench.task(1), 0.0)
    update = bench.blobs.put({"model": toy_tree((10.0, 0.0, 0.0), 1)})
    bench.feed(TaskDone((1, 1), TaskResult(5.0, update)), 1.0)
    assert bench.said(Report)
    bench.silent_until(40.0)
    assert bench.peer.gossip is not None
    assert float(bench.peer.gossip.me.model["w"][0]) == 11.0
    assert bench.peer.worker.unacknowledged is None


def test_a_spooled_report_is_forgotten_by_who_has_taken_it_along() -> None:
    """The process died after it had saved that it is away, and before its spool was cleared."""
    bench = Bench()
    bench.away()
    kept = bench.peer.snapshot()
    worker = Worker("a")
    worker.restore_answer(Report("a", (1, 1), 0, 5.0, bench.model), None)
    again = bench.made(worker)
    again.restore(kept)
    assert worker.unacknowledged is None
    assert (again.state, again.term) == ("gossip", 2)


def test_it_pings_and_returns_when_the_hub_has_answered_for_a_while() -> None:
    bench = Bench()
    bench.away()
    joins: list[float] = []
    for second in range(41, 100):
        bench.feed(Timer(), float(second))
        if bench.said(CoordinatorPing) or bench.said(Join):
            joins += [float(second)] if bench.said(Join) else []
            bench.feed(CoordinatorAlive(3), float(second))
    assert joins
    assert joins[0] >= 30.0 + 30.0
    bench.feed(bench.task(1, term=3, kind="gossip"), 100.0)
    assert bench.peer.task is not None
    assert bench.peer.state == "gossip"


def test_a_hub_of_an_older_term_is_not_trusted_however_long_it_answers() -> None:
    bench = Bench()
    bench.away()
    for second in range(41, 200):
        bench.feed(Timer(), float(second))
        assert not bench.said(Join)
        if bench.said(CoordinatorPing):
            bench.feed(CoordinatorAlive(1), float(second))


def test_its_model_is_given_up_only_when_it_counts() -> None:
    bench = Bench()
    bench.away()
    gossip = bench.peer.gossip
    assert gossip is not None
    gossip.me.mixed = toy_tree((4.0, 4.0, 4.0), 9)
    recall = bench.task(1, term=3, kind="gossip", recall=True)
    bench.feed(recall, 41.0)
    if gossip.task is not None:
        bench.feed(TaskDone(gossip.task.id, TaskResult(5.0)), 42.0)
    reports = bench.said(Report)
    assert [report.weight for report in reports] == [5.0]
    moved = bench.blobs.get(reports[0].blob)["model"]
    assert list(moved["w"]) == [3.0, 2.0, 1.0]  # type: ignore[index, arg-type]
    bench.feed(Ack((3, 1), False, "superseded"), 43.0)
    assert bench.peer.gossip is gossip
    assert (bench.peer.state, gossip.halted) == ("gossip", "")
    bench.feed(bench.task(2, term=3, kind="gossip", recall=True), 44.0)
    if gossip.task is not None:
        bench.feed(TaskDone(gossip.task.id, TaskResult(5.0)), 45.0)
    bench.feed(Ack((3, 2), True), 46.0)
    assert bench.peer.gossip is None
    assert bench.peer.state == "coordinated"
    saved = [effect.what for effect in bench.effects if isinstance(effect, Save)]
    assert [what.state["gossip"] for what in saved if isinstance(what, MachineState)] == [None]


def test_through_another_when_only_its_own_way_is_broken() -> None:
    bench = Bench()
    bench.feed(bench.task(1), 0.0)
    bench.feed(Timer(), 16.0)
    assert bench.said(CoordinatorProbe)
    bench.feed(CoordinatorStatus("b", 1, True, False, 0, bench.model), 17.0)
    assert (bench.peer.state, bench.peer.reachability.relay) == ("coordinated", "b")
    bench.feed(Timer(), 21.0)
    assert [type(one.message) for one in bench.said(RelayRequest)] == [Poll]
    bench.feed(RelayResponse("c", NoTask((1, 9))), 22.0)
    assert bench.peer.worker.task is not None, "nobody else speaks for the hub"
    bench.feed(RelayResponse("b", NoTask((1, 9))), 22.0)
    assert bench.peer.worker.task is None
    bench.feed(NoTask((1, 9)), 23.0)
    assert bench.peer.reachability.relay == ""
    bench.feed(RelayRequest("c", Poll("c")), 24.0)
    assert [effect for effect in bench.effects if isinstance(effect, Send)] == [Send(HUB, Poll("c"))]


def test_who_is_at_the_server_keeps_nobody_waiting() -> None:
    bench = Bench()
    bench.feed(ExchangeRequest("b", ("b", 1, 1)), 1.0)
    assert bench.said(ExchangeDeny) == [ExchangeDeny("a", ("b", 1, 1), "at the server")]
    bench.feed(ExchangeQuery("b", ("b", 1, 1)), 1.0)
    assert bench.said(ExchangeAbort) == [ExchangeAbort("a", ("b", 1, 1), "at the server")]
    bench.feed(ExchangeAccept("b", ("a", 1, 1), 5.0, 1.0, bench.model), 1.0)
    assert bench.said(ExchangeCommit) == [ExchangeCommit("a", ("a", 1, 1))], (
        "b waits for that, and nobody else will say it"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"coordinator_timeout_s": 0.0},
        {"suspicion_s": -1.0},
        {"open_exchanges_timeout_s": 0.0},
        {"min_gossip_s": -1.0},
        {"failover_quorum": 0},
        {"coordinator_timeout_s": float("nan")},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match="failover"):
        Failover(**wrong)


@pytest.mark.parametrize("recalled", [False, True])
@pytest.mark.parametrize("news", ["idle", "task"])
def test_who_was_not_waited_for_brings_what_it_has(recalled: bool, news: str) -> None:
    """It had the task to carry on; the hub took the job back, and this node did not hear of that in time."""
    bench = Bench()
    bench.feed(bench.task(1), 0.0)
    bench.feed(bench.task(2, kind="gossip", recall=recalled), 1.0)
    gossip = bench.peer.gossip
    assert gossip is not None
    assert bench.peer.state == ("returning" if recalled else "gossip")
    bench.feed(NoTask((1, 9)) if news == "idle" else bench.task(9, version=1), 2.0)
    assert (bench.peer.state, bench.peer.task, gossip.halted) == ("gossip", None, "")
    assert bench.peer.gossip is gossip, "nobody has what it learned"
    joins: list[Join] = []
    for second in range(3, 60):
        bench.feed(Timer(), float(second))
        joins += bench.said(Join)
        if bench.said(CoordinatorPing) or bench.said(Join):
            bench.feed(CoordinatorAlive(3), float(second))
    assert joins
    assert joins[0].gossip_rounds == (1, gossip.me.local_rounds)


def test_a_base_is_only_replaced_by_a_newer_one() -> None:
    bench = Bench()
    bench.feed(ModelHeld(4, bench.model), 0.0)
    saved = [effect.what for effect in bench.effects if isinstance(effect, Save)]
    assert [what.state["version"] for what in saved if isinstance(what, MachineState)] == [4]
    bench.feed(ModelHeld(3, BlobRef("0" * 64, 1)), 0.0)
    assert bench.peer.base.model == bench.model


def test_who_has_no_whole_model_stays() -> None:
    """The hub died before the task's model had come."""
    bench = Bench()
    bench.take(bench.peer.on(bench.task(1), 0.0))
    bench.silent_until(60.0)
    assert (bench.peer.state, bench.peer.gossip) == ("suspect", None)


def test_an_operators_failover_needs_no_quorum_but_a_silent_hub() -> None:
    bench = Bench()
    bench.feed(ForcedFailover(5, "now"), 1.0)
    assert bench.peer.state == "coordinated", "there is no model yet to carry on from"
    bench.feed(bench.task(1), 1.0)
    bench.feed(ForcedFailover(5, "now"), 2.0)
    assert (bench.peer.state, bench.peer.term) == ("coordinated", 1), "the hub is heard: it is the one to be asked"
    later = 1.0 + FAILOVER.coordinator_timeout_s
    bench.feed(ForcedFailover(1, "an old word"), later)
    assert bench.peer.gossip is None
    bench.feed(ForcedFailover(5, "now"), later)
    assert (bench.peer.state, bench.peer.term) == ("gossip", 5)
    assert [(one.term, one.version) for one in bench.said(DeclareFailover)] == [(5, 0), (5, 0)], "b and c are told"
    gossip = bench.peer.gossip
    bench.feed(ForcedFailover(6, "again"), later + 1.0)
    assert (bench.peer.gossip, bench.peer.term) == (gossip, 5)
