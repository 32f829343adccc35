"""Words of the sentences that people read."""

from __future__ import annotations

import math
import re

NOTHING = "–"
"""Stands where there is no value."""


def counted(number: int, noun: str) -> str:
    """Format a number and a noun: 1 node, 4 nodes."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def size(nbytes: float | None) -> str:
    """Format bytes in the unit that leaves few digits: 19.3 kB."""
    if nbytes is None:
        return NOTHING
    for unit in ("B", "kB", "MB", "GB"):
        if abs(nbytes) < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.4g} TB"


def seconds(duration: float | None) -> str:
    """Format a duration: 0.12 s, 14 s, 3 min 20 s, 2 h 05 min."""
    if duration is None:
        return NOTHING
    if duration < 9.95:
        return f"{duration:.2g} s"
    if duration < 60:
        return f"{duration:.0f} s"
    whole = round(duration)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole // 60 % 60:02d} min"


def number(value: float | str | None, digits: int = 4) -> str:
    """Format a metric; a missing one is a dash, and the API's "NaN" stays."""
    if value is None:
        return NOTHING
    if isinstance(value, str) or not math.isfinite(value):
        return str(value)
    return f"{value:.{digits}g}"


def percent(share: float | str | None) -> str:
    """Format a share as a percentage: 95.3 %."""
    if share is None:
        return NOTHING
    if isinstance(share, str) or not math.isfinite(share):
        return str(share)
    return f"{100 * share:.1f} %"


def is_curve_point(name: str) -> bool:
    """Return whether a metric is a point of a curve of exits, "eval/accuracy@0.3": lists for people leave these out.
    Other metrics may have such a sign, too: "eval/recall@10"."""
    return re.search(r"(^|/)(accuracy|answered_\w+)@[01]\.\d$", name) is not None
