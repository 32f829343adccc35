"""Versions of a run as columns, for tables and plots: `pandas.DataFrame(result.columns())`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import accumulate
from typing import Any, NamedTuple

from shoal.core.errors import InvalidJob, ShoalError
from shoal.core.protocol.message import Metrics
from shoal.plugins import suggestion

Columns = dict[str, Sequence[float]]

KINDS = ("held_out", "eval", "train")
"""Kinds of a metric without one, in the order of preference."""


class VersionRow(NamedTuple):
    """The part of a version that columns need; bytes count from the previous version."""

    number: int
    seconds: float
    reports: int
    up_bytes: int
    down_bytes: int
    metrics: Metrics


def columns_of(rows: Sequence[VersionRow]) -> Columns:
    """Return a list of equal length for each column; NaN where a version lacks a metric. Bytes count from the start."""
    up, down = list(accumulate(one.up_bytes for one in rows)), list(accumulate(one.down_bytes for one in rows))
    metrics = dict.fromkeys(name for one in rows for name in one.metrics)
    return {
        "version": [one.number for one in rows],
        "seconds": [one.seconds for one in rows],
        "reports": [one.reports for one in rows],
        "up_bytes": up,
        "down_bytes": down,
        "bytes": [sum(both) for both in zip(up, down, strict=True)],
        **{name: [one.metrics.get(name, math.nan) for one in rows] for name in metrics},
    }


def column_named(columns: Mapping[str, Sequence[float]], name: str) -> str:
    """Return the column of this name, or of a metric by its name alone, such as "eval/accuracy" for "accuracy".

    Raises `InvalidJob` where there is none.
    """
    found = next((one for one in (name, *(f"{kind}/{name}" for kind in KINDS)) if one in columns), None)
    if found is None:
        raise InvalidJob(f"no version has {name}", code="result.column", hint=suggestion(name, columns))
    return found


def plot_columns(columns: Columns, metric: str, x: str, axes: Any, title: str) -> Any:
    """Draw a column against another one, where both have numbers, and return the axes (None: new ones).

    Raises `ShoalError` where matplotlib is needed and not installed.
    """
    drawn, along = column_named(columns, metric), column_named(columns, x)
    points = [pair for pair in zip(columns[along], columns[drawn], strict=True) if all(map(math.isfinite, pair))]
    axes = axes if axes is not None else _new_axes()
    axes.plot([at for at, _ in points], [value for _, value in points], marker=".", label=title)
    axes.set_xlabel(along)
    axes.set_ylabel(drawn)
    axes.legend()
    return axes


def _new_axes() -> Any:
    try:
        pyplot: Any = import_module("matplotlib.pyplot")
    except ModuleNotFoundError as error:
        text = f"a plot needs {(error.name or 'matplotlib').partition('.')[0]}, which is not installed"
        hint = "pip install matplotlib, or draw result.columns() by another library"
        raise ShoalError(text, code="usage.extra", hint=hint) from error
    return pyplot.subplots()[1]
