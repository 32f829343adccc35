"""What the API answers with where somebody looks for what went wrong."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from shoal.heads import NAME
from shoal.runtime.log_lines import FIELDS_BYTES_MAX, TEXT_CHARACTERS_MAX, Line
from shoal_coordinator.alerts import Kind
from shoal_coordinator.failures import FailedIn, Outcome
from shoal_coordinator.views import Plain


class Failure(BaseModel):
    """An order that was not done. `error` and `traceback` are a node's words: text, and nothing else."""

    id: int
    at: str
    job: str
    node: str
    order: str = Field(examples=["2.17"])
    version: int
    kind: str = Field(description="what was asked: init, train, evaluate, gossip")
    phase: FailedIn = Field(
        description="how far the node was; upload: what it sent was refused; fold: it could not be counted; "
        "contact: the node fell silent"
    )
    error: str
    traceback: str = Field(description="where in whose code it came from; empty: unknown, or the node does not tell")
    outcome: Outcome = Field(description="what was done at once")
    outcome_why: str


class Deputy(BaseModel):
    """A coordinator that owns some of the jobs."""

    address: str = Field(description="where the others reach it")
    jobs: int = Field(description="how many of its jobs run")


class Owner(BaseModel):
    """Which of several coordinators of one database leads: it owns all jobs that no deputy owns."""

    address: str = Field(description="where the others reach it")
    epoch: int = Field(description="how often the database has been taken; the first lead's is 1")
    deputies: list[Deputy] = Field(description="those that answer")


class Failures(BaseModel):
    """Failures, newest first. `before`: where the next page begins; null: there is none."""

    failures: list[Failure]
    before: int | None


LINES_MAX = 1000
Level = Literal["debug", "info", "warning", "error", "critical"]


def _small(fields: Plain) -> Plain:
    if len(json.dumps(fields)) > 2 * FIELDS_BYTES_MAX:
        raise ValueError(f"at most {2 * FIELDS_BYTES_MAX} bytes")
    return fields


class ShownLine(BaseModel):
    """A line of a node's log. `n` counts from the start of its process."""

    n: int = Field(ge=0, lt=2**53)
    age_s: float = Field(0.0, ge=0, le=1e9, description="on the node's own clock")
    level: int = Field(ge=0, le=100, description="as in Python's logging: 10 debug, 20 info, 30 warning, 40 error")
    text: str = Field(max_length=TEXT_CHARACTERS_MAX)
    job: str = Field("", pattern=rf"^({NAME.pattern})?$")
    round: int | None = Field(None, ge=0, lt=2**53)
    fields: Annotated[Plain, AfterValidator(_small)] = Field(default_factory=dict)

    def line(self) -> Line:
        """Born so long before now."""
        return Line(self.n, -self.age_s, self.level, self.text, self.job, self.round, self.fields)


class ShownLines(BaseModel):
    """What a node's process (`boot`) has logged; `dropped`: lines that it could not keep for so long."""

    boot: str = Field(pattern=r"^[0-9a-f]{1,16}$", examples=["5f2c"])
    lines: list[ShownLine] = Field(max_length=LINES_MAX)
    dropped: int = Field(0, ge=0, lt=2**53)


class Taken(BaseModel):
    """The lines were taken, or as many as are allowed."""

    wait_s: float = Field(description="seconds after which more is welcome")


class LogLine(BaseModel):
    """A line of the log. Its words are its node's: text, and nothing else."""

    id: int
    at: str
    node: str = Field(description="empty: the coordinator itself")
    job: str = Field(description="empty: of no job")
    round: int | None
    level: Level
    text: str
    fields: Plain


class LogLines(BaseModel):
    """Lines, oldest first. `older`: whether there are some before them."""

    lines: list[LogLine]
    older: bool


class LogMatches(BaseModel):
    """Where a text stands: how often, and the newest lines that hold it, oldest first."""

    total: int
    ids: list[int]


class Alert(BaseModel):
    """Something that an operator should know. It is over once it is cleared."""

    id: int
    kind: Kind
    job: str = Field(description="empty: about none")
    node: str = Field(description="empty: about none")
    jobs: list[str] = Field([], description="that it bears on, where it is about none alone: those that miss a node")
    text: str
    raised_at: str
    cleared_at: str | None
    seen_at: str | None = Field(description="when an operator has acknowledged it")


class Alerts(BaseModel):
    """Alerts, newest first. `before`: where the next page begins; null: there is none."""

    alerts: list[Alert]
    before: int | None
