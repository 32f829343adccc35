"""The shapes that tell how good a version is, and on how many nodes that rests."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

Metric = float | Literal["NaN", "Infinity", "-Infinity"]
Metrics = dict[str, Metric]
Told = dict[
    Annotated[str, Field(max_length=64)],
    Annotated[float, Field(allow_inf_nan=False)] | Literal["NaN", "Infinity", "-Infinity"],
]
"""Metrics as a node tells them."""


class Best(BaseModel):
    """The best version so far, by accuracy."""

    accuracy: float
    version: int
    nodes: int | None = Field(
        None, description="how many nodes measured it, each on its own data; null: none did, or it is not known"
    )


class Provisional(BaseModel):
    """An accuracy that is not complete: nodes that were asked are still to measure, each on its own data."""

    reported: int = Field(description="nodes that it rests on so far")
    asked: int = Field(description="nodes that it will rest on, if all report")
