"""Many nodes do not come all at once: neither after an outage, nor ever again."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from shoal.core.scheduling.pace_steering import BUSY, SHARE_MIN, WINDOW_S_MAX, LoadEstimate
from shoal.runtime.http.retry import RETRY_AFTER_S_MAX, Backoff

NODES, RATE, WAIT_S = 10_000, 1000.0, 25.0
SLACK = 1.15
"""Draws are uneven: a thousand a second has a standard deviation of thirty."""

Answer = Callable[[Random], tuple[float, float]]
"""How long a request is held, and the pause that its answer asks for."""


def herd(first: Callable[[Random], float], answer: Answer, until_s: float, seed: int = 1) -> Counter[int]:
    """So many nodes that come, are held, pause, and come again: arrivals by second."""
    rng = Random(seed)
    coming = [first(rng) for _ in range(NODES)]
    heapq.heapify(coming)
    found: Counter[int] = Counter()
    while coming[0] < until_s:
        at = coming[0]
        found[int(at)] += 1
        heapq.heapreplace(coming, at + sum(answer(rng)))
    return found


def at_once(rng: Random) -> float:
    """The network is back: all nodes come within the same second."""
    return rng.uniform(0.0, 1.0)


def held_open(rng: Random) -> tuple[float, float]:
    return WAIT_S, LoadEstimate(NODES, 0.2, RATE).pause_s(WAIT_S, rng)


def asked_at_once(rng: Random) -> tuple[float, float]:
    """Clients that hold no poll open, or are refused."""
    return 0.05, LoadEstimate(NODES, 0.2, RATE).pause_s(0.05, rng)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("answer", [held_open, asked_at_once])
def test_a_herd_that_comes_at_once_is_spread_from_then_on(answer: Answer, seed: int) -> None:
    found = herd(at_once, answer, 300.0, seed)
    assert found[0] == NODES  # no answer could tell them before
    assert max(count for second, count in found.items() if second > 0) <= SLACK * RATE


def test_without_pauses_the_herd_stays_one() -> None:
    found = herd(at_once, lambda _rng: (WAIT_S, 0.0), 300.0)
    assert max(count for second, count in found.items() if second > 0) > 0.9 * NODES


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_herd_comes_back_after_an_outage(seed: int) -> None:
    """Edge clients that have lost the coordinator at the same instant, with the pauses that they make by themselves."""
    down_s, backoff = 120.0, Backoff()
    random.seed(seed)  # a backoff draws from the process's own

    def returns(_rng: Random) -> float:
        at, tried = 0.0, 0
        while at < down_s:
            tried += 1
            at += backoff.pause_s(tried, ConnectionError())
        return at - down_s

    found = herd(returns, held_open, 300.0, seed)
    assert sum(found[second] for second in range(31)) >= NODES  # within its longest pause every node is back
    assert max(found.values()) <= SLACK * RATE


def test_no_turn_is_shorter_than_a_window_or_longer_than_two_and_the_wait() -> None:
    burden, rng = LoadEstimate(100_000, 0.0, RATE), Random(1)
    for held_s in (0.0, WAIT_S, 3 * burden.window_s):
        turns = [held_s + burden.pause_s(held_s, rng) for _ in range(20_000)]
        least = max(burden.window_s, held_s)
        assert least <= min(turns) < 1.01 * least
        assert max(turns) <= least + burden.window_s


def test_few_nodes_are_not_paused_and_none_for_longer_than_clients_obey() -> None:
    rng = Random(1)
    assert {LoadEstimate(nodes, 0.0, RATE).pause_s(0.0, rng) for nodes in (0, 1, 999)} == {0.0}
    many = LoadEstimate(10**9, 1.0, RATE)
    assert many.window_s == WINDOW_S_MAX
    assert max(many.pause_s(0.0, rng) for _ in range(10_000)) <= many.pause_s_max <= RETRY_AFTER_S_MAX


def test_a_busy_coordinator_takes_on_less() -> None:
    rates = [LoadEstimate(1, load, RATE).rate for load in (0.0, BUSY, (1 + BUSY) / 2, 1.0, 7.0)]
    assert rates == pytest.approx([RATE, RATE, RATE / 2, SHARE_MIN * RATE, SHARE_MIN * RATE])


def test_a_seed_says_it_all() -> None:
    burden = LoadEstimate(NODES, 0.9, RATE)
    assert [burden.pause_s(1.0, Random(7)) for _ in range(3)] == [burden.pause_s(1.0, Random(7))] * 3
