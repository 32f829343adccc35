"""Which coordinator owns which job."""

from __future__ import annotations

import pytest

from shoal.core.cluster.job_assignment import LEADER, JobOwners, owner_of_new_job, owner_to_move_to
from shoal.core.cluster.leader_lease import SLOWER, HeldLease, LeaseRow, RemoteLeader


def lease(left_s: float, address: str = "http://a", term: int = 3) -> LeaseRow:
    return LeaseRow(term, "a", left_s, address, "secret")


def test_a_follower_answers_until_its_lease_ends_by_the_readers_clock() -> None:
    owners = JobOwners({"a": lease(2.0)}, {"main": "a"}, asked=100.0)
    way = RemoteLeader(3, "http://a", "secret")
    assert owners.way("a", 101.9) == way
    assert owners.live(101.9) == {"a": way}
    assert owners.way("a", 102.0) is None
    assert owners.live(102.0) == {}


def test_who_does_not_say_where_it_is_does_not_answer() -> None:
    owners = JobOwners({"a": lease(2.0, address="")}, asked=100.0)
    assert owners.way("a", 100.0) is None
    assert owners.way("b", 100.0) is None
    assert owners.way(LEADER, 100.0) is None


def test_lost_are_those_that_own_jobs_and_whose_lease_the_database_has_ended() -> None:
    followers = {"gone": lease(-0.1), "idle": lease(-5.0), "here": lease(0.1)}
    jobs = {"one": "gone", "two": "here", "three": "never", "four": "gone"}
    assert JobOwners(followers, jobs, asked=0.0).lost() == ["gone", "never"]


@pytest.mark.parametrize(
    ("loads", "first", "moved_to"),
    [
        ({}, LEADER, LEADER),
        ({LEADER: 0, "a": 0}, LEADER, LEADER),
        ({LEADER: 1, "a": 0}, "a", LEADER),
        ({LEADER: 2, "a": 0}, "a", "a"),
        ({LEADER: 2, "b": 1, "a": 1}, "a", LEADER),
        ({LEADER: 5, "b": 1, "a": 2}, "b", "b"),
        ({LEADER: 1, "a": 3}, LEADER, LEADER),
    ],
)
def test_jobs_begin_where_fewest_run_and_move_only_if_that_evens_them_out(
    loads: dict[str, int], first: str, moved_to: str
) -> None:
    assert owner_of_new_job(loads) == first
    assert owner_to_move_to(loads) == moved_to


def test_moving_one_job_after_the_other_comes_to_an_end() -> None:
    loads = {LEADER: 17, "a": 0, "b": 2, "c": 0}
    moves = 0
    while (to := owner_to_move_to(loads)) != LEADER:
        loads[LEADER], loads[to], moves = loads[LEADER] - 1, loads[to] + 1, moves + 1
        assert moves < 17
    assert max(loads.values()) - min(loads.values()) <= 1


def test_a_holder_counts_on_a_little_less_than_the_lease_from_before_it_asked() -> None:
    hold = HeldLease(10.0)
    assert not hold.holds(0.0)
    hold.renewed(100.0)
    hold.renewed(99.0)  # answered later, asked earlier
    assert hold.holds(100.0 + 10.0 * SLOWER - 0.01)
    assert not hold.holds(100.0 + 10.0 * SLOWER)
    hold.fenced()
    assert not hold.holds(100.0)
