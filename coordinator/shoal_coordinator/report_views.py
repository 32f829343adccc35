"""The shapes of what is told of counted reports: row by row, by client and round, over all clients, within a round."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from shoal_coordinator.measure_views import Metric, Metrics


class Phases(BaseModel):
    """How long a report took, in seconds of the coordinator's clock; null: not known, as after a crash."""

    wait_s: float | None = Field(description="until the node asked for the order")
    download_s: float | None = Field(description="until it had the model; 0: that went along with the order")
    train_s: float | None = Field(description="until the first byte of its answer")
    upload_s: float | None = Field(description="until the last one")
    fold_s: float | None = Field(description="until it was checked, durable and counted")


class ReportRow(BaseModel):
    """A report that counted."""

    id: int
    job: str
    node: str
    order: str = Field(examples=["1.17"])
    kind: Literal["train", "evaluate", "gossip"]
    version: int = Field(description="whose model it measured and started from")
    round: int | None = Field(description="the version that it became a part of; null: it only measured")
    staleness: int = Field(description="versions that were closed since it was asked")
    weight: float
    norm: float = Field(description="how far the node's model went from the one that it was sent; 0: it sent none")
    metrics: Metrics
    at: str
    seconds: float | None = Field(description="from the order to the counting; null: not known")
    phases: Phases


class Reports(BaseModel):
    """Reports, and where to go on: give `next` as `after` (or `before`); null: that was all."""

    reports: list[ReportRow]
    next: int | None


class HeatRow(BaseModel):
    """A client, with a value for each column: the mean of what is finite (6 digits), "NaN" where any diverged."""

    node: str
    values: list[Metric | None]


class Heat(BaseModel):
    """A quantity by client and round."""

    metric: str
    metrics: list[str] = Field(description="all that can be asked for: what reports have, and what was measured here")
    rounds: list[int] = Field(description="the first round of each column")
    step: int = Field(description="rounds in a column")
    rows: list[HeatRow] = Field(description="by name")
    nodes: int = Field(description="how many clients there are in all")
    next: str | None = Field(description="give this as `after`; null: that was all")


class Bands(BaseModel):
    """A quantity over all clients, by round."""

    metric: str
    rounds: list[int] = Field(description="the first round of each column")
    step: int
    mean: list[float | None] = Field(description="of what is finite")
    low: list[float | None] = Field(description="10 % of clients have less")
    high: list[float | None] = Field(description="10 % of clients have more")
    clients: list[int] = Field(description="reports in the column")
    diverged: list[int] = Field(description="of those, how many are not finite")


class Line(BaseModel):
    """A quantity of one client, by round."""

    metric: str
    node: str
    rounds: list[int]
    step: int
    values: list[Metric | None]


class ClientInRound(BaseModel):
    """A client's part in a round."""

    node: str
    order: str
    start_s: float | None = Field(description="since the round was opened; null: not known")
    end_s: float | None = Field(description="when its report counted; null: it has not")
    staleness: int
    phases: Phases


class Round(BaseModel):
    """How a round went, client by client. Seconds are since it was opened."""

    round: int
    state: Literal["open", "closed"]
    why: str = Field(description="why it was closed")
    opened_at: str | None
    seconds: float = Field(description="how long it took, or has lasted so far")
    asked: int
    quorum: int | None = Field(description="reports without which it may not close; null: its schedule has none")
    quorum_s: float | None = Field(description="when there were so many; null: never, or not known")
    deadline_s: float | None = Field(description="when it might close without the rest; null: its schedule has none")
    clients: list[ClientInRound] = Field(description="in the order of counting; then those that have not reported")
    next: int | None = Field(description="give this as `after`; null: that was all")
