"""The shapes of a comparison of runs."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from shoal_coordinator.measure_views import Metric
from shoal_coordinator.views import Job


class ComparedLine(BaseModel):
    """Versions of a run, column by column, thinned out."""

    numbers: list[int]
    elapsed_s: list[float]
    total_bytes: list[int]
    values: dict[str, list[Metric | None]] = Field(description="by metric; null: not measured, NaN: not finite")


class Reached(BaseModel):
    """The first version that meets the target, and what it had cost by then."""

    version: int
    elapsed_s: float
    total_bytes: int


class ComparedRun(BaseModel):
    """A run. Its figures are of all versions, not of those that are left in the line."""

    job: Job
    line: ComparedLine
    last: Metric | None = Field(description="of the last version that was measured")
    best: float | None
    syncs: int = Field(description="closed versions, without the initial model")
    reached: Reached | None = Field(description="null: it never was")


class Comparison(BaseModel):
    """Runs in the order in which they were named."""

    metrics: dict[Literal["accuracy", "loss"], str | None] = Field(
        description="the metric of each kind that most runs have",
        examples=[{"accuracy": "eval/accuracy", "loss": None}],
    )
    judged: str | None = Field(description="of these, the one that last, best and reached are about")
    target: float | None = Field(description="as asked, or 0.98 of the worst run's best")
    baseline: str = Field(description="the run with most bytes")
    runs: list[ComparedRun]
