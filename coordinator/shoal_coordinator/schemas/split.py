"""Schemas of split jobs."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from shoal_coordinator.schemas.values import Metrics


class SplitVersionView(BaseModel):
    """A closed round of a split job."""

    number: int
    nodes: list[str] = Field(description="nodes whose turns counted, in order")
    metrics: Metrics


class SplitJobView(BaseModel):
    """A split job."""

    id: str = Field(description="differs for each start of a job from the beginning")
    spec: dict[str, Any] = Field(description="the job's file, without the coordinator's learner")
    form: str = Field(description="hash of the tensors of the model's parts and at the cut, alike at all learners")
    round: int = Field(description="closed rounds")
    ended: str = Field(description="why it has ended; empty: it runs")
    nodes: list[str] = Field(description="nodes that take part")
    step_up_bytes: int = Field(description="bytes of tensors that a full batch sends to the coordinator")
    step_down_bytes: int
    up_bytes: int = Field(description="all bytes from nodes so far")
    down_bytes: int
    versions: list[SplitVersionView]
