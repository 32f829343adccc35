"""SQL that SQLite and PostgreSQL both understand: where SQLAlchemy has a name for each, the one that serves both."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import JSON, BigInteger, Column, ColumnElement, Float, case, cast, func
from sqlalchemy.dialects.postgresql import insert

from shoal.strict_json import mended

__all__ = ["finite", "insert", "said", "to_json", "whole_sum"]
# `insert`: both dialects write ON CONFLICT … alike, and SQLite's compiler takes the clauses of PostgreSQL's class.

NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""How numbers that JSON does not have are written down."""


def whole_sum(values: ColumnElement[Any]) -> ColumnElement[int]:
    """The sum of whole numbers as a whole number: PostgreSQL would make a decimal fraction of it."""
    return cast(func.sum(values), BigInteger)


def said(column: Column[Any], name: str) -> ColumnElement[Any]:
    """What a JSON object says under a name: a number or a text here, always a text there; NULL when it says nothing."""
    assert isinstance(column.type, JSON)
    found: ColumnElement[Any] = column[name].as_string()
    return found


def finite(value: ColumnElement[Any]) -> ColumnElement[float]:
    """The number that was `said`; NULL for one that is not finite."""
    return case((value.in_(NOT_FINITE), None), else_=cast(value, Float))


def to_json(value: Any) -> str:
    """JSON of which PostgreSQL can take parts: there, one text that it cannot keep spoils the whole document."""
    text = json.dumps(value)
    if "\\u0000" not in text and "\\ud" not in text:
        return text
    return json.dumps(mended(value))
