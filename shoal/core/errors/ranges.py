"""Ranges of fields: declared in the annotation (`lr: PositiveFloat = 0.1`), shown in schema and docs, and checked where
an instance is made, by the base classes of algorithms, schedules, selections, filters and mixings.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from math import isfinite
from typing import Annotated, Any, get_args, get_type_hints

from annotated_types import Interval

from shoal.core.errors import InvalidJob

PositiveInt = Annotated[int, Interval(ge=1)]
NonNegativeInt = Annotated[int, Interval(ge=0)]
PositiveFloat = Annotated[float, Interval(gt=0)]
NonNegativeFloat = Annotated[float, Interval(ge=0)]
Fraction = Annotated[float, Interval(ge=0, le=1)]
PositiveFraction = Annotated[float, Interval(gt=0, le=1)]
FractionBelowOne = Annotated[float, Interval(ge=0, lt=1)]


def check_ranges(part: Any, code: str = InvalidJob.default_code) -> None:
    """Raise `InvalidJob` for the first field of a dataclass that is outside its range, or not finite."""
    kind: type = type(part)
    for field, interval in _intervals(kind).items():
        value = getattr(part, field)
        if not (isfinite(value) and _contains(interval, value)):
            raise InvalidJob(f"{part.name}: {field} is {value}, but must be {_range_text(interval)}", code=code)


def type_texts(kind: type) -> dict[str, str]:
    """Return the types of a dataclass's fields with their ranges, as texts."""
    hints, intervals = get_type_hints(kind, include_extras=True), _intervals(kind)
    return {
        one.name: f"{get_args(hints[one.name])[0].__name__} {_range_text(intervals[one.name])}"
        if one.name in intervals
        else str(one.type)
        for one in fields(kind)
    }


@cache
def _intervals(kind: type) -> dict[str, Interval]:
    hints = get_type_hints(kind, include_extras=True)
    found = {one.name: getattr(hints[one.name], "__metadata__", (None,))[0] for one in fields(kind)}
    return {name: one for name, one in found.items() if isinstance(one, Interval)}


def _contains(interval: Interval, value: Any) -> bool:
    return (
        (interval.gt is None or value > interval.gt)
        and (interval.ge is None or value >= interval.ge)
        and (interval.lt is None or value < interval.lt)
        and (interval.le is None or value <= interval.le)
    )


def _range_text(interval: Interval) -> str:
    low, is_open = (interval.ge, False) if interval.gt is None else (interval.gt, True)
    high, below = (interval.le, False) if interval.lt is None else (interval.lt, True)
    if high is None:
        return f"above {low}" if is_open else f"at least {low}"
    return f"in {'(' if is_open else '['}{low}, {high}{')' if below else ']'}"
