"""SQL that SQLite and PostgreSQL both understand: where SQLAlchemy has a name for each, the one that serves both."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import JSON, BigInteger, Column, ColumnElement, Float, case, cast, func
from sqlalchemy.dialects.postgresql import insert

from shoal.validation.strict_json import sanitize

__all__ = ["finite", "insert", "json_value", "to_json", "whole_sum"]
# `insert`: both dialects write ON CONFLICT … alike, and SQLite's compiler takes the clauses of PostgreSQL's class.

NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""Texts for numbers that JSON does not have."""


def whole_sum(values: ColumnElement[Any]) -> ColumnElement[int]:
    """Sum integers to an integer: PostgreSQL would make a decimal fraction of it."""
    return cast(func.sum(values), BigInteger)


def json_value(column: Column[Any], name: str) -> ColumnElement[Any]:
    """Return a JSON object's value under a name: a number or a text here, always a text there; NULL if it is
    missing."""
    assert isinstance(column.type, JSON)
    found: ColumnElement[Any] = column[name].as_string()
    return found


def finite(value: ColumnElement[Any]) -> ColumnElement[float]:
    """Return the number of a `json_value`; NULL for one that is not finite."""
    return case((value.in_(NOT_FINITE), None), else_=cast(value, Float))


def to_json(value: Any) -> str:
    """Return JSON of which PostgreSQL can take parts: there, one text that it cannot store spoils the whole
    document."""
    text = json.dumps(value)
    if "\\u0000" not in text and "\\ud" not in text:
        return text
    return json.dumps(sanitize(value))
