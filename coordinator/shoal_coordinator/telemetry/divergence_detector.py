"""Detection of concept drift by the coordinator: models diverge faster, so that they are synchronized more often.

The rule, over the versions of a job of dynamic averaging: the last `WINDOW` took less than 1 / `FACTOR` of the time of
the `WINDOW` before them, and the threshold is not lower than it was. Both windows begin after the last drift that was
found, so each change is told once. Learning itself makes synchronizations rarer, never more frequent.

Or what nodes measure says it outright: the loss of each of the last `LOSS_WINDOW` measured versions is more than
`LOSS_FACTOR` times that of every one of the `WINDOW` measured before them. Where the threshold follows the data, the
rate may stay the same.

Where violations came at random (as a Poisson process) one comparison in 16 would be a false alarm; real ones are far
more regular, because nodes that start from one model take about as long to leave it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from sqlalchemy import Connection, select, update

from shoal.core.protocol.machine import ModelVersion
from shoal_coordinator.storage.tables import versions

WINDOW = 6
"""Synchronizations on each side."""

FACTOR = 2.5

LOSS_WINDOW = 3
LOSS_FACTOR = 1.5
LOOKBACK = 10 * WINDOW
"""Versions among which the measured ones are sought: nodes measure far fewer than they synchronize."""
LOSSES = ("train/loss", "eval/loss", "held_out/loss")
"""Metrics that tell of it, the quickest first."""

DRIFT_FACTOR, SINCE, BY_LOSS = "concept_drift.factor", "concept_drift.since", "concept_drift.by_loss"
"""Numbers of a version at which concept drift was found: by how much the rate (or, with the third, the loss) has risen,
and since which version."""


@dataclass(frozen=True)
class Closed:
    """A version as the rule sees it: its seconds (without pauses), and the threshold."""

    seconds: float
    threshold: float


def rate_rise(closed: Sequence[Closed]) -> float | None:
    """Return the rise of the rate, if it has risen; `closed` are the versions since the last drift, oldest first."""
    if len(closed) < 2 * WINDOW:
        return None
    before, last = closed[-2 * WINDOW : -WINDOW], closed[-WINDOW:]
    took = max(sum(one.seconds for one in last), 1e-6)
    ratio = sum(one.seconds for one in before) / took
    return ratio if ratio >= FACTOR and last[-1].threshold >= before[0].threshold else None


def loss_rise(losses: Sequence[float]) -> float | None:
    """Return the rise of the loss, if it has risen; `losses`: those of measured versions, oldest first."""
    if len(losses) < WINDOW + LOSS_WINDOW:
        return None
    before, last = losses[-WINDOW - LOSS_WINDOW : -LOSS_WINDOW], losses[-LOSS_WINDOW:]
    if max(before) <= 0 or min(last) <= LOSS_FACTOR * max(before):
        return None
    return (sum(last) / LOSS_WINDOW) / (sum(before) / WINDOW)


def threshold(numbers: Mapping[str, Any]) -> float | None:
    """Return the threshold above which a schedule synchronizes, from its numbers: Delta or Theta."""
    found = numbers.get("delta", numbers.get("theta"))
    return found if isinstance(found, int | float) else None


def find(connection: Connection, job: str, version: ModelVersion) -> str | None:
    """Look for concept drift at a version that was just written down; marks it, and says it in a sentence."""
    if threshold(version.numbers) is None:
        return None
    columns = (versions.c.number, versions.c.opened_s, versions.c.closed_s, versions.c.numbers, versions.c.metrics)
    query = select(*columns).where(versions.c.job == job, versions.c.number.between(1, version.number))
    rows = connection.execute(query.order_by(versions.c.number.desc()).limit(LOOKBACK)).all()
    rows = list(takewhile(lambda row: DRIFT_FACTOR not in row.numbers, rows))
    pairs = [(row, threshold(row.numbers)) for row in rows[: 2 * WINDOW]]
    rise = rate_rise([Closed(row.closed_s - row.opened_s, limit) for row, limit in pairs if limit is not None][::-1])
    by_loss = None if rise is not None else _first_loss_rise(rows[::-1])
    if rise is not None:
        marks = {DRIFT_FACTOR: rise, SINCE: version.number - WINDOW}
        text = f"models diverge {rise:.1f} times as fast since version {version.number - WINDOW}"
    elif by_loss is not None:
        rise, since, name = by_loss
        marks = {DRIFT_FACTOR: rise, SINCE: since, BY_LOSS: 1.0}
        text = f"{name} is {rise:.1f} times as high since version {since}"
    else:
        return None
    here = (versions.c.job == job, versions.c.number == version.number)
    connection.execute(update(versions).where(*here).values(numbers={**rows[0].numbers, **marks}))
    return f"{text}: the data seem to have changed"


def _first_loss_rise(rows: Sequence[Any]) -> tuple[float, int, str] | None:
    """Return (rise of a loss, since which version, its name); `rows`: versions, oldest first."""
    for name in LOSSES:
        told = [(row.number, row.metrics[name]) for row in rows if isinstance(row.metrics.get(name), int | float)]
        rise = loss_rise([loss for _, loss in told])
        if rise is not None:
            return rise, told[-LOSS_WINDOW][0], name
    return None
