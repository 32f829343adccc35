"""A bucket of bytes: what fills it, what empties it, what is kept of it."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.meter import PAUSE_S, SAVED_S, Meter

HOURLY = 3600 * 100.0
"""100 bytes in a second, and 60,000 saved up."""


class Wire:
    """What has crossed by now."""

    total = 0

    def __call__(self) -> int:
        return self.total


def metered() -> tuple[Meter, Wire]:
    wire = Wire()
    meter = Meter(HOURLY, wire)
    meter.see(0.0)
    return meter, wire


def test_what_crosses_is_counted_and_time_makes_up_for_it() -> None:
    meter, wire = metered()
    assert meter.left == meter.most == 100 * SAVED_S
    wire.total = 50_000
    meter.see(0.0)
    assert meter.left == 10_000
    meter.see(30.0)
    assert meter.left == 13_000
    meter.see(1e6)
    assert meter.left == meter.most, "no more than that is saved up"


def test_what_is_told_counts_at_once_and_not_again_when_it_crosses() -> None:
    meter, wire = metered()
    meter.told(20_000)
    assert meter.left == 40_000
    wire.total = 15_000
    meter.see(0.0)
    assert meter.left == 40_000
    wire.total = 21_000  # the rest of it, and heads
    meter.see(0.0)
    assert meter.left == 39_000


def test_how_long_it_takes() -> None:
    meter, _ = metered()
    assert meter.affords(60_000)
    meter.told(60_100)
    assert not meter.open
    assert meter.wait_s(900) == 10.0
    meter.see(1.5)
    assert meter.open
    assert not meter.affords(51)
    assert meter.wait_s(51) == PAUSE_S, "asking costs bytes as well"
    assert meter.shown(1000) == {"bytes_per_hour": HOURLY, "left": 50, "wait_s": 9.5}


def test_one_exchange_can_always_be_saved_up() -> None:
    meter = Meter(HOURLY)
    meter.fit(70_000)
    assert meter.affords(70_000)
    meter.told(70_000)
    meter.see(0.0)
    assert not meter.affords(1)
    meter.see(700.0)
    assert meter.affords(70_000)
    small, _ = metered()
    small.told(10_000)
    small.fit(70_000)
    assert small.left == 60_000
    again = Meter(HOURLY)
    again.restore(10_000.0)
    again.fit(70_000)
    assert again.left == 10_000, "a new process gets nothing for it"


@given(st.lists(st.integers(0, 30_000), max_size=20))
def test_another_process_goes_on_with_no_more_than_was_left(sizes: list[int]) -> None:
    meter, wire = metered()
    for size in sizes:
        wire.total += size
        meter.see(0.0)
        kept = meter.state()
        assert kept is not None
        again = Meter(HOURLY, wire)
        again.restore(kept)
        again.see(1e9)  # another machine's clock, or this one's after it was switched on
        assert meter.left - meter.most / 32 <= again.left <= meter.left


def test_without_a_limit_nothing_is_counted() -> None:
    meter = Meter()
    meter.see(0.0)
    meter.told(10**18)
    meter.fit(10**18)
    assert (meter.left, meter.wait_s(10**18), meter.state(), meter.shown(1)) == (inf, 0.0, None, None)
    assert meter.affords(10**18)
    meter.restore(None)
    assert meter.open


def test_a_limit_that_is_new_begins_full() -> None:
    meter, _ = metered()
    meter.restore(None)
    assert meter.left == meter.most
    meter.restore(10.0**12)
    assert meter.left == meter.most, "one that was lowered holds as well"


@pytest.mark.parametrize("total", [40_000, 0])
def test_a_count_that_begins_anew_gives_nothing_back(total: int) -> None:
    meter, wire = metered()
    wire.total = 50_000
    meter.see(0.0)
    wire.total = total
    meter.see(0.0)
    assert meter.left == 10_000
    wire.total += 1000
    meter.see(0.0)
    assert meter.left == 9_000
