"""Membership: the dead, who comes and goes, strangers, and paces that make no sense."""

from collections import Counter
from math import inf
from random import Random

import pytest

from shoal.core.errors import InvalidJob
from shoal.core.membership.membership import Membership
from shoal.core.membership.swim_config import SwimConfig
from shoal.core.protocol.machine import JobEvent, Timer
from shoal.core.protocol.peer_message import MembershipMessage, MemberUpdate, PeerHello, Ping, PingRequest, StateSync
from tests.core.membership_scenario import QUIET, ROSTER, answer, begun, event_texts, told, turn


# ------------------------------------------------------------------------------------------------------- the dead
def pinged(peer: Membership, seconds: float) -> Counter[str]:
    """Return the peers that it pings in that time; all that it believes alive answer."""
    found: Counter[str] = Counter()
    end = peer.alarm + seconds
    while peer.alarm < end:
        now = peer.alarm
        for tell in told(peer.on(Timer(), now), Ping):
            found[tell.to] += 1
            if tell.to in peer.live():
                answer(peer, tell.to, tell.message.seq, now)
    return found


@pytest.mark.parametrize(("reprobe", "least", "most"), [(0.0, 0, 0), (0.5, 160, 240), (1.0, 400, 400)])
def test_the_dead_are_pinged_for_ever(reprobe: float, least: int, most: int) -> None:
    peer = begun(pace=SwimConfig(reprobe=reprobe))
    peer.on(Ping("b", 0, 1, (MemberUpdate("c", "dead", 0), MemberUpdate("d", "dead", 0))), 0.0)
    found = pinged(peer, 400.0)
    assert least <= found["c"] + found["d"] <= most
    assert abs(found["c"] - found["d"]) <= (found["c"] + found["d"]) / 3
    assert found["b"] + found["e"] == 400
    assert found["f"] == 0  # it has left


def test_the_dead_are_told_that_they_are() -> None:
    peer = begun("bc", SwimConfig(reprobe=1.0), roster=frozenset("abcf"))
    peer.on(Ping("b", 0, 1, (MemberUpdate("c", "dead", 4),)), 0.0)
    for _ in range(50):  # much longer than it is news to others
        now = peer.alarm
        for tell in told(peer.on(Timer(), now), Ping):
            assert isinstance(tell.message, Ping)
            assert tell.to == "b" or tell.message.updates[0] == MemberUpdate("c", "dead", 4)
            if tell.to == "b":
                answer(peer, "b", tell.message.seq, now)


def test_a_peer_that_knows_nobody_tries_everybody() -> None:
    peer = begun("", QUIET)
    found = pinged(peer, 200.0)
    assert set(found) == set("bcde")
    assert sum(found.values()) == 200


def test_old_beliefs_kill_nobody_who_is_known_to_live() -> None:
    peer = begun("bcde")
    peer.on(Ping("c", 2, 1), 0.1)
    old = (MemberUpdate("c", "dead", 2), MemberUpdate("d", "suspect", 0, ("b",)), MemberUpdate("e", "dead", 3))
    peer.on(StateSync("b", 0, old), 0.2)
    assert [peer.state_of(node) for node in "cde"] == ["alive", "suspect", "dead"]


# ------------------------------------------------------------------------------------------------ coming and going
def test_a_newcomer_asks_until_somebody_has_told() -> None:
    peer = Membership("a", rng=Random(2), pace=QUIET, incarnation=3)
    peer.admit(ROSTER)
    assert peer.alarm == inf
    effects = peer.start(5.0)
    assert len({tell.to for tell in told(effects, PeerHello)}) == 3
    assert all(tell.message == PeerHello("a", 3, (MemberUpdate("a", "alive", 3),)) for tell in told(effects))
    assert 5.0 <= peer.alarm <= 6.0
    for _ in range(3):
        assert len(told(peer.on(Timer(), peer.alarm), PeerHello)) == 1
    peer.on(StateSync("b", 0, (MemberUpdate("c", "alive", 0),)), peer.alarm)
    assert peer.live() == frozenset("bc")
    for _ in range(6):
        assert told(peer.on(Timer(), peer.alarm), PeerHello) == []


def test_a_newcomer_is_told_everything_in_pieces() -> None:
    others = [f"p{i}" for i in range(10)]
    peer = begun(others[1:], SwimConfig(reprobe=0.0, piggyback_max=4), roster=frozenset([*others, "f"]))
    assert [peer.state_of("p0"), len(peer.live())] == ["dead", 9]
    for i in range(50):
        peer.on(Ping("p1", 0, i), 0.0)  # no news are left
    for _ in range(2):  # also for one that is known already: its process may have started again
        tables = told(peer.on(PeerHello("p2", 0), 0.0), StateSync)
        assert [len(tell.message.updates) for tell in tables] == [4, 4, 2]
        assert tables[0].message.updates[0] == MemberUpdate("p2", "alive", 0)
        said = {update.node: update.state for tell in tables for update in tell.message.updates}
        assert said == {**dict.fromkeys(others[1:], "alive"), "f": "left"}


def test_goodbye() -> None:
    peer = begun()
    turn(peer)
    effects = peer.leave()
    assert {tell.to for tell in told(effects, StateSync)} == set("bcde")
    assert all(tell.message.updates == (MemberUpdate("a", "left", 0),) for tell in told(effects))
    assert peer.on(Ping("b", 0, 1), 9.0) == []
    assert peer.on(Timer(), 9.0) == []
    assert peer.alarm == inf


def test_who_has_left_may_come_again() -> None:
    peer = begun()
    effects = peer.on(StateSync("b", 0, (MemberUpdate("b", "left", 0),)), 0.0)
    assert event_texts(effects) == ["b has left"]
    assert peer.state_of("b") == "left"
    (news,) = told(peer.on(PeerHello("b", 0), 0.1), StateSync)
    assert news.message.updates[0] == MemberUpdate("b", "left", 0)
    assert event_texts(peer.on(Ping("b", 1, 1), 0.2)) == ["b is back"]


# -------------------------------------------------------------------------------------------------------- strangers
@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Ping("z", 0, 1, (MemberUpdate("b", "dead", 9),)), "z: is not admitted"),
        (Ping("a", 0, 1, (MemberUpdate("b", "dead", 9),)), "a: is not admitted"),
        (PeerHello("z", 0), "z: is not admitted"),
        (PingRequest("b", 0, 1, "z", (MemberUpdate("b", "dead", 9),)), "b: wants z probed, which is not admitted"),
        (Ping("b", -1, 1, (MemberUpdate("c", "dead", 9),)), "b: incarnation -1 is not"),
        (Ping("b", 0, 1, (MemberUpdate("c", "dead", 9), MemberUpdate("d", "dead", -1))), "b: incarnation -1 is not"),
        (StateSync("b", 0, (MemberUpdate("c", "dead", 9),) * 65), "b: sent 65 updates at once, at most 64"),
    ],
)
def test_what_is_refused_changes_nothing(message: MembershipMessage, why: str) -> None:
    peer = begun()
    held, incarnation = peer.members(), peer.incarnation
    (event,) = peer.on(message, 0.0)
    assert isinstance(event, JobEvent)
    assert (event.kind, event.node) == ("refusal", message.node)
    assert event.text.startswith(why)
    assert (peer.members(), peer.incarnation) == (held, incarnation)
    assert peer.heard_s("b", 0.0) == inf


def test_updates_about_strangers_and_of_strangers_are_passed_over() -> None:
    peer = begun()
    news = (MemberUpdate("z", "alive", 1), MemberUpdate("c", "suspect", 0, ("x", "y", "z")))
    effects = peer.on(Ping("b", 0, 1, news), 0.0)
    assert event_texts(effects) == []
    assert peer.state_of("c") == "suspect"
    assert not set("xyz") & {name for held in peer.members() for name in (held.node, *held.suspected_by)}
    with pytest.raises(KeyError):
        peer.state_of("z")


def test_who_is_no_longer_admitted_is_forgotten_at_once() -> None:
    peer = begun("bcde")
    peer.on(Ping("b", 0, 1, (MemberUpdate("c", "suspect", 0, ("b", "d")),)), 0.0)
    peer.on(PingRequest("b", 0, 1, "c"), 0.0)
    peer.on(PingRequest("d", 0, 1, "b"), 0.0)
    target, seq, now = turn(peer)
    peer.admit(ROSTER - {"b", target} | {"g"})
    assert "'b'" not in repr(peer.members())
    assert peer.state_of("g") == "dead"
    assert peer.heard_s("b", now) == inf
    assert event_texts(answer(peer, target, seq, now)) == [f"{target}: is not admitted"]
    for _ in range(20):
        effects = peer.on(Timer(), peer.alarm)
        assert all(tell.to not in {"b", target} for tell in told(effects))
        assert "'b'" not in repr([tell.message.updates for tell in told(effects)])
    peer.admit(ROSTER)
    assert peer.state_of("b") == "dead"  # and nothing of what was known comes back with it
    peer.on(Ping("b", 0, 9), peer.alarm)
    assert peer.state_of("b") == "alive"


def test_a_peer_is_alive_to_itself_and_no_peer_of_its_own() -> None:
    peer = begun()
    assert peer.state_of("a") == "alive"
    assert "a" not in peer.live()


@pytest.mark.parametrize(
    "wrong",
    [
        {"period_s": 0.4},
        {"timeout_s": 0.0},
        {"period_s": inf},
        {"helpers": -1},
        {"health_max": -1},
        {"slack": 0.5},
        {"suspicion": 0.0},
        {"reprobe": 1.1},
        {"retransmit_factor": 0.0},
        {"piggyback_max": 0},
    ],
)
def test_paces_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidJob, match="pace: "):
        SwimConfig(**wrong)
