"""Queries of charts on counted reports, by client and round or over all clients, thinned out in the database.

Metrics of reports are shown at the version whose model they measure; the coordinator's own measurements (seconds,
bytes, staleness, norm) at the round that the report became part of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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
"""Of the newest reports and of the oldest, so many are searched for names of metrics."""

DIGITS = 6
"""Significant digits of what charts draw by client and round. More would be two thirds of the answer's size."""

LOW, HIGH = 10, 90
"""Percentiles between which a band lies."""


class ReportFilter(NamedTuple):
    """The selection of a chart: a metric, from round `since` on, in at most `points` columns."""

    metric: str
    since: int
    points: int


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


def _quantity(job: str, name: str) -> Select[Any]:
    """Select rows (node, x, v, odd): v is a number, or NULL with odd = 1 if the value is not finite."""
    if name in BYTES:
        size = cast(whole_sum(traffic.c.head_bytes + traffic.c.body_bytes), Float)
        mine = (traffic.c.job == job, traffic.c.version >= 0, traffic.c.node != "", traffic.c.direction == BYTES[name])
        rows = select(traffic.c.node, (traffic.c.version + 1).label("x"), size.label("v"), literal(0).label("odd"))
        rows = rows.where(*mine)
        return rows.group_by(traffic.c.node, traffic.c.version)
    x, stored = _axis(name), reports.c[name] if name in MEASURED else json_value(reports.c.metrics, name)
    v = cast(stored, Float) if name in MEASURED else finite(stored)
    odd = case((v.is_(None), 1), else_=0)
    rows = select(reports.c.node, x.label("x"), v.label("v"), odd.label("odd")).where(reports.c.job == job)
    return rows.where(x.is_not(None), stored.is_not(None))


def _axis(name: str) -> ColumnElement[Any]:
    return reports.c.round if name in MEASURED or name in BYTES else reports.c.version


async def _columns(connection: AsyncConnection, job: str, wanted: ReportFilter) -> RoundColumns:
    x = _axis(wanted.metric)
    span = select(func.min(x), func.max(x)).where(reports.c.job == job, x >= wanted.since)
    first, last = (await connection.execute(span)).one()
    if first is None:
        return RoundColumns(0, 1, 0)
    step = -(-(last - first + 1) // wanted.points)
    return RoundColumns(first, step, (last - first) // step + 1)


def _cells(job: str, name: str, columns: RoundColumns) -> Any:
    """Return the quantity as a subquery (node, place, v, odd), from the first column to the last."""
    found = _quantity(job, name).subquery()
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
    """Round to `DIGITS` significant digits: a cell has a colour, and a text of four digits."""
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
        cells = _cells(job, wanted.metric, columns)
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
        cells = _cells(job, wanted.metric, columns)
        for _, place, mean, diverged in await connection.execute(_grouped(cells).where(cells.c.node == node)):
            values[place] = _cell(mean, diverged)
    return NodeSeries(metric=wanted.metric, node=node, rounds=columns.rounds, step=columns.step, values=values)


async def quantiles(connection: AsyncConnection, job: str, wanted: ReportFilter) -> Quantiles:
    """Return mean and percentiles over all clients."""
    columns = await _columns(connection, job, wanted)
    found: Sequence[Any] = ()
    if columns.size:
        cells = _cells(job, wanted.metric, columns)
        found = (await connection.execute(select(cells.c.place, cells.c.v, cells.c.odd).order_by(cells.c.place))).all()
    return await asyncio.to_thread(_quantiles, wanted.metric, columns, found)


def _quantiles(name: str, columns: RoundColumns, found: Sequence[Any]) -> Quantiles:
    bundles: list[list[float]] = [[] for _ in range(columns.size)]
    diverged = [0] * columns.size
    for place, value, odd in found:
        if odd:
            diverged[place] += 1
        else:
            bundles[place].append(value)
    sums = [_mean_and_band(bundle) for bundle in bundles]
    return Quantiles(
        metric=name,
        rounds=columns.rounds,
        step=columns.step,
        mean=[mean for mean, _, _ in sums],
        low=[low for _, low, _ in sums],
        high=[high for _, _, high in sums],
        clients=[len(bundle) + bad for bundle, bad in zip(bundles, diverged, strict=True)],
        diverged=diverged,
    )


def _mean_and_band(values: list[float]) -> tuple[float | None, float | None, float | None]:
    """Return (mean, low, high)."""
    if not values:
        return None, None, None
    with np.errstate(over="ignore"):
        low, high = np.percentile(values, (LOW, HIGH))
        return tuple(rounded(float(v)) if np.isfinite(v) else None for v in (np.mean(values), low, high))  # type: ignore[return-value]
