"""Queries of charts on counted reports, by client and round or over all clients, thinned out in the database.

Metrics of reports are shown at the version to whose mean they count: the one whose model they measure, or, under
schedules that accept late reports, the newest one when the report came (`ReportHandler`). The coordinator's own
measurements (seconds, bytes, staleness, norm) are shown at the round that the report became part of.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import ColumnElement, Float, Row, Select, case, cast, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from shoal_coordinator.schemas.reports import Heatmap, HeatmapRow, NodeSeries, Quantiles, ReportPhases, ReportRow
from shoal_coordinator.schemas.values import Metric, iso
from shoal_coordinator.storage.dialects import finite, json_value, whole_sum
from shoal_coordinator.storage.tables import reports, traffic

MEASURED = ("seconds", "wait_s", "download_s", "train_s", "upload_s", "fold_s", "staleness", "norm", "weight")
"""Columns of a report that can be drawn."""

BYTES = {"up_bytes": "up", "down_bytes": "down"}
"""Quantities of the traffic table by direction, recorded under the version that a round started from."""

SAMPLED = 400
"""Number of the newest, and of the oldest, reports that are searched for names of metrics."""

DIGITS = 6
"""Significant digits of what charts draw by client and round. More would be two thirds of the answer's size."""

_Bundle = tuple[list[float], int]
"""The finite values of a column, and the number of the others."""

LOW, HIGH = 10, 90
"""Percentiles between which a band lies."""


class ReportFilter(NamedTuple):
    """The selection of a chart: a metric, from round `since` on, in at most `points` columns.

    `late`: whether the job's schedule accepts late reports.
    """

    metric: str
    since: int
    points: int
    late: bool = False


class RoundColumns(NamedTuple):
    """Rounds, cut into columns of `step`."""

    first: int
    step: int
    size: int

    @property
    def rounds(self) -> list[int]:
        return [self.first + place * self.step for place in range(self.size)]


def report_row(row: Row[Any]) -> ReportRow:
    """Return a report as the API shows it."""
    plain = {name: getattr(row, name) for name in ReportRow.model_fields if name not in ("at", "phases")}
    return ReportRow(**plain, at=iso(row.at), phases=phases_view(row))


def phases_view(row: Any) -> ReportPhases:
    """Return the phases of a row or a timer."""
    return ReportPhases(**{name: getattr(row, name) for name in ReportPhases.model_fields})


async def names(connection: AsyncConnection, job: str) -> list[str]:
    """Return the names of all quantities that can be drawn."""
    mine = select(reports.c.metrics).where(reports.c.job == job)
    found: set[str] = set()
    for order in (reports.c.id.desc(), reports.c.id):
        for metrics in (await connection.execute(mine.order_by(order).limit(SAMPLED))).scalars():
            found.update(metrics)
    return [*sorted(found - {*MEASURED, *BYTES}), *MEASURED, *BYTES]


def _quantity(job: str, wanted: ReportFilter) -> Select[Any]:
    """Select rows (node, x, v, odd): v is a number, or NULL with odd = 1 if the value is not finite."""
    name = wanted.metric
    if name in BYTES:
        size = cast(whole_sum(traffic.c.head_bytes + traffic.c.body_bytes), Float)
        mine = (traffic.c.job == job, traffic.c.version >= 0, traffic.c.node != "", traffic.c.direction == BYTES[name])
        rows = select(traffic.c.node, (traffic.c.version + 1).label("x"), size.label("v"), literal(0).label("odd"))
        rows = rows.where(*mine)
        return rows.group_by(traffic.c.node, traffic.c.version)
    x, stored = _axis(wanted), reports.c[name] if name in MEASURED else json_value(reports.c.metrics, name)
    v = cast(stored, Float) if name in MEASURED else finite(stored)
    odd = case((v.is_(None), 1), else_=0)
    rows = select(reports.c.node, x.label("x"), v.label("v"), odd.label("odd")).where(reports.c.job == job)
    return rows.where(x.is_not(None), stored.is_not(None))


def _axis(wanted: ReportFilter) -> ColumnElement[Any]:
    if wanted.metric in MEASURED or wanted.metric in BYTES:
        return reports.c.round
    return reports.c.version + reports.c.staleness if wanted.late else reports.c.version


async def _columns(connection: AsyncConnection, job: str, wanted: ReportFilter) -> RoundColumns:
    x = _axis(wanted)
    span = select(func.min(x), func.max(x)).where(reports.c.job == job, x >= wanted.since)
    first, last = (await connection.execute(span)).one()
    if first is None:
        return RoundColumns(0, 1, 0)
    step = -(-(last - first + 1) // wanted.points)
    return RoundColumns(first, step, (last - first) // step + 1)


def _cells(job: str, wanted: ReportFilter, columns: RoundColumns) -> Any:
    """Return the quantity as a subquery (node, place, v, odd), from the first column to the last."""
    found = _quantity(job, wanted).subquery()
    place = ((found.c.x - columns.first) // columns.step).label("place")
    end = columns.first + columns.step * columns.size
    rows = select(found.c.node, place, found.c.v, found.c.odd).where(found.c.x >= columns.first, found.c.x < end)
    return rows.subquery()


def _grouped(cells: Any) -> Select[Any]:
    """Select (node, place, mean of the finite values, number of the others)."""
    grouped = select(cells.c.node, cells.c.place, func.avg(cells.c.v), func.sum(cells.c.odd))
    return grouped.group_by(cells.c.node, cells.c.place)


def _cell(mean: float | None, diverged: int) -> Metric | None:
    return "NaN" if diverged or mean is None or not isfinite(mean) else rounded(mean)


def rounded(value: float) -> float:
    """Round to `DIGITS` significant digits: a cell has a color, and a text of four digits."""
    return float(f"{value:.{DIGITS}g}")


async def heatmap(connection: AsyncConnection, job: str, wanted: ReportFilter, after: str, limit: int) -> Heatmap:
    """Return the heat map of the next `limit` clients."""
    everybody = (await connection.execute(select(reports.c.node).where(reports.c.job == job).distinct())).scalars()
    nodes = sorted(everybody)
    later = [node for node in nodes if node > after]
    shown = later[:limit]
    columns = await _columns(connection, job, wanted)
    rows: dict[str, list[Metric | None]] = {node: [None] * columns.size for node in shown}
    if shown and columns.size:
        cells = _cells(job, wanted, columns)
        for node, place, mean, diverged in await connection.execute(_grouped(cells).where(cells.c.node.in_(shown))):
            rows[node][place] = _cell(mean, diverged)
    return Heatmap(
        metric=wanted.metric,
        metrics=await names(connection, job),
        rounds=columns.rounds,
        step=columns.step,
        rows=[HeatmapRow(node=node, values=values) for node, values in rows.items()],
        nodes=len(nodes),
        next=shown[-1] if len(later) > limit else None,
    )


async def series(connection: AsyncConnection, job: str, node: str, wanted: ReportFilter) -> NodeSeries:
    """Return one client's values."""
    columns = await _columns(connection, job, wanted)
    values: list[Metric | None] = [None] * columns.size
    if columns.size:
        cells = _cells(job, wanted, columns)
        for _, place, mean, diverged in await connection.execute(_grouped(cells).where(cells.c.node == node)):
            values[place] = _cell(mean, diverged)
    return NodeSeries(metric=wanted.metric, node=node, rounds=columns.rounds, step=columns.step, values=values)


async def quantiles(connection: AsyncConnection, job: str, wanted: ReportFilter) -> Quantiles:
    """Return mean and percentiles over all clients.

    Where late reports are accepted, each client's last "eval/…" counts until its next, as in the job's own mean
    (`shoal.core.protocol.metrics.LatestMeans`).
    """
    columns = await _columns(connection, job, wanted)
    bundles: Iterator[_Bundle] = iter(())
    if columns.size and wanted.late and wanted.metric.startswith("eval/"):
        last = await _last_before(connection, job, wanted, columns.first)
        bundles = _carried(columns, last, (await connection.execute(_grouped(_cells(job, wanted, columns)))).all())
    elif columns.size:
        cells = _cells(job, wanted, columns)
        bundles = _bundles(columns, (await connection.execute(select(cells.c.place, cells.c.v, cells.c.odd))).all())
    return await asyncio.to_thread(_quantiles, wanted.metric, columns, bundles)


async def _last_before(connection: AsyncConnection, job: str, wanted: ReportFilter, x: int) -> dict[str, float | None]:
    """Return each client's last value before a version; None if it is not finite."""
    stored = json_value(reports.c.metrics, wanted.metric)
    earlier = (reports.c.job == job, _axis(wanted) < x, stored.is_not(None))
    last = select(func.max(reports.c.id)).where(*earlier).group_by(reports.c.node)
    rows = select(reports.c.node, finite(stored)).where(reports.c.id.in_(last))
    return dict((await connection.execute(rows)).all())


def _bundles(columns: RoundColumns, found: Iterable[Any]) -> Iterator[_Bundle]:
    values: list[list[float]] = [[] for _ in range(columns.size)]
    diverged = [0] * columns.size
    for place, value, odd in found:
        if odd:
            diverged[place] += 1
        else:
            values[place].append(value)
    yield from zip(values, diverged, strict=True)


def _carried(columns: RoundColumns, last: dict[str, float | None], found: Iterable[Any]) -> Iterator[_Bundle]:
    fresh: dict[int, dict[str, float | None]] = defaultdict(dict)
    for node, place, mean, odd in found:
        fresh[place][node] = None if odd else mean
    for place in range(columns.size):
        last |= fresh[place]
        values = [value for value in last.values() if value is not None]
        yield values, len(last) - len(values)


def _quantiles(name: str, columns: RoundColumns, bundles: Iterator[_Bundle]) -> Quantiles:
    sums = [(*_mean_and_band(values), len(values) + diverged, diverged) for values, diverged in bundles]
    return Quantiles(
        metric=name,
        rounds=columns.rounds,
        step=columns.step,
        mean=[mean for mean, *_ in sums],
        low=[low for _, low, *_ in sums],
        high=[high for _, _, high, *_ in sums],
        clients=[clients for *_, clients, _ in sums],
        diverged=[diverged for *_, diverged in sums],
    )


def _mean_and_band(values: list[float]) -> tuple[float | None, float | None, float | None]:
    """Return (mean, low, high)."""
    if not values:
        return None, None, None
    with np.errstate(over="ignore"):
        low, high = np.percentile(values, (LOW, HIGH))
        return tuple(rounded(float(v)) if np.isfinite(v) else None for v in (np.mean(values), low, high))  # type: ignore[return-value]
