"""A bucket of bytes: what fills it, what empties it, what is kept of it."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.gossip.byte_budget import PAUSE_S, SAVED_S, ByteBudget

HOURLY = 3600 * 100.0
"""100 bytes in a second, and 60,000 saved up."""


class Wire:
    """Return the bytes that have crossed by now."""

    total = 0

    def __call__(self) -> int:
        return self.total


def metered() -> tuple[ByteBudget, Wire]:
    wire = Wire()
    meter = ByteBudget(HOURLY, wire)
    meter.refresh(0.0)
    return meter, wire


def test_what_crosses_is_counted_and_time_makes_up_for_it() -> None:
    meter, wire = metered()
    assert meter.balance == meter.capacity == 100 * SAVED_S
    wire.total = 50_000
    meter.refresh(0.0)
    assert meter.balance == 10_000
    meter.refresh(30.0)
    assert meter.balance == 13_000
    meter.refresh(1e6)
    assert meter.balance == meter.capacity, "no more than that is saved up"


def test_what_is_told_counts_at_once_and_not_again_when_it_crosses() -> None:
    meter, wire = metered()
    meter.charge(20_000)
    assert meter.balance == 40_000
    wire.total = 15_000
    meter.refresh(0.0)
    assert meter.balance == 40_000
    wire.total = 21_000  # the rest of it, and heads
    meter.refresh(0.0)
    assert meter.balance == 39_000


def test_how_long_it_takes() -> None:
    meter, _ = metered()
    assert meter.affords(60_000)
    meter.charge(60_100)
    assert not meter.is_positive
    assert meter.wait_s(900) == 10.0
    meter.refresh(1.5)
    assert meter.is_positive
    assert not meter.affords(51)
    assert meter.wait_s(51) == PAUSE_S, "asking costs bytes as well"
    assert meter.status(1000) == {"bytes_per_hour": HOURLY, "left": 50, "wait_s": 9.5}


def test_one_exchange_can_always_be_saved_up() -> None:
    meter = ByteBudget(HOURLY)
    meter.ensure_capacity(70_000)
    assert meter.affords(70_000)
    meter.charge(70_000)
    meter.refresh(0.0)
    assert not meter.affords(1)
    meter.refresh(700.0)
    assert meter.affords(70_000)
    small, _ = metered()
    small.charge(10_000)
    small.ensure_capacity(70_000)
    assert small.balance == 60_000
    again = ByteBudget(HOURLY)
    again.restore(10_000.0)
    again.ensure_capacity(70_000)
    assert again.balance == 10_000, "a new process gets nothing for it"


@given(st.lists(st.integers(0, 30_000), max_size=20))
def test_another_process_goes_on_with_no_more_than_was_left(sizes: list[int]) -> None:
    meter, wire = metered()
    for size in sizes:
        wire.total += size
        meter.refresh(0.0)
        kept = meter.state()
        assert kept is not None
        again = ByteBudget(HOURLY, wire)
        again.restore(kept)
        again.refresh(1e9)  # another machine's clock, or this one's after it was switched on
        assert meter.balance - meter.capacity / 32 <= again.balance <= meter.balance


def test_without_a_limit_nothing_is_counted() -> None:
    meter = ByteBudget()
    meter.refresh(0.0)
    meter.charge(10**18)
    meter.ensure_capacity(10**18)
    assert (meter.balance, meter.wait_s(10**18), meter.state(), meter.status(1)) == (inf, 0.0, None, None)
    assert meter.affords(10**18)
    meter.restore(None)
    assert meter.is_positive


def test_a_limit_that_is_new_begins_full() -> None:
    meter, _ = metered()
    meter.restore(None)
    assert meter.balance == meter.capacity
    meter.restore(10.0**12)
    assert meter.balance == meter.capacity, "one that was lowered holds as well"


@pytest.mark.parametrize("total", [40_000, 0])
def test_a_count_that_begins_anew_gives_nothing_back(total: int) -> None:
    meter, wire = metered()
    wire.total = 50_000
    meter.refresh(0.0)
    wire.total = total
    meter.refresh(0.0)
    assert meter.balance == 10_000
    wire.total += 1000
    meter.refresh(0.0)
    assert meter.balance == 9_000
