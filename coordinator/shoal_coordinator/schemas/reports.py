"""Schemas of accepted reports: rows, heat maps, quantiles, series, and the timeline of a round."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from shoal_coordinator.schemas.values import Metric, Metrics


class ReportPhases(BaseModel):
    """Durations of the phases of a report, in seconds of the coordinator's clock; null: unknown, as after a crash."""

    wait_s: float | None = Field(description="until the node fetched the task")
    download_s: float | None = Field(description="until the node had the model; 0: the task contained it")
    train_s: float | None = Field(description="until the first byte of the report")
    upload_s: float | None = Field(description="until the last byte")
    fold_s: float | None = Field(description="until the report was durable and folded")


class ReportRow(BaseModel):
    """An accepted report."""

    id: int
    job: str
    node: str
    task: str = Field(examples=["1.17"])
    kind: Literal["train", "evaluate", "gossip"]
    version: int = Field(description="the version that it measured and trained from")
    round: int | None = Field(description="the version that includes it; null: an evaluation")
    staleness: int = Field(description="versions that closed between the task and the report")
    weight: float
    norm: float = Field(description="norm of the update; 0: none")
    metrics: Metrics
    at: str
    seconds: float | None = Field(description="from the task to the fold; null: unknown")
    phases: ReportPhases


class ReportList(BaseModel):
    """Reports. `next`: `after` (or `before`) of the next page; null: this is the last."""

    reports: list[ReportRow]
    next: int | None


class HeatmapRow(BaseModel):
    """A node's value in each column: the mean of finite values (6 digits), or "NaN" if one is not finite."""

    node: str
    values: list[Metric | None]


class Heatmap(BaseModel):
    """A metric by node and round."""

    metric: str
    metrics: list[str] = Field(description="metrics that can be requested")
    rounds: list[int] = Field(description="the first round of each column")
    step: int = Field(description="rounds in a column")
    rows: list[HeatmapRow] = Field(description="by name")
    nodes: int = Field(description="number of nodes in all")
    next: str | None = Field(description="`after` of the next page; null: this is the last")


class Quantiles(BaseModel):
    """The distribution of a metric over all nodes, by round."""

    metric: str
    rounds: list[int] = Field(description="the first round of each column")
    step: int
    mean: list[float | None] = Field(description="of finite values")
    low: list[float | None] = Field(description="10 % quantile over nodes")
    high: list[float | None] = Field(description="90 % quantile over nodes")
    clients: list[int] = Field(description="reports in the column")
    diverged: list[int] = Field(description="reports in the column with a value that is not finite")


class NodeSeries(BaseModel):
    """A metric of one node, by round."""

    metric: str
    node: str
    rounds: list[int]
    step: int
    values: list[Metric | None]


class NodeInRound(BaseModel):
    """A node's part in a round."""

    node: str
    task: str
    start_s: float | None = Field(description="since the round opened; null: unknown")
    end_s: float | None = Field(description="when the report was folded; null: not yet")
    staleness: int
    phases: ReportPhases


class RoundTimeline(BaseModel):
    """The course of a round, node by node. Seconds count from its opening."""

    round: int
    state: Literal["open", "closed"]
    why: str = Field(description="why the round closed")
    opened_at: str | None
    seconds: float = Field(description="duration, or time so far")
    asked: int
    quorum: int | None = Field(description="reports needed to close; null: the schedule has no quorum")
    quorum_s: float | None = Field(description="when the quorum was reached; null: never, or unknown")
    deadline_s: float | None = Field(description="null: the schedule has no deadline")
    clients: list[NodeInRound] = Field(description="in the order of folding; then nodes without a report")
    next: int | None = Field(description="`after` of the next page; null: this is the last")
