"""Coordinators that own jobs come and go: their jobs find another owner, and nobody writes what is another's."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest

from tests.coordinator.history import check
from tests.coordinator.node import History
from tests.coordinator.postgres import Cluster, rows
from tests.coordinator.replicas import Fleet, deputies, doubled, nodes_of, owners, signal_of
from tests.coordinator.server import Server, until

SIZES = {"first": 10, "second": 66_000}
LEASE_S = 2.0
LASTING_S = 600.0
NODES_S = 2.0


@pytest.fixture
def fleet(cluster: Cluster, tmp_path: Path, server: Callable[..., Server]) -> Iterator[Callable[..., Fleet]]:
    made: list[Fleet] = []

    def make(count: int, owner_s: float, **more: float) -> Fleet:
        made.append(Fleet(partial(server, **more), tmp_path, cluster.database(), count, owner_s))
        until("deputies", lambda: len(deputies(made[-1].database_url)) == count - 1)
        until("all to know", lambda: len(made[-1].get("/owner")["deputies"]) == count - 1)
        return made[-1]

    yield make
    for one in made:
        for member in one.members:
            if member.pid:
                signal_of(member, signal.SIGCONT)
        one.close()


def spread(both: Fleet, rounds: int = 100_000) -> Server:
    """Two jobs, of which a deputy owns the second: that one."""
    for job in SIZES:
        both.begin(job, nodes=2, rounds=rounds)
    at = owners(both.database_url)
    assert at["first"] == ""
    return next(one for one in both.members if one.url == at["second"])


def going_on(both: Fleet) -> None:
    """Wait until each job makes progress."""
    for job in SIZES:
        at = both.job(job)["version"]
        until(f"{job} to go on", lambda job=job, at=at: both.job(job)["version"] > max(at, 2) + 1)


def ended(both: Fleet, nodes: list, history: History) -> None:  # type: ignore[type-arg]
    """Stop both jobs, and see that nothing was lost or doubled."""
    for job in SIZES:
        both.post(f"/jobs/{job}/stop", {"when": "round", "why": "enough"})
    for node in nodes:
        node.finish()
    check(both, history, SIZES, {}, nodes=2)
    assert doubled(both.database_url) == []


@pytest.mark.slow
@pytest.mark.parametrize("who", ["deputy", "lead"])
def test_jobs_of_who_was_killed_are_taken_over(who: str, fleet: Callable[..., Fleet]) -> None:
    both, history = fleet(2, LEASE_S), History()
    deputy = spread(both)
    nodes = nodes_of(both, 2, SIZES, history)
    going_on(both)
    gone = deputy if who == "deputy" else both.owner()
    gone.kill()
    both.members.remove(gone)
    until("all to be the other's", lambda: owners(both.database_url) == {"first": "", "second": ""})
    going_on(both)
    ended(both, nodes, history)


@pytest.mark.slow
def test_who_was_killed_takes_its_own_jobs_up_again_at_once(fleet: Callable[..., Fleet]) -> None:
    """Its lease would last for ten minutes; nobody waits for that."""
    both, history = fleet(2, LASTING_S), History()
    deputy = spread(both)
    nodes = nodes_of(both, 2, SIZES, history)
    going_on(both)
    deputy.kill()
    deputy.start()
    until("it to own its job", lambda: owners(both.database_url)["second"] == deputy.url)
    going_on(both)
    ended(both, nodes, history)


@pytest.mark.slow
def test_a_deputy_that_ends_in_good_order_hands_its_jobs_over_at_once(fleet: Callable[..., Fleet]) -> None:
    both, history = fleet(2, LASTING_S), History()
    deputy = spread(both)
    nodes = nodes_of(both, 2, SIZES, history)
    going_on(both)
    both.members.remove(deputy)
    assert deputy.end() == 0
    until("the lead to own all", lambda: owners(both.database_url) == {"first": "", "second": ""})
    going_on(both)
    ended(both, nodes, history)


@pytest.mark.slow
def test_a_deputy_that_becomes_the_lead_takes_its_jobs_along_at_once(fleet: Callable[..., Fleet]) -> None:
    both, history = fleet(2, LASTING_S), History()
    spread(both)
    nodes = nodes_of(both, 2, SIZES, history)
    going_on(both)
    lead = both.owner()
    both.members.remove(lead)
    assert lead.end() == 0
    going_on(both)
    assert owners(both.database_url) == {"first": "", "second": ""}
    ended(both, nodes, history)


@pytest.mark.slow
def test_a_deputy_that_was_stopped_for_too_long_says_and_writes_nothing(fleet: Callable[..., Fleet]) -> None:
    both, history = fleet(2, LEASE_S), History()
    zombie = spread(both)
    nodes = nodes_of(both, 2, SIZES, history)
    going_on(both)
    signal_of(zombie, signal.SIGSTOP)
    both.members.remove(zombie)
    until("the lead to own all", lambda: owners(both.database_url) == {"first": "", "second": ""})
    at = both.job("second")["version"]
    signal_of(zombie, signal.SIGCONT)
    found = zombie.request("GET", "/api/v1/jobs/second")
    assert found.status_code == 503 or found.json()["version"] >= at
    until("it to be a deputy again", lambda: deputies(both.database_url))
    assert zombie.request("GET", "/api/v1/jobs/second").json()["version"] >= at
    going_on(both)
    ended(both, nodes, history)


@pytest.mark.slow
def test_a_transaction_that_a_stopped_deputy_has_left_open_holds_nobody_up(fleet: Callable[..., Fleet]) -> None:
    both = fleet(2, LEASE_S)
    deputy = spread(both)
    deputy.kill()
    with psycopg.connect(both.database_url) as stopped:
        stopped.execute("UPDATE leases SET commits = 7 WHERE name <> 'coordinator'")
        until("the lead to own all", lambda: owners(both.database_url) == {"first": "", "second": ""})
        with pytest.raises(psycopg.OperationalError, match="terminat"):
            stopped.execute("SELECT 1")


@pytest.mark.slow
def test_jobs_move_to_a_deputy_that_comes_later(fleet: Callable[..., Fleet]) -> None:
    """In mid-run; one stays where it is, for then they own as many as each other."""
    both, history = fleet(2, LEASE_S), History()
    deputy = spread(both)
    nodes = nodes_of(both, 2, SIZES, history)
    assert deputy.end() == 0
    going_on(both)
    deputy.start()
    until("a job to move", lambda: deputy.url in owners(both.database_url).values())
    going_on(both)
    assert sorted(owners(both.database_url).values()) == sorted(["", deputy.url])
    ended(both, nodes, history)


@pytest.mark.slow
def test_a_lead_that_dies_when_it_has_given_a_job_away_loses_nothing(fleet: Callable[..., Fleet]) -> None:
    both, history = fleet(2, LEASE_S), History()
    deputy = spread(both)
    nodes = nodes_of(both, 2, SIZES, history)
    assert deputy.end() == 0
    lead = both.owner()
    lead.kill()
    lead.start(crash="owner.given")
    going_on(both)
    deputy.start()
    until("the lead to die", lambda: lead.ended() is not None)
    until("the other to own all", lambda: both.owner() is deputy)
    lead.start()
    going_on(both)
    ended(both, nodes, history)


@pytest.mark.slow
def test_nodes_are_not_lost_while_nobody_says_who_is_there(fleet: Callable[..., Fleet]) -> None:
    """A deputy does not take nodes for lost when the lead is silent; one that is silent afterwards is."""
    both, history = fleet(2, LASTING_S, lease_s=NODES_S), History()
    spread(both)
    nodes = nodes_of(both, 2, SIZES, history)
    going_on(both)
    lead, lost = (
        both.owner(),
        "SELECT 1 FROM feed WHERE job = 'second' AND position('no sign of life' in data::text) > 0",
    )
    signal_of(lead, signal.SIGSTOP)
    time.sleep(3 * NODES_S)
    signal_of(lead, signal.SIGCONT)
    going_on(both)
    assert rows(both.database_url, lost) == []
    nodes[0].quit.set()
    until("it to be lost", lambda: rows(both.database_url, lost))
    nodes[1].quit.set()
