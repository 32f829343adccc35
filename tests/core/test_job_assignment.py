"""Which coordinator owns which job."""

from __future__ import annotations

import pytest

from shoal.core.owners import LEAD, Owners, chosen, evened
from shoal.core.tenure import SLOWER, Elsewhere, Hold, Lease


def lease(left_s: float, address: str = "http://a", epoch: int = 3) -> Lease:
    return Lease(epoch, "a", left_s, address, "secret")


def test_a_deputy_answers_for_as_long_as_its_lease_lasts_by_the_reader_s_own_clock() -> None:
    owners = Owners({"a": lease(2.0)}, {"main": "a"}, asked=100.0)
    way = Elsewhere(3, "http://a", "secret")
    assert owners.way("a", 101.9) == way
    assert owners.live(101.9) == {"a": way}
    assert owners.way("a", 102.0) is None
    assert owners.live(102.0) == {}


def test_who_does_not_say_where_it_is_does_not_answer() -> None:
    owners = Owners({"a": lease(2.0, address="")}, asked=100.0)
    assert owners.way("a", 100.0) is None
    assert owners.way("b", 100.0) is None
    assert owners.way(LEAD, 100.0) is None


def test_lost_are_those_that_own_jobs_and_whose_lease_the_database_has_ended() -> None:
    deputies = {"gone": lease(-0.1), "idle": lease(-5.0), "here": lease(0.1)}
    jobs = {"one": "gone", "two": "here", "three": "never", "four": "gone"}
    assert Owners(deputies, jobs, asked=0.0).lost() == ["gone", "never"]


@pytest.mark.parametrize(
    ("loads", "first", "moved_to"),
    [
        ({}, LEAD, LEAD),
        ({LEAD: 0, "a": 0}, LEAD, LEAD),
        ({LEAD: 1, "a": 0}, "a", LEAD),
        ({LEAD: 2, "a": 0}, "a", "a"),
        ({LEAD: 2, "b": 1, "a": 1}, "a", LEAD),
        ({LEAD: 5, "b": 1, "a": 2}, "b", "b"),
        ({LEAD: 1, "a": 3}, LEAD, LEAD),
    ],
)
def test_jobs_begin_where_fewest_run_and_move_only_if_that_evens_them_out(
    loads: dict[str, int], first: str, moved_to: str
) -> None:
    assert chosen(loads) == first
    assert evened(loads) == moved_to


def test_moving_one_job_after_the_other_comes_to_an_end() -> None:
    loads = {LEAD: 17, "a": 0, "b": 2, "c": 0}
    moves = 0
    while (to := evened(loads)) != LEAD:
        loads[LEAD], loads[to], moves = loads[LEAD] - 1, loads[to] + 1, moves + 1
        assert moves < 17
    assert max(loads.values()) - min(loads.values()) <= 1


def test_a_holder_counts_on_a_little_less_than_the_lease_from_before_it_asked() -> None:
    hold = Hold(10.0)
    assert not hold.holds(0.0)
    hold.renewed(100.0)
    hold.renewed(99.0)  # answered later, asked earlier
    assert hold.holds(100.0 + 10.0 * SLOWER - 0.01)
    assert not hold.holds(100.0 + 10.0 * SLOWER)
    hold.fenced()
    assert not hold.holds(100.0)
