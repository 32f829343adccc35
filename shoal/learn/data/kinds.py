"""Refusal of objects that look like training data and would be misread; columns of frames as arrays; empty data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.core.errors import InvalidJob

CODE = "learner.data"


def checked(data: Any, kind: str, *, text: bool = False) -> Any:
    """Return the data, with frames in a tuple as arrays. Raises `InvalidJob` for what would be misread.

    `kind` names what a part of a tuple may be beside an array; arrays of texts are allowed with `text`.
    """
    if not isinstance(data, tuple):
        _check_part(data)
        return data
    parts = tuple(part.to_numpy() if _is_frame(part) else part for part in data)
    if not text:
        for part in parts:
            _check_part(part)
    arrays = [hasattr(part, "dtype") for part in parts]
    if any(isinstance(part, list) for part in parts) or (any(arrays) and not all(arrays)):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise InvalidJob(
            f"a tuple is (inputs, target), each {kind} or array; this one holds {kinds}",
            code=CODE,
            hint="convert lists with torch.tensor(…) or numpy.array(…); single examples go into a list or a Dataset",
        )
    return parts


def is_empty(data: Any) -> bool:
    """Return whether data have no example, or a `DataLoader` gives no batch: a node with few has none left to test."""
    parts = data if isinstance(data, tuple) else tuple(data.values()) if isinstance(data, Mapping) else (data,)
    return bool(parts) and all(_length(part) == 0 for part in parts)


def formatted(data: Any, form: str) -> Any:
    """Return a table of the package datasets with rows of tensors or arrays in place of lists, unless it has a format;
    other data unchanged."""
    has_format = hasattr(data, "with_format") and hasattr(data, "format")
    return data.with_format(form) if has_format and not data.format["type"] else data


def _length(part: Any) -> int | None:
    try:
        return len(part)
    except TypeError:  # an iterable dataset without a length, a number
        return None


def _check_part(part: Any) -> None:
    first = part[0] if isinstance(part, list) and part else part
    for one in (part, first):
        if isinstance(one, str | bytes) or (isinstance(one, np.ndarray) and one.dtype.kind in "SUO"):
            raise InvalidJob(
                "text and objects are not training data: a model is trained on numbers",
                code=CODE,
                hint="turn it into token ids first, and give tensors (ids, labels) or a Dataset that gives them; "
                "columns of categories: shoal.learn.data.table.table(…, categories=…)",
            )
        if _is_frame(one):
            raise InvalidJob(
                f"a {type(one).__name__} is not training data: nothing says which columns are inputs and which is the "
                "target",
                code=CODE,
                hint="use shoal.learn.data.table.table(frame, target=…), or give (frame[columns], frame[target])",
            )


def _is_frame(part: Any) -> bool:
    return hasattr(part, "to_numpy")
