"""Coordinators that stop, die, wake up too late and lose the database, on one clock: never do two of them answer."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from shoal.core.cluster.leader_lease import (
    LeaderLease,
    LeaseRow,
    LocalLeader,
    NoLeader,
    ReadLease,
    RemoteLeader,
    StepDown,
    TakeLease,
)
from shoal.core.errors import InvalidJob
from shoal.sim.network.clock import VirtualClock
from tests.support.sampling import nightly

LEASE_S, LOOK_S, RENEW_S = 3.0, 0.4, 1.0
SKEW = 0.02
"""How much faster or slower a coordinator's clock runs than the database's."""


@dataclass
class Row:
    """The lease, and what was written under it."""

    term: int = 0
    holder: str = ""
    until: float = 0.0
    address: str = ""
    written: list[int] = field(default_factory=list)
    reached: bool = True


class Process:
    """One life of one coordinator: its machine, and a shell that does what it says, each thing in its own time."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.rng = world.rng
        self.tenure = LeaderLease(name, LEASE_S, LOOK_S)
        self.rate, self.offset = 1.0 + self.rng.uniform(-SKEW, SKEW), self.rng.uniform(0, 1e6)
        self.alive, self.held_up = True, []  # type: ignore[var-annotated]
        self.paused = False
        self.mine = 0
        self.turn()

    def now(self) -> float:
        return self.offset + self.world.clock.now * self.rate

    def later(self, act: object, *more: object) -> None:
        """Something on its way to the database, or back; a process that is stopped hears of it when it goes on."""
        self.world.clock.after(self.rng.choice((0.001, 0.02, 0.3)), self.come, act, *more)

    def come(self, act: object, *more: object) -> None:
        if not self.alive:
            return
        if self.paused:
            self.held_up.append((act, more))
        else:
            act(*more)  # type: ignore[operator]

    def go_on(self) -> None:
        """As by SIGCONT."""
        self.paused = False
        waiting, self.held_up = self.held_up, []
        for act, more in waiting:
            self.come(act, *more)

    def turn(self) -> None:
        """Return the outputs of the machine, in order."""
        match self.tenure.next(self.now()):
            case ReadLease():
                self.later(self.look, self.now())
            case TakeLease():
                self.later(self.take, self.now())
            case StepDown():
                self.mine = 0
                self.tenure.dropped(self.now())
                self.later(self.turn)
            case float() as when:
                self.world.clock.after(max(0.0, (when - self.now()) / self.rate), self.come, self.turn)

    def look(self, begun: float) -> None:
        row = self.world.row
        if not row.reached:
            self.tenure.missed(self.now())
        else:
            seen = LeaseRow(row.term, row.holder, row.until - self.world.clock.now, row.address, "s")
            self.later(self.looked, begun, seen)
            return
        self.later(self.turn)

    def looked(self, begun: float, seen: LeaseRow) -> None:
        self.tenure.looked(begun, self.now(), seen)
        self.turn()

    def take(self, begun: float) -> None:
        row = self.world.row
        if row.reached and (row.until < self.world.clock.now or row.holder == self.name):
            row.term, row.holder, row.until = row.term + 1, self.name, self.world.clock.now + LEASE_S
            row.address = ""
            self.later(self.taken, begun, row.term)
        else:
            self.later(self.refused)

    def refused(self) -> None:
        self.tenure.refused(self.now())
        self.turn()

    def taken(self, begun: float, term: int) -> None:
        self.mine = term
        self.tenure.renewed(begun)
        self.renew()
        self.world.clock.after(self.rng.choice((0.05, 0.5, 5.0)), self.come, self.ready, term)  # the journal's replay

    def ready(self, term: int) -> None:
        if self.world.row.term == term:
            self.world.row.address = self.name
        self.tenure.took(term)
        self.turn()

    def renew(self) -> None:
        """A commit: it is refused, or it renews the lease."""
        if self.mine:
            self.later(self.commit, self.now(), self.mine)

    def commit(self, begun: float, term: int) -> None:
        row = self.world.row
        if not row.reached:
            self.later(self.renew)
        elif row.term != term:
            self.later(self.tenure.fenced)
        else:
            row.until = self.world.clock.now + LEASE_S
            row.written.append(term)
            self.later(self.tenure.renewed, begun)
            self.world.clock.after(RENEW_S, self.come, self.renew)


class World:
    """A few of them, and what befalls them."""

    def __init__(self, seed: int, count: int = 3) -> None:
        self.rng, self.clock, self.row = random.Random(seed), VirtualClock(), Row()
        self.processes = {f"c{i}": Process(self, f"c{i}") for i in range(count)}

    def run(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.run(min(end, self.clock.now + 0.01))
            self.check()

    def answering(self) -> list[Process]:
        return [one for one in self.processes.values() if isinstance(one.tenure.way(one.now()), LocalLeader)]

    def check(self) -> None:
        """Return the owners that would answer if woken now: one at most, and of the newest term."""
        found = self.answering()
        assert len(found) <= 1, [(one.name, one.mine) for one in found]
        assert all(one.mine == self.row.term for one in found)
        assert self.row.written == sorted(self.row.written)

    def mischief(self) -> None:
        name = self.rng.choice(sorted(self.processes))
        one = self.processes[name]
        match self.rng.choice(("kill", "pause", "pause", "database")):
            case "kill":
                one.alive = False
                self.processes[name] = Process(self, name)
            case "pause":
                one.paused = True
                self.clock.after(self.rng.uniform(0.1, 3 * LEASE_S), one.go_on)
            case "database":
                self.row.reached = False
                self.clock.after(self.rng.uniform(0.1, 2 * LEASE_S), self.heal)

    def heal(self) -> None:
        self.row.reached = True


@pytest.mark.parametrize("seed", nightly(range(100), but=range(12)))
def test_never_two_and_in_the_end_one(seed: int) -> None:
    world = World(seed)
    for _ in range(25):
        world.run(world.rng.uniform(0.1, 2 * LEASE_S))
        world.mischief()
    world.run(3 * LEASE_S)
    world.heal()
    world.run(3 * LEASE_S + 10)  # replaying may take five seconds, and the first may be killed before it is ready
    owner = world.answering()
    assert len(owner) == 1
    assert world.row.term > 1
    for one in world.processes.values():
        if one is not owner[0]:
            assert one.tenure.way(one.now()) == RemoteLeader(world.row.term, owner[0].name, "s")


def test_after_a_death_another_answers_soon() -> None:
    world = World(1)
    world.run(10)
    dead = world.answering()[0]
    dead.alive = False
    world.processes.pop(dead.name)
    world.run(LEASE_S + 5 + 4 * LOOK_S)
    assert [one.name for one in world.answering()] != []


def standby(me: str = "a") -> LeaderLease:
    tenure = LeaderLease(me, LEASE_S, LOOK_S)
    assert tenure.next(0.0) == ReadLease()
    return tenure


def test_a_lease_that_is_held_is_looked_at_again_and_followed_while_it_lasts() -> None:
    tenure = standby()
    tenure.looked(0.0, 0.1, LeaseRow(7, "b", 1.0, "http://b", "s"))
    assert tenure.next(0.1) == 0.1 + LOOK_S
    assert tenure.way(0.9) == RemoteLeader(7, "http://b", "s")
    assert tenure.way(1.0) == NoLeader(LOOK_S)  # counted from when it was asked, not from when it was told


def test_an_owner_that_is_not_ready_yet_gets_nothing() -> None:
    tenure = standby()
    tenure.looked(0.0, 0.1, LeaseRow(7, "b", 1.0))
    assert tenure.way(0.2) == NoLeader(LOOK_S)


def test_what_ends_before_the_next_look_is_looked_at_when_it_ends() -> None:
    tenure = standby()
    tenure.looked(0.0, 0.0, LeaseRow(7, "b", 0.1, "http://b", "s"))
    assert tenure.next(0.0) == 0.1


@pytest.mark.parametrize("seen", [LeaseRow(7, "b", -0.1), LeaseRow(7, "a", 9.0), LeaseRow(0, "", 9.0)])
def test_what_has_ended_or_was_its_own_is_taken(seen: LeaseRow) -> None:
    tenure = standby()
    tenure.looked(0.0, 0.0, seen)
    assert tenure.next(0.0) == TakeLease()
    assert tenure.way(0.0) == NoLeader(LOOK_S)


def owner() -> LeaderLease:
    tenure = standby()
    tenure.looked(0.0, 0.0, LeaseRow(7, "b", -0.1))
    assert tenure.next(0.0) == TakeLease()
    tenure.renewed(0.0)
    tenure.took(8)
    return tenure


def test_an_owner_answers_while_nobody_else_can_own() -> None:
    tenure = owner()
    assert tenure.way(0.9 * LEASE_S) == LocalLeader(8)
    assert tenure.way(LEASE_S) == NoLeader(LOOK_S)
    tenure.renewed(LEASE_S)  # late, but no other has taken it
    assert tenure.way(LEASE_S + 0.1) == LocalLeader(8)
    assert tenure.takeovers == 1


def test_a_fenced_owner_drops_everything_and_stands_by() -> None:
    tenure = owner()
    tenure.fenced()
    assert tenure.way(0.1) == NoLeader(LOOK_S)
    assert tenure.next(0.1) == StepDown()
    tenure.dropped(0.2)
    assert tenure.next(0.2) == ReadLease()
    tenure.looked(0.2, 0.3, LeaseRow(9, "b", 1.0, "http://b", "s"))
    assert tenure.way(0.3) == RemoteLeader(9, "http://b", "s")


def test_one_that_is_fenced_while_it_restores_does_not_begin_to_own() -> None:
    tenure = standby()
    tenure.looked(0.0, 0.0, LeaseRow(7, "b", -0.1))
    assert tenure.next(0.0) == TakeLease()
    tenure.renewed(0.0)
    tenure.fenced()
    tenure.took(8)
    assert tenure.next(0.1) == StepDown()


def test_one_that_could_not_begin_lets_the_others_have_a_turn() -> None:
    tenure = standby()
    tenure.looked(0.0, 0.0, LeaseRow(7, "b", -0.1))
    assert tenure.next(0.0) == TakeLease()
    tenure.refused(1.0)
    assert tenure.next(1.0) == 1.0 + LOOK_S
    assert tenure.next(1.0 + LOOK_S) == ReadLease()


def test_old_news_does_not_count() -> None:
    tenure = standby()
    tenure.looked(0.0, 0.0, LeaseRow(7, "b", 1.0, "http://b", "s"))
    tenure.looked(0.0, 0.1, LeaseRow(6, "c", -1.0))
    assert tenure.way(0.1) == RemoteLeader(7, "http://b", "s")


def test_an_owner_that_is_not_to_be_reached_is_left_alone_until_the_next_look() -> None:
    tenure = standby()
    tenure.looked(0.0, 0.0, LeaseRow(7, "b", 1.0, "http://b", "s"))
    tenure.shun(0.1)
    assert tenure.way(0.1) == NoLeader(LOOK_S)
    assert tenure.next(0.1) == LOOK_S
    tenure.looked(LOOK_S, LOOK_S, LeaseRow(7, "b", 1.0, "http://b", "s"))
    assert tenure.way(LOOK_S) == RemoteLeader(7, "http://b", "s")


def test_a_database_that_does_not_answer_is_asked_again() -> None:
    tenure = standby()
    tenure.missed(0.0)
    assert tenure.next(0.0) == LOOK_S


def test_a_lease_is_longer_than_a_look() -> None:
    with pytest.raises(InvalidJob, match="longer"):
        LeaderLease("a", 1.0, 1.0)
