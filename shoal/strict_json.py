"""JSON that has one meaning: UTF-8, finite numbers of a bounded length, each key once in its object."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

DIGITS_MAX = 20
"""Of a whole number: more than 64 bits need, few enough to be converted at once."""


def loads(data: bytes) -> Any:
    """The value of a JSON text. Raises `ValueError`, or `RecursionError` where it is nested too deep."""
    text = str(data, "utf-8")  # json.loads would take other encodings as well
    return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse, parse_float=_finite, parse_int=_whole)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):  # which one counts, every reader would decide for itself
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice[:40]!r} stands twice")
    return found


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text[:DIGITS_MAX])


def _whole(text: str) -> int:
    return int(text) if len(text) <= DIGITS_MAX else int(_refuse(f"{text[:DIGITS_MAX]}…"))
