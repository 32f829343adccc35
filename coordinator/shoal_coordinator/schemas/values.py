"""Types of values that several schemas share: times, metrics, and JSON that a node or user supplies."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, overload

from pydantic import AfterValidator, BaseModel, Field

INFO_BYTES_MAX = 8192
DEPTH_MAX = 32

Metric = float | Literal["NaN", "Infinity", "-Infinity"]
Metrics = dict[str, Metric]
ReportedMetrics = dict[
    Annotated[str, Field(max_length=64)],
    Annotated[float, Field(allow_inf_nan=False)] | Literal["NaN", "Infinity", "-Infinity"],
]
"""Metrics in a request from a node."""


@overload
def iso(seconds: float) -> str: ...
@overload
def iso(seconds: float | None) -> str | None: ...
def iso(seconds: float | None) -> str | None:
    """Format seconds since 1970 as ISO 8601 in UTC, with milliseconds."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_iso(text: str) -> float:
    """Return the seconds since 1970 of a time that `iso` formatted."""
    return datetime.fromisoformat(text).timestamp()


def check_json(value: Any, depth: int = 0) -> Any:
    """Return `value`. Raises `ValueError` for non-finite numbers, lone surrogates and deep nesting."""
    if depth > DEPTH_MAX:
        raise ValueError(f"nested more than {DEPTH_MAX} deep")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("numbers must be finite")
    if isinstance(value, str) and not value.isascii():
        value.encode()  # raises UnicodeEncodeError, a ValueError, for a lone surrogate
    for inner in value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, dict) else ():
        check_json(inner, depth + 1)
    return value


def _check_info_size(value: dict[str, Any]) -> dict[str, Any]:
    if len(json.dumps(value)) > INFO_BYTES_MAX:  # every browser receives it
        raise ValueError(f"at most {INFO_BYTES_MAX} bytes")
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(check_json)]
NodeInfoJson = Annotated[JsonObject, AfterValidator(_check_info_size)]


class BestVersion(BaseModel):
    """The version with the best accuracy so far."""

    accuracy: float
    version: int
    nodes: int | None = Field(
        None, description="nodes that measured it, each on its own data; null: measured by none, or unknown"
    )


class ProvisionalAccuracy(BaseModel):
    """Progress of an evaluation that some of the asked nodes have not finished."""

    reported: int = Field(description="nodes that have measured the version")
    asked: int = Field(description="nodes that were asked to")
