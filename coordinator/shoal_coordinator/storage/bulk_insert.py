"""Many rows of one kind, in few statements.

SQLAlchemy hands a driver one statement for each row. With each, SQLite's driver lets go of the interpreter, and waits
until the threads that answer let it have that back. Here a statement has as many rows as a power of two: so there are
few different ones, which drivers know from the last time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, Dialect, Row, bindparam
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.sql.dml import ReturningInsert

PARAMETERS_MAX = 900
"""In one statement: SQLite before 3.32 takes no more than 999."""

_KNOWN = 64

Convert = Callable[[Any], Any]


class _Statement(NamedTuple):
    """An INSERT of some rows, as drivers of one kind take it."""

    text: str
    names: tuple[str, ...] | None
    """Names of its parameters, row by row; None: the driver takes them in this order."""


class BulkInsert:
    """An INSERT of many rows, from one without values; it may have RETURNING."""

    def __init__(self, insert: Insert | ReturningInsert[Any]) -> None:
        self._insert = insert
        self._statement = lru_cache(_KNOWN)(self._compiled)
        self._converters = lru_cache(_KNOWN)(self._found_converters)

    def write(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> list[Row[Any]]:
        """Insert these, which all name the same columns, and return what the statement returns, in any order."""
        found: list[Row[Any]] = []
        if not rows:
            return found
        dialect, columns = connection.dialect, tuple(rows[0])
        values = self._values(dialect, columns, rows)
        size = 1 << (PARAMETERS_MAX // len(columns)).bit_length() - 1
        done = 0
        while done < len(rows):
            while size > len(rows) - done:
                size >>= 1
            text, names = self._statement(dialect, columns, size)
            part = tuple(value for row in values[done : done + size] for value in row)
            result = connection.exec_driver_sql(text, part if names is None else dict(zip(names, part, strict=True)))
            found += result if result.returns_rows else ()
            done += size
        return found

    def _values(self, dialect: Dialect, columns: tuple[str, ...], rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
        """Return values row by row, as the driver needs them."""
        values = [[row[name] for name in columns] for row in rows]
        for place, convert in self._converters(dialect, columns):
            for one in values:
                one[place] = convert(one[place])
        return values

    def _found_converters(self, dialect: Dialect, columns: tuple[str, ...]) -> list[tuple[int, Convert]]:
        types = [self._insert.table.c[name].type.dialect_impl(dialect) for name in columns]
        made = [kind.bind_processor(dialect) for kind in types]
        return [(place, convert) for place, convert in enumerate(made) if convert is not None]

    def _compiled(self, dialect: Dialect, columns: tuple[str, ...], size: int) -> _Statement:
        kinds = {name: self._insert.table.c[name].type for name in columns}
        rows = [{name: bindparam(f"{name}_{row}", type_=kinds[name]) for name in columns} for row in range(size)]
        compiled: Any = self._insert.values(rows).compile(dialect=dialect)
        names = tuple(parameter.key for row in rows for parameter in row.values())
        if not compiled.positional:
            return _Statement(str(compiled), names)
        assert tuple(compiled.positiontup) == names, "SQLAlchemy puts the columns into another order than the table's"
        return _Statement(str(compiled), None)
