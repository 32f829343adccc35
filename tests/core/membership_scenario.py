"""A peer's membership on a workbench."""

from collections.abc import Iterable
from random import Random

from shoal.core.membership.membership import Membership
from shoal.core.membership.swim_config import SwimConfig
from shoal.core.protocol.machine import Effect, JobEvent, Tell, Timer
from shoal.core.protocol.peer_message import MembershipMessage, MemberUpdate, Ping, PingAck, StateSync

ROSTER = frozenset("abcdef")
QUIET = SwimConfig(reprobe=0.0)


def begun(
    live: Iterable[str] = "bcde", pace: SwimConfig = QUIET, roster: frozenset[str] = ROSTER, seed: int = 1
) -> Membership:
    """Peer `a` at second 0 of its clock, which knows these to live."""
    peer = Membership("a", rng=Random(seed), pace=pace)
    peer.admit(roster)
    peer.start(0.0)
    for node in live:
        peer.on(StateSync("f", 0, (MemberUpdate(node, "alive", 0),)), 0.0)
    peer.on(StateSync("f", 0, (MemberUpdate("f", "left", 0),)), 0.0)
    return peer


def told(effects: Iterable[Effect], *kinds: type[MembershipMessage]) -> list[Tell]:
    return [e for e in effects if isinstance(e, Tell) and isinstance(e.message, kinds or MembershipMessage)]


def event_texts(effects: Iterable[Effect]) -> list[str]:
    return [e.text for e in effects if isinstance(e, JobEvent)]


def turn(peer: Membership) -> tuple[str, int, float]:
    """Let the next turn begin: whom it pings, by what number, and when."""
    pings: list[Tell] = []
    while not pings:
        now = peer.alarm
        pings = told(peer.on(Timer(), now), Ping)
    assert isinstance(pings[0].message, Ping)
    return pings[0].to, pings[0].message.seq, now


def answer(peer: Membership, node: str, seq: int, now: float, incarnation: int = 0) -> list[Effect]:
    return peer.on(PingAck(node, incarnation, seq, node), now)


def silence(peer: Membership) -> str:
    """Let a turn pass in which no peer answers; return the accused ones."""
    target, _, _ = turn(peer)
    assert peer.state_of(target) == "alive"
    while peer.state_of(target) == "alive":
        peer.on(Timer(), peer.alarm)
    return target
