"""Coordinators that own jobs come and go: their jobs find another owner, and nobody writes what is another's."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psycopg
import pytest

from tests.coordinator.history import check
from tests.coordinator.node import History, Node
from tests.coordinator.postgres import rows
from tests.coordinator.replicas import Fleet, deputies, doubled, nodes_of, owners, signal_of
from tests.coordinator.server import Server, until

SIZES = {"first": 10, "second": 66_000}
LEASE_S = 2.0
LASTING_S = 600.0
NODES_S = 2.0

pytestmark = pytest.mark.slow


@dataclass
class Run:
    """Two coordinators and two jobs, of which the lead owns the first and the deputy the second."""

    both: Fleet
    lead: Server
    deputy: Server
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
        """Wait until the lead owns both."""
        until("all to be the lead's", lambda: owners(self.url) == {"first": "", "second": ""})

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
        until("the deputy", lambda: deputies(both.database_url))
        until("both to know", lambda: both.get("/owner")["deputies"] and both.get("/owner")["deputies"])
        for job in SIZES:
            both.begin(job, nodes=2, rounds=100_000)
        at = owners(both.database_url)
        assert at["first"] == ""
        lead = both.owner()
        made.append(Run(both, lead, next(one for one in both.members if one.url == at["second"])))
        assert made[-1].deputy is not lead
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


@pytest.mark.parametrize("who", ["deputy", "lead"])
def test_jobs_of_who_was_killed_are_taken_over(who: str, working: Callable[..., Run]) -> None:
    run = working(LEASE_S)
    gone = run.deputy if who == "deputy" else run.lead
    gone.kill()
    run.both.members.remove(gone)
    run.one_owns_all()
    run.end()


def test_who_was_killed_takes_its_own_jobs_up_again_at_once(working: Callable[..., Run]) -> None:
    """Its lease would last for ten minutes; nobody waits for that."""
    run = working(LASTING_S)
    run.deputy.kill()
    run.deputy.start()
    until("it to own its job", lambda: owners(run.url)["second"] == run.deputy.url)
    run.end()


def test_a_deputy_that_ends_in_good_order_hands_its_jobs_over_at_once(working: Callable[..., Run]) -> None:
    run = working(LASTING_S)
    run.both.members.remove(run.deputy)
    assert run.deputy.end() == 0
    run.one_owns_all()
    run.end()


def test_a_deputy_that_becomes_the_lead_takes_its_jobs_along_at_once(working: Callable[..., Run]) -> None:
    run = working(LASTING_S)
    run.both.members.remove(run.lead)
    assert run.lead.end() == 0
    run.go_on()
    assert owners(run.url) == {"first": "", "second": ""}
    run.end()


def test_a_deputy_that_was_stopped_for_too_long_says_and_writes_nothing(working: Callable[..., Run]) -> None:
    run = working(LEASE_S)
    zombie = run.deputy
    signal_of(zombie, signal.SIGSTOP)
    run.both.members.remove(zombie)
    try:
        run.one_owns_all()
        at = run.both.job("second")["version"]
    finally:
        signal_of(zombie, signal.SIGCONT)
    found = zombie.request("GET", "/api/v1/jobs/second")
    assert found.status_code == 503 or found.json()["version"] >= at
    until("it to be a deputy again", lambda: deputies(run.url))
    assert zombie.request("GET", "/api/v1/jobs/second").json()["version"] >= at
    run.end()


def test_a_transaction_that_a_stopped_deputy_has_left_open_holds_nobody_up(begin: Callable[..., Run]) -> None:
    run = begin(LEASE_S)
    run.deputy.kill()
    with psycopg.connect(run.url) as stopped:
        stopped.execute("UPDATE leases SET commits = 7 WHERE name <> 'coordinator'")
        run.one_owns_all()
        with pytest.raises(psycopg.OperationalError, match="terminat"):
            stopped.execute("SELECT 1")


def test_jobs_move_to_a_deputy_that_comes_later(begin: Callable[..., Run]) -> None:
    """In mid-run; one stays where it is, for then they own as many as each other."""
    run = begin(LEASE_S)
    run.work()
    assert run.deputy.end() == 0
    run.go_on()
    run.deputy.start()
    until("a job to move", lambda: run.deputy.url in owners(run.url).values())
    run.go_on()
    assert sorted(owners(run.url).values()) == sorted(["", run.deputy.url])
    run.end()


def test_a_lead_that_dies_when_it_has_given_a_job_away_loses_nothing(begin: Callable[..., Run]) -> None:
    run = begin(LEASE_S)
    run.work()
    assert run.deputy.end() == 0
    run.lead.kill()
    run.lead.start(crash="owner.given")
    run.go_on()
    run.deputy.start()
    until("the lead to die", lambda: run.lead.ended() is not None)
    until("the other to own all", lambda: run.both.owner() is run.deputy)
    run.lead.start()
    run.end()


def test_nodes_are_not_lost_while_nobody_says_who_is_there(working: Callable[..., Run]) -> None:
    """A deputy does not take nodes for lost when the lead is silent; one that is silent afterwards is."""
    run = working(LASTING_S, lease_s=NODES_S)
    lost = "SELECT 1 FROM feed WHERE job = 'second' AND position('no sign of life' in data::text) > 0"
    signal_of(run.lead, signal.SIGSTOP)
    time.sleep(3 * NODES_S)
    signal_of(run.lead, signal.SIGCONT)
    run.go_on()
    assert rows(run.url, lost) == []
    run.nodes[0].quit.set()
    until("it to be lost", lambda: rows(run.url, lost))
