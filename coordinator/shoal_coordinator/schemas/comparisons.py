"""Schemas of a comparison of runs."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from shoal_coordinator.schemas.jobs import JobView
from shoal_coordinator.schemas.values import Metric


class ComparedSeries(BaseModel):
    """A sample of the versions of a run, column by column."""

    numbers: list[int]
    elapsed_s: list[float]
    total_bytes: list[int]
    values: dict[str, list[Metric | None]] = Field(description="by metric; null: not measured; NaN: not finite")


class TargetReached(BaseModel):
    """The first version that meets the target, and its cost."""

    version: int
    elapsed_s: float
    total_bytes: int


class ComparedRun(BaseModel):
    """A run. Its figures cover all versions, not only those in the sample."""

    job: JobView
    line: ComparedSeries
    last: Metric | None = Field(description="of the last measured version")
    best: float | None
    syncs: int = Field(description="closed versions, without the initial model")
    reached: TargetReached | None = Field(description="null: the run does not meet the target")


class RunComparison(BaseModel):
    """Compared runs, in the order of the request."""

    metrics: dict[Literal["accuracy", "loss"], str | None] = Field(
        description="the most common metric of each kind",
        examples=[{"accuracy": "eval/accuracy", "loss": None}],
    )
    judged: str | None = Field(description="the metric of last, best and reached")
    target: float | None = Field(description="the requested target, or 0.98 of the lowest best value")
    baseline: str = Field(description="the run with the most bytes")
    runs: list[ComparedRun]
