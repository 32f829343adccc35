"""Coordinators that own jobs come and go: their jobs find another owner, and no coordinator writes to another's job."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psycopg
import pytest

from tests.support.cluster import Fleet, doubled, followers, nodes_of, owners, signal_of
from tests.support.coordinator import Server
from tests.support.history import check
from tests.support.node import History, Node
from tests.support.postgres import rows
from tests.support.waiting import pause, until

SIZES = {"first": 10, "second": 66_000}
LEASE_S = 2.0
LASTING_S = 600.0
NODES_S = 2.0


@dataclass
class Run:
    """Two coordinators and two jobs, of which the leader owns the first and the follower the second."""

    both: Fleet
    leader: Server
    follower: Server
    nodes: list[Node] = field(default_factory=list)
    history: History = field(default_factory=History)

    @property
    def url(self) -> str:
        return self.both.database_url

    def work(self) -> None:
        """Two nodes work on both."""
        self.nodes += nodes_of(self.both, 2, SIZES, self.history)

    def go_on(self) -> None:
        """Wait until each job makes progress."""
        for job in SIZES:
            at = self.both.job(job)["version"]
            until(f"{job} to go on", lambda job=job, at=at: self.both.job(job)["version"] > max(at, 2) + 1)

    def one_owns_all(self) -> None:
        """Wait until the leader owns both."""
        until("all to be the leader's", lambda: owners(self.url) == {"first": "", "second": ""})

    def end(self) -> None:
        """Both go on; stop them, and see that nothing was lost or doubled."""
        self.go_on()
        for job in SIZES:
            self.both.post(f"/jobs/{job}/stop", {"when": "round", "why": "enough"})
        for node in self.nodes:
            node.finish()
        check(self.both, self.history, SIZES, {}, nodes=2)
        assert doubled(self.url) == []


@pytest.fixture
def begin(fleet: Callable[..., Fleet]) -> Iterator[Callable[..., Run]]:
    """Makes such runs; their nodes are told to go in the end."""
    made: list[Run] = []

    def make(owner_s: float, **settings: float) -> Run:
        both = fleet(2, owner_s, **settings)
        until("the follower", lambda: followers(both.database_url))
        until("both to know", lambda: both.get("/leader")["followers"] and both.get("/leader")["followers"])
        for job in SIZES:
            both.begin(job, nodes=2, rounds=100_000)
        at = owners(both.database_url)
        assert at["first"] == ""
        leader = both.owner()
        made.append(Run(both, leader, next(one for one in both.members if one.url == at["second"])))
        assert made[-1].follower is not leader
        return made[-1]

    yield make
    for run in made:
        for node in run.nodes:
            node.quit.set()


@pytest.fixture
def working(begin: Callable[..., Run]) -> Callable[..., Run]:
    """Makes runs in which both jobs make progress."""

    def make(owner_s: float, **settings: float) -> Run:
        run = begin(owner_s, **settings)
        run.work()
        run.go_on()
        return run

    return make


@pytest.mark.parametrize("who", ["follower", "leader"])
def test_jobs_of_a_killed_coordinator_are_taken_over(who: str, working: Callable[..., Run]) -> None:
    run = working(LEASE_S)
    gone = run.follower if who == "follower" else run.leader
    gone.kill()
    run.both.members.remove(gone)
    run.one_owns_all()
    run.end()


def test_a_restarted_follower_resumes_its_own_jobs_at_once(working: Callable[..., Run]) -> None:
    """Its lease would last for ten minutes; the test does not wait for that."""
    run = working(LASTING_S)
    run.follower.kill()
    run.follower.start()
    until("it to own its job", lambda: owners(run.url)["second"] == run.follower.url)
    run.end()


def test_a_follower_that_shuts_down_hands_its_jobs_over_at_once(working: Callable[..., Run]) -> None:
    run = working(LASTING_S)
    run.both.members.remove(run.follower)
    assert run.follower.end() == 0
    run.one_owns_all()
    run.end()


def test_a_follower_that_becomes_leader_keeps_its_jobs(working: Callable[..., Run]) -> None:
    run = working(LASTING_S)
    run.both.members.remove(run.leader)
    assert run.leader.end() == 0
    run.go_on()
    assert owners(run.url) == {"first": "", "second": ""}
    run.end()


def test_a_follower_paused_beyond_its_lease_answers_and_writes_nothing(working: Callable[..., Run]) -> None:
    run = working(LEASE_S)
    zombie = run.follower
    signal_of(zombie, signal.SIGSTOP)
    run.both.members.remove(zombie)
    try:
        run.one_owns_all()
        at = run.both.job("second")["version"]
    finally:
        signal_of(zombie, signal.SIGCONT)
    found = zombie.request("GET", "/api/v1/jobs/second")
    assert found.status_code == 503 or found.json()["version"] >= at
    until("it to be a follower again", lambda: followers(run.url))
    assert zombie.request("GET", "/api/v1/jobs/second").json()["version"] >= at
    run.end()


def test_an_open_transaction_of_a_paused_follower_blocks_nobody(begin: Callable[..., Run]) -> None:
    run = begin(LEASE_S)
    run.follower.kill()
    with psycopg.connect(run.url) as stopped:
        stopped.execute("UPDATE leases SET commits = 7 WHERE name <> 'coordinator'")
        run.one_owns_all()
        with pytest.raises(psycopg.OperationalError, match="terminat"):
            stopped.execute("SELECT 1")


def test_jobs_move_to_a_follower_that_joins_later(begin: Callable[..., Run]) -> None:
    """In mid-run; one stays where it is, for then they own as many as each other."""
    run = begin(LEASE_S)
    run.work()
    assert run.follower.end() == 0
    run.go_on()
    run.follower.start()
    until("a job to move", lambda: run.follower.url in owners(run.url).values())
    run.go_on()
    assert sorted(owners(run.url).values()) == sorted(["", run.follower.url])
    run.end()


def test_a_leader_that_dies_after_giving_a_job_away_loses_nothing(begin: Callable[..., Run]) -> None:
    run = begin(LEASE_S)
    run.work()
    assert run.follower.end() == 0
    run.leader.kill()
    run.leader.start(crash="owner.assigned")
    run.go_on()
    run.follower.start()
    until("the leader to die", lambda: run.leader.ended() is not None)
    until("the other to own all", lambda: run.both.owner() is run.follower)
    run.leader.start()
    run.end()


def test_nodes_are_not_lost_while_the_leader_is_silent(working: Callable[..., Run]) -> None:
    """A follower does not take nodes for lost when the leader is silent; one that is silent afterwards is."""
    run = working(LASTING_S, lease_s=NODES_S)
    lost = "SELECT 1 FROM job_events WHERE job = 'second' AND position('no sign of life' in data::text) > 0"
    signal_of(run.leader, signal.SIGSTOP)
    pause(3 * NODES_S)
    signal_of(run.leader, signal.SIGCONT)
    run.go_on()
    assert rows(run.url, lost) == []
    run.nodes[0].quit.set()
    until("it to be lost", lambda: rows(run.url, lost))
