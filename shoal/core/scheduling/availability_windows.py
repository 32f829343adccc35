"""Daily availability windows, such as "22:00-06:00", in UTC, because nodes live in many time zones."""

from __future__ import annotations

import re
from collections.abc import Iterable

from shoal.core.errors import InvalidJob

DAY_S = 86400.0
HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]|24):([0-5]\d)")


def parse_hours(text: str) -> tuple[float, float]:
    """Return (from, to) in seconds of the day; `to` is not after `from` across midnight. Raises `InvalidJob`."""
    found = HOURS.fullmatch(text)
    if found is None:
        raise InvalidJob(f"{text[:40]!r} are not hours", code="job.hours", hint='write "22:00-06:00", in UTC')
    first, minute, last, to_minute = map(int, found.groups())
    start, stop = 60.0 * (60 * first + minute), 60.0 * (60 * last + to_minute)
    if start == stop or stop > DAY_S:
        text_ = f"{text} is not part of a day"
        raise InvalidJob(text_, code="job.hours", hint='leave hours out for the whole day, or write "22:00-06:00"')
    return start, stop


def is_open(hours: Iterable[str], wall: float) -> bool:
    """Return True if a time (seconds since 1970, UTC) lies in one of them, or if there are none."""
    spans = [parse_hours(text) for text in hours]
    time = wall % DAY_S
    return not spans or any(a <= time < b if a < b else time >= a or time < b for a, b in spans)


def next_opening(hours: Iterable[str], wall: float) -> float:
    """Return the next opening after that time."""
    time = wall % DAY_S
    return wall + min(((start - time) % DAY_S or DAY_S) for start, _ in map(parse_hours, hours))
