"""Checks of a tree's values, which name the tensor at fault."""

from __future__ import annotations

import re

import numpy as np

from shoal.core.model.tree import BLOCK_ELEMENTS, FLOATS, Tree, greatest_statistic, to_float

VARIANCE = re.compile("(?<![a-z])var(iance)?s?(?![a-z])")
"""The part of a name that says that a statistic is a variance."""
STATISTICS_TIMES_MAX = 1e6
"""Greatest statistic of a peer, relative to the greatest one here. A variance goes with the square of a unit, and is 1
where nothing has been trained yet."""


def first_not_finite(a: Tree) -> tuple[str, int] | None:
    """Return the name and flat index of the first NaN or infinity, to name the culprit; None if all are finite."""
    for leaf in a.layout.leaves:
        if leaf.dtype in FLOATS and leaf.elements:
            values = to_float(a.block(leaf.start, leaf.stop), leaf.dtype, np.float32 if leaf.dtype != "F64" else float)
            bad = np.flatnonzero(~np.isfinite(values))
            if bad.size:
                return leaf.name, int(bad[0])
    return None


def first_not_boolean(a: Tree) -> tuple[str, int] | None:
    """Return the name and flat index of the first BOOL that is neither 0 nor 1; None if all are."""
    for leaf in a.layout.leaves:
        for start in range(leaf.start, leaf.stop, BLOCK_ELEMENTS) if leaf.dtype == "BOOL" else ():
            block = a.block(start, min(start + BLOCK_ELEMENTS, leaf.stop))
            if block.max() > 1:
                return leaf.name, start - leaf.start + int(np.argmax(block > 1))
    return None


def first_negative_variance(a: Tree) -> tuple[str, int] | None:
    """Return the name and flat index of the first negative number of a statistic that is a variance by its name."""
    for leaf in a.layout.leaves if a.layout.statistics else ():
        if leaf.name in a.layout.statistics and leaf.elements and is_variance(leaf.name):
            bad = np.flatnonzero(to_float(a.block(leaf.start, leaf.stop), leaf.dtype) < 0)
            if bad.size:
                return leaf.name, int(bad[0])
    return None


def is_variance(name: str) -> bool:
    """Return whether the last part of a statistic's name says that it is a variance: "1.running_var"."""
    last = name.rpartition(".")[2].lower()
    return VARIANCE.search(last) is not None and "log" not in last


def statistics_doubt(theirs: Tree, mine: Tree) -> str:
    """Return why the statistics of a peer's model must not be mixed with this one's; empty if they may."""
    negative = first_negative_variance(theirs)
    if negative is not None:
        return f"{negative[0]} is a variance below 0"
    if not greatest_statistic(theirs) <= STATISTICS_TIMES_MAX * max(greatest_statistic(mine), 1.0):
        return f"a statistic is more than {STATISTICS_TIMES_MAX:g} times as great as any of this peer's"
    return ""
