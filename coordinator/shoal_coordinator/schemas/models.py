"""Schemas of a job's stored models and their labels."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, Field

from shoal_coordinator.schemas.values import Metrics

LABEL = r"^[a-z][a-z0-9._-]{0,39}$"
Label = Annotated[str, Path(pattern=LABEL, description="begins with a letter", examples=["production"])]


class LabelView(BaseModel):
    """A label of a version."""

    label: str = Field(examples=["production"])
    at: str
    why: str


class ModelRow(BaseModel):
    """The model of a version."""

    version: int
    digest: str = Field(description="SHA-256 of the safetensors file")
    bytes: int
    closed_at: str
    metrics: Metrics
    kept: bool = Field(description="true if the file is still stored")
    checkpoint: bool = Field(description="true: kept as long as the job, by its `checkpoint_every`")
    labels: list[LabelView]


class ModelList(BaseModel):
    """Models, newest version first."""

    models: list[ModelRow]
    next: int | None = Field(None, description="`before` of the next page; null: this is the last")


class PromotionRequest(BaseModel):
    """The version to label, and the reason."""

    version: int = Field(ge=0, lt=2**63)
    why: str = Field("", max_length=1000)
