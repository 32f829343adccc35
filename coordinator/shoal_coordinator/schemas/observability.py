"""Schemas of failures, logs, alerts, and coordinators of one database."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from shoal.runtime.observability.log_buffer import FIELDS_BYTES_MAX, TEXT_CHARACTERS_MAX, LogRecord
from shoal.validation.message_checks import NAME
from shoal_coordinator.schemas.values import JsonObject

AlertKind = Literal[
    "node-lost",
    "quorum-missed",
    "diverged",
    "no-progress",
    "disk-low",
    "node-limited",
    "nodes-set-aside",
    "model-differs",
]
FailedIn = Literal["unknown", "download", "init", "train", "evaluate", "gossip", "upload", "fold", "contact"]
"""The phase in which a task failed. upload: the update was refused; fold: the report could not be folded; contact: the
node stopped polling."""
Outcome = Literal["asked-again", "replaced", "left-out", "set-aside", "paused", "awaited"]
"""The reaction to a failure: the node has a new task; other nodes were asked instead; the job continues without the
node; the node is not asked for a while, or until it restarts; the job is paused; a late report still counts."""


class FailureView(BaseModel):
    """A task that failed. `error` and `traceback` are untrusted text from a node."""

    id: int
    at: str
    job: str
    node: str
    task: str = Field(examples=["2.17"])
    version: int
    kind: str = Field(description="init, train, evaluate or gossip")
    phase: FailedIn = Field(
        description="where the task failed; upload: the update was refused; fold: the report could not be folded; "
        "contact: the node stopped polling"
    )
    error: str
    traceback: str = Field(description="empty: unknown, or the node does not send it")
    outcome: Outcome = Field(description="immediate reaction")
    outcome_why: str


class FollowerView(BaseModel):
    """A coordinator that owns some of the jobs and is not the leader."""

    address: str = Field(description="where other coordinators reach it")
    jobs: int = Field(description="number of running jobs that it owns")


class LeaderView(BaseModel):
    """The leader among the coordinators of one database. It owns all jobs that no follower owns."""

    address: str = Field(description="where other coordinators reach it")
    term: int = Field(description="number of the lease; grows with each new leader, from 1")
    followers: list[FollowerView] = Field(description="those that answer")


class FailureList(BaseModel):
    """Failures, newest first. `before`: start of the next page; null: this is the last."""

    failures: list[FailureView]
    before: int | None


LINES_MAX = 1000
Level = Literal["debug", "info", "warning", "error", "critical"]


def _check_size(fields: JsonObject) -> JsonObject:
    if len(json.dumps(fields)) > 2 * FIELDS_BYTES_MAX:
        raise ValueError(f"at most {2 * FIELDS_BYTES_MAX} bytes")
    return fields


class LogLineRequest(BaseModel):
    """A line of a node's log. `n` counts from the start of its process."""

    n: int = Field(ge=0, lt=2**53)
    age_s: float = Field(0.0, ge=0, le=1e9, description="on the node's own clock")
    level: int = Field(ge=0, le=100, description="as in Python's logging: 10 debug, 20 info, 30 warning, 40 error")
    text: str = Field(max_length=TEXT_CHARACTERS_MAX)
    job: str = Field("", pattern=rf"^({NAME.pattern})?$")
    round: int | None = Field(None, ge=0, lt=2**53)
    fields: Annotated[JsonObject, AfterValidator(_check_size)] = Field(default_factory=dict)

    def to_record(self) -> LogRecord:
        """Return the log record, with its age relative to now."""
        return LogRecord(self.n, -self.age_s, self.level, self.text, self.job, self.round, self.fields)


class LogUpload(BaseModel):
    """Log lines of a node's process (`incarnation`); `dropped`: lines that it discarded before this upload."""

    incarnation: str = Field(pattern=r"^[0-9a-f]{1,16}$", examples=["5f2c"])
    lines: list[LogLineRequest] = Field(max_length=LINES_MAX)
    dropped: int = Field(0, ge=0, lt=2**53)


class LogReceipt(BaseModel):
    """Acknowledgement of a log upload."""

    wait_s: float = Field(description="seconds until the next upload")


class LogLine(BaseModel):
    """A line of the log. Its text is untrusted."""

    id: int
    at: str
    node: str = Field(description="empty: the coordinator itself")
    job: str = Field(description="empty: no job")
    round: int | None
    level: Level
    text: str
    fields: JsonObject


class LogList(BaseModel):
    """Lines, oldest first. `older`: whether earlier lines exist."""

    lines: list[LogLine]
    older: bool


class LogMatches(BaseModel):
    """The number of lines that contain a text, and the newest of them, oldest first."""

    total: int
    ids: list[int]


class AlertView(BaseModel):
    """An alert. It is active until it is cleared."""

    id: int
    kind: AlertKind
    job: str = Field(description="empty: none")
    node: str = Field(description="empty: none")
    jobs: list[str] = Field([], description="affected jobs, for an alert about no single job")
    text: str
    raised_at: str
    cleared_at: str | None
    acknowledged_at: str | None = Field(description="time of an operator's acknowledgement")


class AlertList(BaseModel):
    """Alerts, newest first. `before`: start of the next page; null: this is the last."""

    alerts: list[AlertView]
    before: int | None
