"""Many runs over each other, in one answer: their lines, thinned out, and what a byte bought, reckoned of all versions.

The figures are those of `shoal compare` (shoal/results/compare.py): best, last, and the first version that meets a
target.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

from sqlalchemy import select

from shoal.results.compare import SHARE, lower_is_better
from shoal_coordinator.presenters.job_presenter import JobPresenter
from shoal_coordinator.schemas.comparisons import ComparedRun, ComparedSeries, RunComparison, TargetReached
from shoal_coordinator.schemas.values import Metric
from shoal_coordinator.storage.tables import versions
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry.traffic import TrafficCounter

KEPT = 128
"""Ended runs whose columns are remembered: they change no more."""

AT_ONCE = 10
"""Runs that are read together."""

DRAWN = ("accuracy", "loss")
HELD_OUT = "held_out/"


@dataclass
class VersionColumns:
    """The versions of a run, column by column. A metric that a version does not have is None; nan: not finite."""

    numbers: list[int] = field(default_factory=list)
    closed: list[float] = field(default_factory=list)
    metrics: dict[str, list[float | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Sequence[Sequence[Any]]) -> VersionColumns:
        """Build a run from its versions' numbers, closing times and metrics."""
        all_metrics = [metrics for *_, metrics in rows]
        names = filter(_is_drawn, set().union(*all_metrics))
        columns = {
            name: [_number(metrics[name]) if name in metrics else None for metrics in all_metrics] for name in names
        }
        return cls([number for number, _, _ in rows], [closed for _, closed, _ in rows], columns)

    def without(self, number: int) -> VersionColumns:
        """Return the run without the nodes' metrics of one version, which are incomplete."""
        kept = [one != number for one in self.numbers]
        metrics = {
            name: values if name.startswith(HELD_OUT) else [v if k else None for v, k in zip(values, kept, strict=True)]
            for name, values in self.metrics.items()
        }
        return VersionColumns(self.numbers, self.closed, metrics)

    def names(self, what: str) -> set[str]:
        """Return the run's metrics of one kind."""
        return {name for name in self.metrics if name == what or name.endswith(f"/{what}")}

    def values(self, metric: str) -> list[float | None]:
        """Return a metric, version by version."""
        return self.metrics.get(metric, [])


class RunComparer:
    """Comparison of runs, with a cache of those that have ended."""

    def __init__(self, database: Database, presenter: JobPresenter, traffic: TrafficCounter) -> None:
        self._database, self._presenter, self._traffic = database, presenter, traffic
        self._ended: OrderedDict[str, VersionColumns] = OrderedDict()

    async def compare(self, names: Sequence[str], target: float | None, points: int) -> RunComparison:
        """Return runs in the order of their names. Raises `Refused` (404) for an unknown job."""
        jobs = await self._presenter.named(names)
        known = await self._columns(names, {job.name for job in jobs if job.ended_at is not None})
        runs = [
            known[name]
            if job.provisional is None or job.metrics_version is None
            else known[name].without(job.metrics_version)
            for name, job in zip(names, jobs, strict=True)
        ]
        metrics = {what: common_metric(what, runs) for what in DRAWN}
        judged = next((name for name in metrics.values() if name is not None), None)
        scores = [Score(run, judged) for run in runs]
        wanted = target if target is not None else usual_target(judged, scores)
        drawn = [name for name in metrics.values() if name is not None]
        compared = []
        for name, job, run, score in zip(names, jobs, runs, scores, strict=True):
            totals, hit = _totals(self._traffic, name, run), score.first_to_meet(wanted)
            line = _line(run, totals, drawn, thinned(run, drawn, points, keep={score.best_at, hit}))
            syncs = run.numbers[-1] if run.numbers else 0
            figures = {"last": score.last, "best": score.best, "syncs": syncs, "reached": _reached(run, totals, hit)}
            compared.append(ComparedRun(job=job, line=line, **figures))
        dearest = max(jobs, key=lambda job: job.up_bytes + job.down_bytes)
        return RunComparison(metrics=metrics, judged=judged, target=wanted, baseline=dearest.name, runs=compared)

    async def _columns(self, names: Sequence[str], ended: set[str]) -> dict[str, VersionColumns]:
        """Read the columns of runs. `ended`: runs that had ended before the read."""
        found = {name: self._ended[name] for name in names if name in self._ended}
        unknown = [name for name in names if name not in found]
        fresh: dict[str, VersionColumns] = {}
        for place in range(0, len(unknown), AT_ONCE):
            fresh |= await self._read(unknown[place : place + AT_ONCE])
        self._ended.update((name, fresh[name]) for name in ended & fresh.keys())
        while len(self._ended) > KEPT:
            self._ended.popitem(last=False)
        return found | fresh

    async def _read(self, names: Sequence[str]) -> dict[str, VersionColumns]:
        """Read a few runs in one query; the event loop can run between two queries."""
        query = select(versions.c.job, versions.c.number, versions.c.closed_s, versions.c.metrics)
        query = query.where(versions.c.job.in_(names)).order_by(versions.c.job, versions.c.number)
        async with self._database.reader.connect() as connection:
            found = await connection.execute(query)
        rows: dict[str, list[Sequence[Any]]] = {name: [] for name in names}
        for job, *row in found:
            rows[job].append(row)
        runs: dict[str, VersionColumns] = {}
        for name in names:
            runs[name] = VersionColumns.of(rows.pop(name))
            await asyncio.sleep(0)
        return runs


class Score:
    """Result of a run, by the metric of the comparison."""

    def __init__(self, run: VersionColumns, metric: str | None) -> None:
        values = run.values(metric) if metric is not None else []
        self._sign = -1.0 if metric is not None and lower_is_better(metric) else 1.0
        self._finite = [
            (self._sign * value, place) for place, value in enumerate(values) if value is not None and isfinite(value)
        ]
        measured = [value for value in values if value is not None]
        self.last: Metric | None = _metric_value(measured[-1]) if measured else None
        top = max(self._finite, key=lambda pair: (pair[0], -pair[1]), default=None)
        self.best = self._sign * top[0] if top is not None else None
        self.best_at = top[1] if top is not None else None

    def first_to_meet(self, target: float | None) -> int | None:
        """Return the index of the first version that reaches the target."""
        if target is None:
            return None
        return next((place for value, place in self._finite if value >= self._sign * target), None)


def usual_target(metric: str | None, scores: Iterable[Score]) -> float | None:
    """Return the default target: slightly below the best value of the worst run."""
    bests = [score.best for score in scores if score.best is not None]
    if metric is None or not bests:
        return None
    return max(bests) / SHARE if lower_is_better(metric) else min(bests) * SHARE


def common_metric(what: str, runs: Sequence[VersionColumns]) -> str | None:
    """Return the metric of a kind that most runs have, held-out data first; None if no two runs share one.

    `shoal compare` refuses runs that do not all have it; a page shows the others, and nothing for those.
    """
    having = Counter(name for run in runs for name in run.names(what))
    shared = sorted(name for name, number in having.items() if number >= min(2, len(runs)))
    return min(shared, key=lambda name: (-having[name], not name.startswith(HELD_OUT)), default=None)


def thinned(run: VersionColumns, metrics: Sequence[str], points: int, keep: set[int | None]) -> list[int]:
    """Return about `points` evenly spaced places, plus `keep`, the last of each metric, and those not finite."""
    count = len(run.numbers)
    if count <= points:
        return list(range(count))
    places = {round(i * (count - 1) / max(1, points - 1)) for i in range(points)} | (keep - {None})
    for metric in metrics:
        values = run.values(metric)
        places |= {place for place, value in enumerate(values) if value is not None and not isfinite(value)}
        places |= {max((place for place, value in enumerate(values) if value is not None), default=0)}
    return sorted(place for place in places if place is not None)


def _line(run: VersionColumns, totals: Sequence[int], metrics: Sequence[str], places: Sequence[int]) -> ComparedSeries:
    elapsed = _elapsed(run)
    values = {name: run.values(name) for name in metrics}
    return ComparedSeries(
        numbers=[run.numbers[place] for place in places],
        elapsed_s=[elapsed[place] for place in places],
        total_bytes=[totals[place] for place in places],
        values={name: [_metric_value(column[place]) for place in places] for name, column in values.items()},
    )


def _reached(run: VersionColumns, totals: Sequence[int], hit: int | None) -> TargetReached | None:
    if hit is None:
        return None
    return TargetReached(version=run.numbers[hit], elapsed_s=_elapsed(run)[hit], total_bytes=totals[hit])


def _elapsed(run: VersionColumns) -> list[float]:
    return [closed - run.closed[0] for closed in run.closed]


def _totals(traffic: TrafficCounter, job: str, run: VersionColumns) -> list[int]:
    """Return bytes of both directions, from the start to the end of the round that made each version."""
    spent = traffic.spent(job, run.numbers)
    return [sum(one) if number else 0 for number, one in zip(run.numbers, spent, strict=True)]


def _is_drawn(name: str) -> bool:
    return any(name == what or name.endswith(f"/{what}") for what in DRAWN)


def _number(value: object) -> float:
    """Return a stored value: a number, or a text if it is not finite."""
    return float(value) if isinstance(value, int | float) else nan


def _metric_value(value: float | None) -> Metric | None:
    return "NaN" if value is not None and not isfinite(value) else value
