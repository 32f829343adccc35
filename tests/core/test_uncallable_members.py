"""Membership among peers of which some cannot be called."""

from __future__ import annotations

from dataclasses import replace

from shoal.core.membership.failure_detector import Reachability
from shoal.core.membership.membership import Membership
from shoal.core.protocol.machine import Timer
from shoal.core.protocol.peer_message import MemberUpdate, PeerHello, Ping, PingRequest, StateSync
from tests.core.membership_scenario import QUIET, ROSTER, begun, told


def apart(ways: Reachability) -> Membership:
    peer = begun()
    peer.admit(ROSTER, ways)
    return peer


def spoken_to(peer: Membership, until_s: float) -> set[str]:
    """Return the peers that it pings or asks by itself."""
    found = set()
    while (now := peer.alarm) < until_s:
        found |= {tell.to for tell in told(peer.on(Timer(), now), Ping, PingRequest, PeerHello)}
    return found


def test_who_cannot_be_called_is_not() -> None:
    peer = apart(Reachability(callers=frozenset("b"), unreachable=frozenset("c")))
    assert spoken_to(peer, 30.0) == set("de")


def test_a_caller_is_given_up_when_it_does_not_call_any_more() -> None:
    peer = apart(Reachability(callers=frozenset("b")))
    now = 0.0
    while now < 20.0:
        now = min(peer.alarm, now + 0.5)
        peer.on(Ping("b", 0, 1), now)
        for tell in told(peer.on(Timer(), now), Ping):
            peer.on(StateSync(tell.to, 0, ()), now)
    assert peer.state_of("b") == "alive"
    while peer.alarm < 200.0:
        peer.on(Timer(), peer.alarm)
    assert peer.state_of("b") == "dead"


def test_of_those_that_never_call_others_know_more() -> None:
    peer = apart(Reachability(callers=frozenset("b"), unreachable=frozenset("c")))
    spoken_to(peer, 200.0)
    assert peer.state_of("b") == peer.state_of("c") == "alive"
    assert peer.reachable() == peer.live() - {"c"}
    peer.on(StateSync("d", 0, (MemberUpdate("c", "dead", 0),)), 200.0)
    assert peer.state_of("c") == "dead"


def test_of_those_out_of_reach_others_are_asked_again_and_again() -> None:
    peer = begun(pace=replace(QUIET, reprobe=0.5))
    peer.admit(ROSTER, Reachability(unreachable=frozenset("c"), poll_count=8))
    asked = 0
    while peer.alarm < 60.0:
        asked += len(told(peer.on(Timer(), peer.alarm), PeerHello))
    assert asked > 3


def test_who_cannot_be_called_calls_all_others_in_turn() -> None:
    peer = Membership("a", rng=begun()._rng, pace=QUIET)
    roster = frozenset(f"n{number:02}" for number in range(20))
    peer.admit(roster | {"a"}, Reachability(poll_count=8))
    peer.start(0.0)
    for node in roster:
        peer.on(StateSync(node, 0, ()), 0.0)
    assert spoken_to(peer, 30.0) == roster


def test_a_goodbye_is_left_for_all_that_must_come_for_it() -> None:
    peer = Membership("a", rng=begun()._rng, pace=QUIET)
    callers = frozenset(f"n{number:02}" for number in range(20))
    peer.admit(callers | {"a"}, Reachability(callers=callers))
    peer.start(0.0)
    for node in callers:
        peer.on(StateSync(node, 0, ()), 0.0)
    assert {tell.to for tell in told(peer.leave(), StateSync)} == callers
