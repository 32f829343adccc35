"""Quantile sketches of features, and the edges of bins that follow from many of them.

A sketch holds at most `points` values of each feature, with the number of rows that each stands for. It is exact for a
feature with no more distinct values. The sorted rows of others are cut into `points` runs of equal length, each
represented by its least value. Merging sorts the points by value and adds the counts of equal ones: whole numbers, so
the order of sketches does not matter.

    edge k = the least value v with at least k / bins of all rows below it,   0 < k < bins

Each value is an edge of its own where there are no more values than bins, as in XGBoost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.core.boosting.ensemble import UNUSED_EDGE, Narrow, Wide
from shoal.core.errors import InvalidPayload
from shoal.core.model.tree import Layout, Tree

POINTS_PER_BIN = 4
"""A sketch's points per bin: it is off by at most a quarter of a bin per node."""


def sketch_layout(features: int, bins: int) -> Layout:
    """Return the layout of a sketch."""
    shape = (features, POINTS_PER_BIN * bins)
    return Layout.of([("values", "F32", shape), ("counts", "F64", shape), ("labels", "F64", (3,))])


def make_sketch(x: Narrow, y: Wide, scale: float, bins: int) -> Tree:
    """Return the sketch of rows: points, counts, and the labels' sum, number and scale."""
    points = POINTS_PER_BIN * bins
    values, counts = np.zeros((x.shape[1], points), np.float32), np.zeros((x.shape[1], points))
    for feature in range(x.shape[1]):
        column = x[:, feature] + np.float32(0)  # no negative zero, whose bits would depend on which one comes first
        found, times = np.unique(column[~np.isnan(column)], return_counts=True)
        if len(found) > points:
            ordered = np.repeat(found, times)
            starts = np.arange(points) * len(ordered) // points
            found, times = ordered[starts], np.diff(starts, append=len(ordered))
        values[feature, : len(found)], counts[feature, : len(found)] = found, times
    return Tree.of({"values": values, "counts": counts, "labels": np.array([y.sum(), len(y), scale])})


def check_sketch(sketch: Tree) -> None:
    """Raise `InvalidPayload` for a sketch with an impossible number."""
    values, counts, (total, rows, scale) = sketch["values"], sketch["counts"], sketch["labels"].tolist()
    good = bool(np.isfinite(values).all() and (counts >= 0).all() and (counts <= 2.0**53).all())
    if not (good and 0 < rows <= 2.0**53 and 0 < scale < 2.0**100 and abs(total) <= rows * scale):
        raise InvalidPayload("a quantile sketch with an impossible number", code="payload.sketch")


def merge_sketches(sketches: Sequence[Tree], bins: int) -> Narrow:
    """Return the edges of the bins: `float32[features, bins - 1]`."""
    values = np.concatenate([sketch["values"] for sketch in sketches], axis=1)
    counts = np.concatenate([sketch["counts"] for sketch in sketches], axis=1)
    edges = np.full((len(values), bins - 1), UNUSED_EDGE, np.float32)
    for feature in range(len(values)):
        used = counts[feature] > 0
        found = _edges(values[feature, used], counts[feature, used], bins)
        edges[feature, : len(found)] = found
    return edges


def _edges(values: Narrow, counts: Wide, bins: int) -> Narrow:
    """Return one feature's edges, ascending: at most `bins - 1`."""
    distinct, place = np.unique(values, return_inverse=True)
    if len(distinct) <= bins:
        return distinct[1:]
    below = np.cumsum(np.bincount(place, counts)) - np.bincount(place, counts)
    total = counts.sum()
    chosen = np.searchsorted(below * bins, np.arange(1, bins) * total)
    return np.asarray(distinct[np.unique(chosen[chosen < len(distinct)])])


def merge_labels(sketches: Sequence[Tree]) -> tuple[float, float]:
    """Return the mean label, and the power of two that is at least as great as any label's magnitude."""
    total, rows, scales = np.array([sketch["labels"] for sketch in sketches]).T
    return float(total.sum() / rows.sum()), 2.0 ** float(np.ceil(np.log2(scales.max())))
