"""One peer's membership, by hand: what it says, to whom and when."""

from itertools import pairwise
from math import inf

import pytest

from shoal.core.membership.dissemination import INCARNATION_MAX
from shoal.core.membership.membership import Membership
from shoal.core.membership.swim_config import SwimConfig
from shoal.core.protocol.machine import Timer
from shoal.core.protocol.peer_message import MemberUpdate, Ping, PingAck, PingNack, PingRequest, StateSync
from tests.core.membership_scenario import answer, begun, event_texts, silence, told, turn


# ------------------------------------------------------------------------------------------------------------ turns
def test_each_has_its_turn_before_anybody_has_a_second_one() -> None:
    peer, seen, times = begun(), [], []
    for _ in range(40):
        target, seq, now = turn(peer)
        answer(peer, target, seq, now + 0.01)
        seen.append(target)
        times.append(now)
    rounds = [seen[i : i + 4] for i in range(0, 40, 4)]
    assert all(sorted(one) == list("bcde") for one in rounds)
    assert len({tuple(one) for one in rounds}) > 3  # shuffled again
    assert [b - a for a, b in pairwise(times)] == pytest.approx([1.0] * 39)


def test_whoever_answers_stays_and_nobody_else_is_asked() -> None:
    peer = begun()
    target, seq, now = turn(peer)
    assert answer(peer, target, seq, now + 0.3) == []
    assert peer.alarm == pytest.approx(now + 1.0)
    assert peer.heard_s(target, now + 0.5) == pytest.approx(0.2)
    assert peer.heard_s("b" if target != "b" else "c", now) == inf


def test_three_others_are_asked_when_one_does_not_answer() -> None:
    peer = begun()
    target, seq, now = turn(peer)
    assert peer.alarm == pytest.approx(now + 0.4)
    probes = told(peer.on(Timer(), now + 0.4))
    assert {probe.to for probe in probes} == set("bcde") - {target}
    assert all(
        isinstance(p.message, PingRequest) and (p.message.seq, p.message.target) == (seq, target) for p in probes
    )
    helper = probes[0].to
    peer.on(PingAck(helper, 0, seq, target), now + 0.8)
    turn(peer)
    assert peer.state_of(target) == "alive"
    assert peer.health == 0


@pytest.mark.parametrize("wrong", ["seq", "of", "by"])
def test_other_answers_do_not_count(wrong: str) -> None:
    peer = begun("bcde", SwimConfig(reprobe=0.0, helpers=1))
    target, seq, now = turn(peer)
    (probe,) = told(peer.on(Timer(), peer.alarm), PingRequest)
    other = next(node for node in "bcde" if node not in {target, probe.to})
    pong = {
        "seq": PingAck(target, 0, seq + 1, target),
        "of": PingAck(probe.to, 0, seq, other),
        "by": PingAck(other, 0, seq, target),
    }[wrong]
    peer.on(pong, now + 0.5)
    turn(peer)
    assert peer.state_of(target) == "suspect"


def test_an_accusation_is_told_to_the_accused_first_and_again_each_period() -> None:
    peer = begun()
    target = silence(peer)
    for _ in range(2):
        effects = peer.on(Timer(), peer.alarm)
        while not told(effects, Ping):
            effects = peer.on(Timer(), peer.alarm)
        reminders = [tell.message for tell in told(effects, Ping) if tell.to == target]
        assert reminders
        assert all(body.updates[0] == MemberUpdate(target, "suspect", 0, ("a",)) for body in reminders)


# ----------------------------------------------------------------------------------------------------------- health
def test_a_peer_that_hears_nobody_doubts_itself() -> None:
    peer = begun()
    accused = silence(peer)
    assert peer.health == 3  # three helpers are silent, too
    begun_at = peer.alarm - 0.4 * (1 + peer.health)
    peer.on(Ping(accused, 1, 1), begun_at)  # so that nothing else is waited for
    peer.on(Timer(), peer.alarm)
    assert peer.alarm == pytest.approx(begun_at + 1.0 * (1 + peer.health))


def test_a_peer_whose_helpers_are_there_does_not() -> None:
    peer = begun()
    target, seq, now = turn(peer)
    for probe in told(peer.on(Timer(), peer.alarm), PingRequest):
        peer.on(PingNack(probe.to, 0, seq, target), now + 0.9)
    turn(peer)
    assert peer.state_of(target) == "suspect"
    assert peer.health == 0


def test_health_has_bounds_and_recovers_turn_by_turn() -> None:
    peer = begun(pace=SwimConfig(reprobe=0.0, health_max=2, suspicion=1000.0))
    for _ in range(3):
        peer.on(Timer(), peer.alarm)
        peer.on(Timer(), peer.alarm)
    healths = []
    for _ in range(4):
        target, seq, now = turn(peer)
        answer(peer, target, seq, now)
        healths.append(peer.health)
    assert healths == [2, 1, 0, 0]


def test_alone_with_one_other() -> None:
    peer = begun("b", roster=frozenset("abf"))
    assert silence(peer) == "b"
    assert peer.health == 1  # no helper could be asked
    end = peer.alarm + 10
    while peer.state_of("b") == "suspect":
        assert peer.alarm < end
        peer.on(Timer(), peer.alarm)
    assert peer.live() == frozenset()


# ------------------------------------------------------------------------------------------------------- suspicions
def dies_at(peer: Membership, node: str) -> tuple[float, list[str]]:
    """Let time pass until this one is given up. It answers, as all do, but not to the suspicion."""
    while True:
        now = peer.alarm
        effects = peer.on(Timer(), now)
        for tell in told(effects, Ping):
            answer(peer, tell.to, tell.message.seq, now)
        if peer.state_of(node) == "dead":
            return now, event_texts(effects)


def test_a_suspicion_lasts_the_longer_the_fewer_share_it() -> None:
    ends = []
    for accusers in ("b", "bc", "bce", "bcef"):
        peer = begun("bcdef")
        peer.on(Ping("b", 0, 1, (MemberUpdate("d", "suspect", 0, tuple(accusers)),)), 0.25)
        end, said = dies_at(peer, "d")
        ends.append(end - 0.25)
        assert said == [f"d is dead: suspected by {', '.join(accusers)}"]
    assert ends[0] <= 12.0
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] == pytest.approx(2.0)


def test_accusers_that_come_later_shorten_it_too() -> None:
    peer = begun("bcdef")
    for i, accuser in enumerate("bcef"):
        peer.on(Ping(accuser, 0, 1, (MemberUpdate("d", "suspect", 0, (accuser,)),)), 0.1 + i / 10)
    assert dies_at(peer, "d")[0] == pytest.approx(0.1 + 2.0)


def test_a_higher_incarnation_ends_it() -> None:
    peer = begun("bcde")
    peer.on(Ping("b", 0, 1, (MemberUpdate("d", "suspect", 4, ("b",)),)), 0.1)
    peer.on(Ping("d", 4, 1), 0.2)
    assert peer.state_of("d") == "suspect"  # it may not have heard of it when it said this
    peer.on(Ping("d", 5, 2), 0.3)
    assert peer.state_of("d") == "alive"
    peer.on(Ping("b", 0, 2, (MemberUpdate("d", "dead", 4),)), 0.4)
    assert peer.state_of("d") == "alive"


def test_the_dead_come_back_by_a_single_word() -> None:
    peer = begun("bcde")
    assert event_texts(peer.on(Ping("b", 0, 1, (MemberUpdate("d", "dead", 4),)), 0.1)) == ["d is dead"]
    assert peer.live() == frozenset("bce")
    (pong,) = told(peer.on(Ping("d", 4, 1), 0.2))
    assert pong.message.updates[0] == MemberUpdate("d", "dead", 4)  # so that it can answer
    effects = peer.on(Ping("d", 5, 2), 0.3)
    assert event_texts(effects) == ["d is back"]
    assert [type(tell.message) for tell in told(effects)] == [PingAck, StateSync]  # it may have missed much
    assert peer.live() == frozenset("bcde")


def test_who_is_behind_is_told() -> None:
    peer = begun("bcde")
    peer.on(Ping("d", 7, 1), 0.1)
    while told(peer.on(Ping("c", 0, 1), 0.1))[0].message.updates:
        pass  # until it has nothing new to tell
    (pong,) = told(peer.on(Ping("b", 0, 1, (MemberUpdate("d", "suspect", 3, ("b",)),)), 0.2))
    assert pong.message.updates[0] == MemberUpdate("d", "alive", 7)


def test_an_accused_peer_defends_itself_once() -> None:
    peer = begun("bcde")
    for _ in range(2):
        (pong,) = told(peer.on(Ping("b", 0, 1, (MemberUpdate("a", "suspect", 0, ("b",)),)), 0.1))
        assert (pong.message.incarnation, peer.incarnation, peer.health) == (1, 1, 1)
    (pong,) = told(peer.on(Ping("c", 0, 1), 0.2))
    assert MemberUpdate("a", "alive", 1) in pong.message.updates


def test_a_peer_whose_disk_is_lost_outdoes_its_former_self() -> None:
    peer = begun("bcde")
    peer.on(Ping("b", 0, 1, (MemberUpdate("a", "alive", 41),)), 0.1)
    assert (peer.incarnation, peer.health) == (42, 0)  # no peer suspects it
    peer.on(Ping("b", 0, 1, (MemberUpdate("a", "alive", 41),)), 0.1)
    assert peer.incarnation == 42


def test_an_incarnation_that_cannot_be_outdone_does_no_harm() -> None:
    peer = begun("bcde")
    peer.on(Ping("b", 0, 1, (MemberUpdate("a", "dead", INCARNATION_MAX),)), 0.1)
    assert peer.incarnation == 0


# ------------------------------------------------------------------------------------------------------- being held up
def test_a_process_that_was_held_up_accuses_nobody() -> None:
    peer = begun()
    peer.on(Ping("b", 0, 1, (MemberUpdate("d", "suspect", 0, ("b", "c", "e")),)), 0.0)
    _, _, now = turn(peer)
    assert told(peer.on(Timer(), now + 30.0)) == []
    assert [held.state for held in peer.members() if held.node != "f"].count("suspect") == 1
    assert peer.state_of("d") == "suspect"  # but it had no chance to speak
    assert peer.health == 1
    peer.on(Ping("d", 1, 1), now + 30.1)
    assert peer.state_of("d") == "alive"


def test_nor_does_it_say_that_another_is_silent() -> None:
    peer = begun()
    peer.on(PingRequest("b", 0, 77, "c"), 0.0)
    late = peer.alarm + 30.0
    assert told(peer.on(Timer(), late)) == []
    assert told(peer.on(Timer(), late + 0.5)) == []


def test_a_suspicion_goes_on_after_a_hold_up() -> None:
    peer = begun("bcdef")
    peer.on(Ping("b", 0, 1, (MemberUpdate("d", "suspect", 0, ("b", "c", "e", "f")),)), 0.0)
    late = peer.alarm + 30.0
    peer.on(Timer(), late)
    end, _ = dies_at(peer, "d")
    assert end == pytest.approx(2.0 + 30.0)


def test_a_message_that_comes_before_the_late_alarm_excuses_too() -> None:
    peer = begun()
    target, _, now = turn(peer)
    peer.on(Ping("b", 0, 1), now + 30.0)
    peer.on(Timer(), now + 30.0)
    assert peer.state_of(target) == "alive"


def test_an_alarm_that_is_a_little_late_excuses_nothing() -> None:
    peer = begun()
    target, _, _ = turn(peer)
    for _ in range(2):
        peer.on(Timer(), peer.alarm + 0.3)
    assert peer.state_of(target) == "suspect"


def test_needless_alarms_do_nothing() -> None:
    peer = begun()
    _, _, now = turn(peer)
    alarm = peer.alarm
    assert [peer.on(Timer(), now + i / 100) for i in range(30)] == [[]] * 30
    assert peer.alarm == alarm


# ---------------------------------------------------------------------------------------------------------- favors
def test_one_is_probed_for_another() -> None:
    peer = begun()
    (ping,) = told(peer.on(PingRequest("b", 0, 77, "c"), 0.01))
    assert (ping.to, type(ping.message)) == ("c", Ping)
    assert told(peer.on(PingRequest("b", 0, 77, "c"), 0.02)) == []  # the same, doubled on its way
    (pong,) = told(answer(peer, "c", ping.message.seq, 0.03))
    assert (pong.to, pong.message.seq, pong.message.of) == ("b", 77, "c")
    assert told(answer(peer, "c", ping.message.seq, 0.04)) == []


def test_who_finds_nobody_says_that_it_is_there_itself() -> None:
    peer = begun(seed=3)
    turn(peer)
    now = peer.alarm - 0.3
    (ping,) = told(peer.on(PingRequest("b", 0, 77, "c"), now))
    said = []
    while not said:
        assert peer.alarm <= now + 0.4 + 1e-9
        said = [tell for tell in told(peer.on(Timer(), peer.alarm), PingNack) if tell.to == "b"]
    assert (said[0].message.seq, said[0].message.target) == (77, "c")
    assert told(answer(peer, "c", ping.message.seq, now + 0.5)) == []


def test_a_probe_of_oneself_is_a_ping() -> None:
    (pong,) = told(begun().on(PingRequest("b", 0, 77, "a"), 0.01))
    assert (pong.to, pong.message.seq, pong.message.of) == ("b", 77, "a")
