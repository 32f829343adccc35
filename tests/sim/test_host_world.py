"""Processes in a mesh: what happens to their messages, to themselves and to their clocks."""

from collections.abc import Sequence
from random import Random

import pytest

from shoal.core.machine import Effect, Note, Tell, Timer, Wake
from shoal.core.peer_message import Hello
from shoal.sim.clock import Clock
from shoal.sim.hosts import Hosts, PeerEvent
from shoal.sim.mesh import LATENCY_S, Weather


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
        return [event.incarnation for _, event in self.came if isinstance(event, Hello)]


def hosts(weather: Weather | None = None, **kw) -> Hosts:
    return Hosts(Clock(), Random(7), weather, **kw)


def tell(to: str, number: int) -> Tell:
    return Tell(to, Hello("x", number))


def test_messages_arrive_once() -> None:
    net, one, two = hosts(), Echo(), Echo()
    net.start("one", one)
    net.start("two", two, ahead_s=1000.0)
    net.do("one", [tell("two", 1), tell("two", 2), tell("nobody", 3)])
    net.run(1.0)
    assert two.heard() == [1, 2]
    assert two.came[0][0] == pytest.approx(1000.0 + LATENCY_S)
    assert one.came == []


def test_a_share_is_lost_a_share_comes_twice_and_delays_vary() -> None:
    net, two = hosts(Weather(delay_s=1.0, loss=0.25, duplicate=0.5)), Echo()
    net.start("one", Echo())
    net.start("two", two)
    net.do("one", [tell("two", i) for i in range(4000)])
    net.run(100.0)
    heard = two.heard()
    assert len(heard) == pytest.approx(4000 * 1.5 * 0.75, rel=0.05)
    assert heard != sorted(heard)
    assert sum(at for at, _ in two.came) / len(heard) == pytest.approx(1.0, rel=0.05)
    assert len(set(heard)) == pytest.approx(4000 * (0.5 * 0.75 + 0.5 * (1 - 0.25**2)), rel=0.05)


def test_what_is_seeded_alike_happens_alike() -> None:
    came = []
    for _ in range(2):
        net, two = hosts(Weather(delay_s=1.0, loss=0.25, duplicate=0.5)), Echo()
        net.start("one", Echo())
        net.start("two", two)
        net.do("one", [tell("two", i) for i in range(50)])
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
    net.do("a", [tell("b", 1), tell("c", 2)])
    net.run(1.0)
    net.heal()
    net.do("a", [tell("c", 3)])
    net.run(2.0)
    assert [peers[name].heard() for name in "bc"] == [[1], [3]]


def test_a_cut_has_a_direction_and_takes_what_is_under_way() -> None:
    net, a, b = hosts(), Echo(), Echo()
    net.start("a", a)
    net.start("b", b)
    net.do("a", [tell("b", 1)])
    net.do("b", [tell("a", 2)])
    net.cut("a", "b")
    net.run(1.0)
    assert (a.heard(), b.heard()) == ([2], [])
    net.heal()
    net.do("a", [tell("b", 3)])
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
        net.do("a", [Wake(at)])
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
        net.do("b", [tell("a", i)])
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
        net.start("a", Echo([tell("b", 1), Note("node", "", 0), tell("b", 2)]))
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
    net.start("a", Echo([Note("node", "", 0), tell("b", 1)]))
    net.run(1.0)
    assert b.heard() == []


def test_what_others_did_for_a_peer_comes_back_as_an_event() -> None:
    net = hosts(carry=lambda name, effect: net.clock.after(1.0, net.feed, name, Timer()))
    peer = Echo([Note("node", "", 0)])
    net.start("a", peer)
    net.run(2.0)
    assert peer.came == [(1.0, Timer())]
    net.kill("a")
    net.feed("a", Timer())
