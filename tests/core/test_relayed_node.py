"""A node that has lost its own way to the hub speaks through another: whom it asks, and when it turns elsewhere."""

from __future__ import annotations

from shoal.core.client.worker import Worker
from shoal.core.failover.coordinator_reachability import PASSED_OVER_S_MAX, CoordinatorReachability, RelayFailed
from shoal.core.gossip.gossip_state import LivePeers
from shoal.core.protocol.machine import Send, TaskDone, TaskResult, Tell, Timer
from shoal.core.protocol.message import Ack, CoordinatorAlive, CoordinatorPing, Join, Poll, Report
from shoal.core.protocol.peer_message import (
    CoordinatorProbe,
    CoordinatorStatus,
    DeclareFailover,
    RelayRequest,
    RelayResponse,
)
from tests.core.test_failover_peer import Bench


def hears(bench: Bench, node: str) -> CoordinatorStatus:
    return CoordinatorStatus(node, 1, True, False, 0, bench.model)


def asked(bench: Bench) -> set[str]:
    """Return the peers that it has just asked whether they hear the hub."""
    return {one.to for one in bench.effects if isinstance(one, Tell) and isinstance(one.message, CoordinatorProbe)}


def carried(bench: Bench) -> list[tuple[str, type]]:
    """Return its last relayed messages, with their relays."""
    tells = [one for one in bench.effects if isinstance(one, Tell)]
    return [(one.to, type(one.message.message)) for one in tells if isinstance(one.message, RelayRequest)]


def relayed(task: bool = True) -> Bench:
    """It speaks through b since second 17."""
    bench = Bench()
    bench.feed(LivePeers(frozenset("abcd")), 0.0)
    if task:
        bench.feed(bench.task(1), 0.0)
    bench.feed(Timer(), 16.0)
    assert asked(bench) == set("bcd")
    bench.feed(hears(bench, "b"), 17.0)
    assert (bench.peer.state, bench.peer.reachability.relay) == ("coordinated", "b")
    return bench


def test_it_speaks_at_once_and_asks_for_its_own_way_besides() -> None:
    bench = relayed()
    bench.feed(Timer(), 17.0)
    assert carried(bench) == [("b", Poll)]
    assert [one.message for one in bench.effects if isinstance(one, Send)] == [CoordinatorPing("a", -1)]


def test_who_brings_no_answer_is_passed_over_for_another() -> None:
    bench = relayed()
    bench.feed(RelayFailed("b", "refused"), 18.0)
    assert (bench.peer.state, bench.peer.reachability.relay) == ("suspect", "")
    assert asked(bench) == set("bcd"), "it has not heard the hub for long: there is no time to be lost"
    bench.feed(hears(bench, "b"), 18.1)
    assert bench.peer.reachability.relay == "", "that one has just failed"
    bench.feed(hears(bench, "c"), 18.2)
    assert (bench.peer.state, bench.peer.reachability.relay) == ("coordinated", "c")
    bench.feed(Timer(), 18.2)
    assert carried(bench) == [("c", Poll)]


def test_silence_of_the_one_that_carries_is_felt_without_a_word() -> None:
    bench = relayed()
    for second in range(18, 33):
        bench.feed(Timer(), float(second))
    assert (bench.peer.state, bench.peer.reachability.relay) == ("suspect", "")
    bench.feed(hears(bench, "b"), 33.0)
    assert bench.peer.reachability.relay == ""
    bench.feed(hears(bench, "d"), 33.0)
    assert bench.peer.reachability.relay == "d"


def test_answers_through_another_keep_that_way() -> None:
    bench = relayed()
    for second in range(18, 60):
        bench.feed(RelayResponse("b", CoordinatorAlive(1)), float(second))
    assert (bench.peer.state, bench.peer.reachability.relay) == ("coordinated", "b")
    bench.feed(CoordinatorProbe("c", 1), 60.0)
    (said,) = bench.said(CoordinatorStatus)
    assert not said.hears_hub, "who is relayed carries nobody"


def test_an_acknowledgement_that_was_carried_is_no_sign_of_its_own_way() -> None:
    bench = relayed()
    bench.feed(TaskDone((1, 1), TaskResult(5.0, bench.model)), 18.0)
    assert carried(bench) == [("b", Report)]
    bench.feed(Ack((1, 1), True), 19.0)
    assert bench.peer.reachability.relay == "b"
    bench.feed(CoordinatorAlive(1), 20.0)
    assert bench.peer.reachability.relay == "", "the coordinator itself has answered"


def test_while_somebody_hears_the_hub_nobody_goes_away() -> None:
    """All who could carry refuse: the node waits, but the job goes on where it is."""
    bench = relayed()
    for second in range(18, 200):
        bench.feed(Timer(), float(second))
        if asked(bench):
            bench.feed(CoordinatorStatus("c", 1, False, False, 0, bench.model), float(second))
            bench.feed(hears(bench, "b"), float(second))
        if bench.peer.reachability.relay:
            bench.feed(RelayFailed("b", "no more today", pause_s=30.0), float(second))
    assert (bench.peer.state, bench.peer.gossip) == ("suspect", None)


def test_one_that_began_anew_and_has_no_order_is_carried_as_well() -> None:
    """All other nodes may be waiting for it."""
    bench = relayed(task=False)
    bench.feed(Timer(), 17.0)
    assert carried(bench) == [("b", Join)], "it is a new process"
    bench.feed(RelayResponse("b", bench.task(1)), 18.0)
    assert bench.peer.worker.task == bench.task(1)


def test_a_report_that_is_on_no_version_of_its_own_stays_behind_when_it_follows_others() -> None:
    """The initial model has been reported and not acknowledged; the others have gone away from version 0."""
    bench = Bench()
    bench.peer = bench.made(worker := Worker("a"))
    worker.restore_answer(Report("a", (1, 1), 0, 1.0, bench.model), None)
    bench.take(bench.peer.start(0.0))
    bench.feed(LivePeers(frozenset("abc")), 0.0)
    bench.feed(DeclareFailover("b", 2, 0, bench.model, "silent"), 20.0)
    gossip = bench.peer.gossip
    assert gossip is not None
    assert list(gossip.me.model["w"]) == [1.0, 2.0, 3.0], "not twice as much"


def test_who_is_away_by_order_hears_through_another_that_it_is_called_back() -> None:
    bench = Bench()
    bench.feed(bench.task(1), 0.0)
    bench.feed(bench.task(2, kind="gossip"), 1.0)
    assert bench.peer.gossip is not None
    bench.feed(Timer(), 17.0)
    assert asked(bench) == {"b", "c"}
    bench.feed(hears(bench, "c"), 17.5)
    assert (bench.peer.state, bench.peer.reachability.relay) == ("gossip", "c")
    bench.feed(Timer(), 17.5)
    assert carried(bench) == [("c", Poll)]
    bench.feed(RelayResponse("c", bench.task(2, kind="gossip", revision=1, recall=True)), 18.0)
    assert bench.peer.state == "returning"


def test_who_went_away_by_itself_comes_back_through_another() -> None:
    bench = Bench()
    bench.away()
    said: list[tuple[str, object]] = []
    now = 41.0
    while not any(isinstance(body, Join) for _, body in said):
        assert now < 200.0, "it does not come back"
        bench.feed(Timer(), now)
        said = [
            (one.to, one.message.message)
            for one in bench.effects
            if isinstance(one, Tell) and type(one.message) is RelayRequest
        ]
        for node in asked(bench):
            bench.feed(CoordinatorStatus(node, 3, node == "c", False, 0, bench.model), now)
        for to, body in said:
            assert to == "c", "b misses the hub as well"
            if isinstance(body, CoordinatorPing):
                bench.feed(RelayResponse("c", CoordinatorAlive(3)), now)
        now += 1.0
    assert said == [("c", Join("a", (2, bench.peer.gossip.me.local_rounds if bench.peer.gossip is not None else -1)))]


def test_who_asks_to_be_left_is_left_so_long_but_not_for_ever() -> None:
    voices = CoordinatorReachability("a", 15.0)
    bulletin = CoordinatorStatus("b", 1, True, False, 0, None)

    def chosen(now: float) -> str:
        voices.record_status(bulletin, now)
        return voices.choose_relay(now)

    voices.record_failure("b", 0.0)
    assert (chosen(4.9), chosen(5.0)) == ("", "b")
    voices.record_failure("b", 10.0, pause_s=60.0)
    assert (chosen(69.0), chosen(70.0)) == ("", "b")
    voices.record_failure("b", 100.0, pause_s=1e9)
    assert (chosen(99.0 + PASSED_OVER_S_MAX), chosen(100.0 + PASSED_OVER_S_MAX)) == ("", "b")


def test_an_old_word_of_another_counts_no_more() -> None:
    voices = CoordinatorReachability("a", 15.0)
    voices.record_status(CoordinatorStatus("b", 1, True, False, 0, None), 0.0)
    assert voices.choose_relay(16.0) == ""


def test_those_who_are_lost_together_do_not_all_burden_the_same_one() -> None:
    chosen = []
    for number in range(40):
        voices = CoordinatorReachability(f"n{number}", 15.0)
        for node in "bcde":
            voices.record_status(CoordinatorStatus(node, 1, True, False, 0, None), 0.0)
        chosen.append(voices.choose_relay(0.0))
    assert {chosen.count(node) >= 4 for node in "bcde"} == {True}
