"""Tables as training data, in one line: CSV and Parquet files, and frames of pandas, polars, pyarrow and datasets.

x, y = table("patients.csv", target="outcome", categories={"sex": ["f", "m"]}, fill={"age": 50})

Nodes must agree on the meaning of each column of `x`. Therefore columns come in the order of their names, or in the
given one, and categories are those declared, never those that a node happens to have.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.core.errors import InvalidJob, StorageFailed
from shoal.core.errors.phrases import counted

Values = npt.NDArray[Any]
CODE = "learner.table"
SHOWN_MAX = 5
SEPARATORS = {".csv": ",", ".tsv": "\t"}


class Column(NamedTuple):
    """Values of a column: float64 with NaN where one is missing, or objects with None."""

    name: str
    values: Values

    @property
    def is_numeric(self) -> bool:
        return self.values.dtype.kind == "f"

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = np.isnan(self.values) if self.is_numeric else self.values == None  # noqa: E711
        return found


def table(
    source: Any,
    target: str,
    *,
    columns: Sequence[str] | None = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
    classes: Sequence[Any] | None = None,
    fill: float | Mapping[str, Any] | None = None,
) -> tuple[npt.NDArray[np.float32], Values]:
    """Return inputs `float32[n, columns]` and the target column of a table.

    `source`: a path of a .csv, .tsv or .parquet file, or a frame. `columns`: the inputs in their order; default: all
    but the target, by name. `categories`: column -> its values; the column becomes a column of 0 and 1 for each.
    `classes`: values of the target, which becomes int64 places in this list; without it, it becomes float32. `fill`: in
    place of missing inputs, for all numeric columns or by column.

    Raises `InvalidJob` that names column and row (the first is 0) for missing values, texts and unknown categories.
    """
    named = _columns(source)
    declared = categories or {}
    wanted = sorted(set(named) - {target}) if columns is None else list(columns)
    for name in (target, *wanted, *declared):
        if name not in named:
            raise _invalid(f"the table has no column {name!r}", f"it has {', '.join(named)}")
    parts = [_input(_column(name, named[name]), declared.get(name), fill) for name in wanted]
    if not parts:
        raise _invalid(f"the table has no column but {target!r}", "there is nothing to learn from")
    return np.concatenate(parts, axis=1, dtype=np.float32), _target(_column(target, named[target]), classes)


# ------------------------------------------------------------------------------------------------------------- sources
def _columns(source: Any) -> dict[str, Any]:
    """Return the columns by name, as they are stored."""
    if isinstance(source, str | Path):
        return _of_file(Path(source).expanduser())
    if isinstance(source, Mapping):
        return {str(name): column for name, column in source.items()}
    names = getattr(source, "column_names", None) or getattr(source, "columns", None)
    if names is None or not hasattr(source, "__getitem__"):
        raise _invalid(f"{type(source).__name__} is not a table", "give a path, a frame, or columns by name")
    return {str(name): source[name] for name in list(names)}


def _of_file(path: Path) -> dict[str, Any]:
    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            return _columns(_parquet(path))
        if suffix in SEPARATORS:
            with path.open(newline="", encoding="utf-8-sig") as file:
                return _of_rows(path, csv.reader(file, delimiter=SEPARATORS[suffix], strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StorageFailed(f"cannot read {path}: {error}", code="data.missing") from error
    raise _invalid(f"{path} is not a table", "its name must end in .csv, .tsv or .parquet")


def _parquet(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        from shoal.extras import not_installed

        raise not_installed(error, what=str(path)) from error
    try:
        return pyarrow.parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise _invalid(f"cannot read {path}: {str(error).splitlines()[0]}", "give a Parquet file") from error


def _of_rows(path: Path, rows: Any) -> dict[str, Any]:
    """Return the columns of a file with one header; empty cells are missing values."""
    names: list[str] = next(rows, [])
    if len(set(names)) < len(names) or not names or any(_is_number(name) for name in names):
        raise _invalid(f"{path}: the first line does not name the columns", "write a different name for each there")
    cells: list[list[str]] = []
    for row in rows:
        if row and len(row) != len(names):
            raise _invalid(
                f"{path}, line {rows.line_num}: {counted(len(row), 'cell')} for {counted(len(names), 'column')}", ""
            )
        cells += [row] if row else []
    if not cells:
        raise _invalid(f"{path} has no row but the first", "")
    return {name: _parsed(column) for name, column in zip(names, zip(*cells, strict=True), strict=True)}


def _parsed(cells: tuple[str, ...]) -> Any:
    """Return numbers where all cells that are not empty are numbers, else texts."""
    try:
        return np.array([cell.strip() or "nan" for cell in cells]).astype(np.float64)
    except ValueError:
        return [cell.strip() or None for cell in cells]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# ------------------------------------------------------------------------------------------------------------- columns
def _column(name: str, stored: Any) -> Column:
    """Return a column's values as numbers where all are."""
    values = np.asarray(stored.to_numpy() if hasattr(stored, "to_numpy") else list(stored))
    if values.dtype.kind in "fiub":
        return Column(name, values.astype(np.float64))
    if values.dtype.kind not in "OUT":
        raise _invalid(f"column {name!r} holds {values.dtype}, which is not a number", "turn it into numbers first")
    found = [None if _is_missing(value) else value for value in values.tolist()]
    if all(value is None or isinstance(value, int | float) for value in found):
        return Column(name, np.array([np.nan if value is None else value for value in found], np.float64))
    objects = np.empty(len(found), object)
    objects[:] = found
    return Column(name, objects)


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and math.isnan(value))


def _input(column: Column, categories: Sequence[Any] | None, fill: Any) -> Values:
    """Return an input column as `float64[n, width]`."""
    value = fill.get(column.name) if isinstance(fill, Mapping) else None if categories else fill
    column = _filled(column, value)
    if categories is not None:
        return np.eye(len(categories))[_places(column, categories, "categories")]
    if not column.is_numeric:
        shown = ", ".join(sorted({repr(value) for value in column.values})[:SHOWN_MAX])
        raise _invalid(
            f"column {column.name!r} holds texts ({shown}), and nodes must agree on what they mean",
            f"declare categories={{{column.name!r}: […]}}, the same on every node, or leave it out: columns=[…]",
        )
    return column.values[:, None]


def _filled(column: Column, value: Any) -> Column:
    missing = column.missing
    if not missing.any():
        return column
    if value is None:
        raise _invalid(
            f"column {column.name!r} has no value in row {int(np.flatnonzero(missing)[0])}"
            f" ({counted(int(missing.sum()), 'row')} of {len(missing)})",
            f"give fill={{{column.name!r}: …}}, the same on every node, or leave such rows out",
        )
    values = column.values.copy()
    values[missing] = value
    return column._replace(values=values)


def _target(column: Column, classes: Sequence[Any] | None) -> Values:
    missing = column.missing
    if missing.any():
        row = int(np.flatnonzero(missing)[0])
        raise _invalid(f"the target {column.name!r} has no value in row {row}", "leave such rows out")
    if classes is not None:
        return _places(column, classes, "classes")
    if not column.is_numeric:
        raise _invalid(
            f"the target {column.name!r} holds texts, such as {column.values[0]!r}",
            "declare classes=[…], the same on every node",
        )
    return column.values.astype(np.float32)


def _places(column: Column, known: Sequence[Any], what: str) -> npt.NDArray[np.int64]:
    """Return the place of each value in a declared list."""
    places = {value: place for place, value in enumerate(known)}
    found = np.array([places.get(value, -1) for value in column.values.tolist()], np.int64)
    if (found < 0).any():
        row = int(np.flatnonzero(found < 0)[0])
        raise _invalid(
            f"column {column.name!r} has {column.values[row]!r} in row {row}, none of its {what} {list(known)}",
            f"declare every value that any node may have in {what}, in the same order on every node",
        )
    return found


def _invalid(message: str, hint: str) -> InvalidJob:
    return InvalidJob(message, code=CODE, hint=hint)
