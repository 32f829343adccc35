"""Processes in a mesh: what happens to their messages, to themselves and to their clocks."""

from collections.abc import Sequence
from random import Random

import pytest

from shoal.core.protocol.machine import Effect, JobEvent, Tell, Timer, Wake
from shoal.core.protocol.peer_message import PeerHello
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.faults import LATENCY_S, PeerNetworkConditions
from shoal.sim.network.host_world import HostWorld, PeerEvent


class Echo:
    """Keeps what comes, and when; does what it is told to at the start and at each event."""

    def __init__(self, at_start: Sequence[Effect] = (), each_time: Sequence[Effect] = ()) -> None:
        self.at_start, self.each_time = at_start, each_time
        self.came: list[tuple[float, PeerEvent]] = []

    def start(self, now: float) -> Sequence[Effect]:
        return self.at_start

    def on(self, event: PeerEvent, now: float) -> Sequence[Effect]:
        self.came.append((now, event))
        return self.each_time

    def heard(self) -> list[int]:
        return [event.incarnation for _, event in self.came if isinstance(event, PeerHello)]


def hosts(conditions: PeerNetworkConditions | None = None, **kw) -> HostWorld:
    return HostWorld(VirtualClock(), Random(7), conditions, **kw)


def tell(to: str, number: int) -> Tell:
    return Tell(to, PeerHello("x", number))


def test_calls_are_made_in_the_order_of_time_and_planning() -> None:
    """Also those that a call plans, whether before or after what was planned earlier."""
    rng, clock = Random(3), VirtualClock()
    made: list[tuple[float, int]] = []
    planned: list[tuple[float, int]] = []

    def call(when: float, number: int) -> None:
        made.append((when, number))
        for _ in range(rng.randrange(3) if number < 200 else 0):
            plan(clock.now + rng.randrange(4))

    def plan(when: float) -> None:
        planned.append((when, len(planned)))
        clock.at(when, call, *planned[-1])

    for _ in range(10):
        plan(rng.randrange(90))
    clock.run(5.0)
    assert made == [one for one in made if one[0] <= 5.0]
    clock.run(1e9)
    assert made == sorted(planned)


def test_messages_arrive_once() -> None:
    net, one, two = hosts(), Echo(), Echo()
    net.start("one", one)
    net.start("two", two, ahead_s=1000.0)
    net.carry_out("one", [tell("two", 1), tell("two", 2), tell("nobody", 3)])
    net.run(1.0)
    assert two.heard() == [1, 2]
    assert two.came[0][0] == pytest.approx(1000.0 + LATENCY_S)
    assert one.came == []


def test_a_share_is_lost_a_share_comes_twice_and_delays_vary() -> None:
    net, two = hosts(PeerNetworkConditions(delay_s=1.0, message_loss=0.25, message_duplicates=0.5)), Echo()
    net.start("one", Echo())
    net.start("two", two)
    net.carry_out("one", [tell("two", i) for i in range(4000)])
    net.run(100.0)
    heard = two.heard()
    assert len(heard) == pytest.approx(4000 * 1.5 * 0.75, rel=0.05)
    assert heard != sorted(heard)
    assert sum(at for at, _ in two.came) / len(heard) == pytest.approx(1.0, rel=0.05)
    assert len(set(heard)) == pytest.approx(4000 * (0.5 * 0.75 + 0.5 * (1 - 0.25**2)), rel=0.05)


def test_what_is_seeded_alike_happens_alike() -> None:
    came = []
    for _ in range(2):
        net, two = hosts(PeerNetworkConditions(delay_s=1.0, message_loss=0.25, message_duplicates=0.5)), Echo()
        net.start("one", Echo())
        net.start("two", two)
        net.carry_out("one", [tell("two", i) for i in range(50)])
        net.run(100.0)
        came.append(two.came)
    assert came[0] == came[1]


def test_a_split_parts_and_healing_joins() -> None:
    net = hosts()
    peers = {name: Echo() for name in "abcde"}
    for name, peer in peers.items():
        net.start(name, peer)
    net.split("ab", "c")
    ways = {(x, y) for x in "abcde" for y in "abcde" if x != y and net.passes(x, y)}
    assert ways == {("a", "b"), ("b", "a"), ("d", "e"), ("e", "d")}
    net.carry_out("a", [tell("b", 1), tell("c", 2)])
    net.run(1.0)
    net.heal()
    net.carry_out("a", [tell("c", 3)])
    net.run(2.0)
    assert [peers[name].heard() for name in "bc"] == [[1], [3]]


def test_a_cut_has_a_direction_and_takes_what_is_under_way() -> None:
    net, a, b = hosts(), Echo(), Echo()
    net.start("a", a)
    net.start("b", b)
    net.carry_out("a", [tell("b", 1)])
    net.carry_out("b", [tell("a", 2)])
    net.cut("a", "b")
    net.run(1.0)
    assert (a.heard(), b.heard()) == ([2], [])
    net.heal()
    net.carry_out("a", [tell("b", 3)])
    net.run(2.0)
    assert b.heard() == [3]


def test_a_later_alarm_replaces_an_earlier_one() -> None:
    net, peer = hosts(), Echo([Wake(1005.0), Wake(1003.0)])
    net.start("a", peer, ahead_s=1000.0)
    net.run(10.0)
    assert peer.came == [(1003.0, Timer())]


@pytest.mark.parametrize("ahead_s", [0.1, 12345.678, 1e9 / 3])
def test_no_alarm_rings_before_its_time(ahead_s: float) -> None:
    """A machine that looks at its clock and finds it too early would set the same alarm again, for ever."""
    peer = Echo()
    net = hosts()
    net.start("a", peer, ahead_s)
    for i in range(200):
        at = net.now("a") + 0.1
        net.carry_out("a", [Wake(at)])
        net.run(net.clock.now + 0.2)
        assert peer.came[i][0] >= at


def test_the_dead_take_and_do_nothing() -> None:
    net, first, second = hosts(), Echo([Wake(5.0)]), Echo()
    net.start("a", first)
    net.start("b", Echo([tell("a", 1)]))
    net.kill("a")
    assert net.running == ["b"]
    net.run(1.0)
    net.start("a", second)
    net.run(10.0)
    assert (first.came, second.came) == ([], [])


def test_a_message_reaches_the_next_process_of_that_name() -> None:
    net, second = hosts(), Echo()
    net.start("a", Echo())
    net.start("b", Echo([tell("a", 1)]))
    net.kill("a")
    net.start("a", second)
    net.run(1.0)
    assert second.heard() == [1]


def test_a_process_that_is_held_up_takes_everything_afterwards_in_order() -> None:
    net, peer = hosts(), Echo([Wake(2.0)])
    net.start("a", peer)
    net.start("b", Echo())
    net.stall("a", 5.0)
    for i in range(3):
        net.carry_out("b", [tell("a", i)])
        net.run(net.clock.now + 1.0)
    net.run(10.0)
    assert peer.heard() == [0, 1, 2]
    assert [at for at, _ in peer.came] == [5.0] * 4
    assert isinstance(peer.came[2][1], Timer)  # between those of the seconds 1 and 2


def test_a_death_may_come_between_any_two_effects() -> None:
    for survives in range(4):
        steps = iter(range(100))
        carried: list[str] = []
        net = hosts(
            strikes=lambda name, steps=steps, n=survives: name == "a" and next(steps) == n,
            carry=lambda name, effect, kept=carried: kept.append(name),
        )
        b = Echo()
        net.start("b", b)
        net.start("a", Echo([tell("b", 1), JobEvent("node", "", 0), tell("b", 2)]))
        net.run(1.0)
        assert (b.heard(), carried, net.running) == [
            ([], [], ["b"]),
            ([1], [], ["b"]),
            ([1], ["a"], ["b"]),
            ([1, 2], ["a"], ["a", "b"]),
        ][survives]


def test_effects_may_end_the_process_that_had_them() -> None:
    net = hosts(carry=lambda name, effect: net.kill(name))
    b = Echo()
    net.start("b", b)
    net.start("a", Echo([JobEvent("node", "", 0), tell("b", 1)]))
    net.run(1.0)
    assert b.heard() == []


def test_what_others_did_for_a_peer_comes_back_as_an_event() -> None:
    net = hosts(carry=lambda name, effect: net.clock.after(1.0, net.feed, name, Timer()))
    peer = Echo([JobEvent("node", "", 0)])
    net.start("a", peer)
    net.run(2.0)
    assert peer.came == [(1.0, Timer())]
    net.kill("a")
    net.feed("a", Timer())
