"""The shapes of what concerns a job's models: versions that are kept, and the labels that name them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, Field

from shoal_coordinator.measure_views import Metrics

LABEL = r"^[a-z][a-z0-9._-]{0,39}$"
Label = Annotated[str, Path(pattern=LABEL, description="begins with a letter", examples=["production"])]


class Promoted(BaseModel):
    """A label that names a version, and since when."""

    label: str = Field(examples=["production"])
    at: str
    why: str


class ModelRow(BaseModel):
    """A version's model."""

    version: int
    digest: str = Field(description="SHA-256 of the safetensors file")
    bytes: int
    closed_at: str
    metrics: Metrics
    kept: bool = Field(description="whether the file is still here")
    labels: list[Promoted]


class Models(BaseModel):
    """Models, newest version first."""

    models: list[ModelRow]
    next: int | None = Field(None, description="give this as `before`; null: that was all")


class Promotion(BaseModel):
    """The version that is to have the label, and why."""

    version: int = Field(ge=0, lt=2**63)
    why: str = Field("", max_length=1000)
