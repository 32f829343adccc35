"""Thresholds chosen on validation data, exit by exit from the first.

An exit's candidates are the entropies of the examples that earlier exits leave to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, inf

import numpy as np

from shoal.core.errors import InvalidJob
from shoal.core.exits.entropy import Floats
from shoal.core.exits.thresholds import ExitRecord, Numbers

ROUNDING = 1e-9
"""Examples by which a count may miss its bound, because the bound is a float."""


def choose_by_accuracy(record: ExitRecord, loss_max: float = 0.005, margin: float = 0.0) -> tuple[float, ...]:
    """Return thresholds that escalate as little as possible at an accuracy of at least the last exit's - `loss_max`.

    The first exit answers as many examples as the bound allows if the last one answers all others; then the second.
    `margin` is the distance from the bound in standard errors of the difference in accuracy, for other examples than
    these. Raises `InvalidJob` if `loss_max` is not in [0, 1], if `margin` is negative or infinite, and where no
    threshold makes an exit escalate wrong answers.
    """
    if not 0 <= margin < inf:
        raise InvalidJob(f"margin is {margin}, but must be at least 0", code="exits.choice", hint="2: two errors away")
    if not 0 <= loss_max <= 1:
        raise InvalidJob(
            f"loss_max is {loss_max}, but must be in [0, 1]", code="exits.choice", hint="0.005: half a point"
        )
    last = record.correct[-1].astype(np.int64)
    bound = last.sum() - loss_max * last.size - ROUNDING
    reached, differing = int(last.sum()), 0

    def most(number: int, order: Numbers) -> int:
        nonlocal reached, differing
        changes = record.correct[number][order] - last[order]
        gains, differ = (np.concatenate([[0], np.cumsum(one)]) for one in (changes, changes**2))
        allowed = reached + gains - margin * np.sqrt(differing + differ) >= bound
        ordered = record.entropies[number][order]
        ends = np.concatenate([[True], ordered[1:] > ordered[:-1], [True]])[-len(gains) :]  # ties are answered together
        count = int(np.flatnonzero(ends & allowed)[-1])
        reached, differing = reached + int(gains[count]), differing + int(differ[count])
        return count

    return _chosen(record, most)


def choose_by_fraction(record: ExitRecord, fractions: Sequence[float]) -> tuple[float, ...]:
    """Return the least thresholds at which each exit but the last answers a fraction of all examples.

    Raises `InvalidJob` for another number of fractions, or if they are negative or above 1 in total.
    """
    exits, examples = record.entropies.shape
    if len(fractions) != exits - 1 or not (all(one >= 0 for one in fractions) and sum(fractions) <= 1 + ROUNDING):
        text = f"the fractions {list(fractions)} do not fit {exits} exits"
        hint = "give one for each exit but the last, none below 0, at most 1 together"
        raise InvalidJob(text, code="exits.choice", hint=hint)
    return _chosen(record, lambda number, order: min(ceil(fractions[number] * examples - ROUNDING), len(order)))


def _chosen(record: ExitRecord, choose: Callable[[int, Numbers], int]) -> tuple[float, ...]:
    """Return a threshold per exit: `choose` says how many of the remaining examples it answers, the surest first."""
    remaining = np.arange(record.entropies.shape[1])
    found = []
    for number, entropies in enumerate(record.entropies[:-1]):
        order = remaining[np.argsort(entropies[remaining], kind="stable")]
        found.append(_threshold(entropies[order], choose(number, order), number))
        remaining = remaining[entropies[remaining] > found[-1]]
    return tuple(found)


def _threshold(ordered: Floats, count: int, number: int) -> float:
    """Return the least threshold that answers `count` of the entropies, which ascend."""
    if count:
        return float(ordered[count - 1])
    if ordered.size and ordered[0] == 0:
        text = f"exit {number + 1} is certain of examples that it may not answer"
        hint = "train longer, or allow a lower accuracy"
        raise InvalidJob(text, code="exits.choice", hint=hint)
    return float(np.nextafter(ordered[0], 0)) if ordered.size else 0.0
