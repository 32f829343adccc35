"""Strict JSON: UTF-8, finite numbers of bounded length, unique keys, and texts that every store accepts (`text_flaw`).

Values of this software in that form (`plain`, `sanitize`).
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections import Counter
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_HALF = re.compile("[\ud800-\udfff]")

DIGITS_MAX = 20
"""Maximum number of digits of a whole number: more than 64 bits need, few enough to be converted at once."""


def loads(data: bytes) -> Any:
    """Return the value of a JSON text. Raises `ValueError`, or `RecursionError` for deep nesting."""
    text = str(data, "utf-8")  # json.loads would take other encodings as well
    found = _DECODER.decode(text)
    if "\\u" in text and (wrong := text_flaw(found)):  # nothing else can bring such a character
        raise ValueError(wrong)
    return found


def loads_own(data: bytes) -> Any:
    """Return the value of a file of this software; numbers may be NaN there.

    Raises `ValueError`, or `RecursionError`.
    """
    found = json.loads(data)
    if wrong := text_flaw(found):
        raise ValueError(wrong)
    return found


def dumps(value: dict[str, Any]) -> bytes:
    """Return values as JSON text. Texts that receivers would refuse, such as a learner's error, are mended."""
    text = _ENCODER.encode(value)
    return (_ENCODER.encode(sanitize(value)) if "\\u" in text and text_flaw(value) else text).encode()


def text_flaw(value: Any) -> str:
    """Return why the texts in a value cannot be stored, or an empty string. Keys are checked too.

    Half a character (a lone surrogate) has no UTF-8, and PostgreSQL keeps no NUL.
    """
    if isinstance(value, str):
        if "\0" in value:
            return "a text with a NUL character"
        return "" if value.isascii() or not _HALF.search(value) else "a text with half a character (a lone surrogate)"
    if isinstance(value, dict):
        return next((why for pair in value.items() for one in pair if (why := text_flaw(one))), "")
    return next((why for one in value if (why := text_flaw(one))), "") if isinstance(value, list | tuple) else ""


def sanitize(value: Any) -> Any:
    """Return the value with a replacement character for each that `text_flaw` reports."""
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value.replace("\0", "\ufffd"))
    if isinstance(value, dict):
        return {sanitize(name): sanitize(inner) for name, inner in value.items()}
    return [sanitize(one) for one in value] if isinstance(value, list | tuple) else value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):  # which one counts, every reader would decide for itself
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice[:40]!r} stands twice")
    return found


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text[:DIGITS_MAX])


def _whole(text: str) -> int:
    return int(text) if len(text) <= DIGITS_MAX else int(_refuse(f"{text[:DIGITS_MAX]}…"))


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_refuse, parse_float=_finite, parse_int=_whole
)  # made once: json.loads would make one for each text


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """Return the field names of a message, cached."""
    return tuple(field.name for field in fields(kind))


_AS_THEY_ARE = frozenset({str, int, bool, type(None)})


def plain(value: Any) -> Any:
    """Return a value as JSON values: NaN and infinity as strings, bytes as base64, messages as objects."""
    if type(value) in _AS_THEY_ARE:  # most of them: each report is made plain several times
        return value
    return _made_plain(value)


def _made_plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if is_dataclass(value):
        return {name: plain(getattr(value, name)) for name in field_names(type(value))}  # type: ignore[arg-type]
    return value
