"""Schemas of the event stream: `event` and `data` are the fields of a server-sent event.

The data of most events is a schema of the API with the name of its job added. The OpenAPI document contains the events,
so that the dashboard's types are generated from them.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel

from shoal_coordinator.schemas.jobs import JobEventView, JobView, VersionView
from shoal_coordinator.schemas.nodes import JobNodes
from shoal_coordinator.schemas.observability import AlertView, FailureView
from shoal_coordinator.schemas.peers import JobPeersUpdate
from shoal_coordinator.schemas.values import Metrics, ProvisionalAccuracy

Topic = TypeVar("Topic")
Data = TypeVar("Data", bound=BaseModel)


class Event(BaseModel, Generic[Topic, Data]):
    """An event of the stream."""

    event: Topic
    data: Data


class HelloData(BaseModel):
    """The coordinator that answers. `started_at` changes when it restarts."""

    server_time: str
    version: str
    started_at: str


class Empty(BaseModel):
    """An empty object."""

    model_config = ConfigDict(extra="forbid")


class JobChange(JobView):
    """The current state of a job."""

    job: str


class VersionClosed(VersionView):
    """A new version of a job."""

    job: str


class VersionMeasured(BaseModel):
    """New metrics of a version; other known metrics of it remain valid."""

    job: str
    at: str
    number: int
    metrics: Metrics
    provisional: ProvisionalAccuracy | None = Field(None, description="null: all asked nodes have measured the version")


class JobEventAdded(JobEventView):
    """A new job event."""

    job: str


class JobNodesChange(JobNodes):
    """The nodes of a job that changed."""

    job: str


class JobTrafficChange(BaseModel):
    """Bytes of a job since its start."""

    job: str
    up_bytes: int
    down_bytes: int


class LogsAdded(BaseModel):
    """The id of the newest log line."""

    job: str = Field(description="empty: lines of no job")
    last: int


class HelloStreamEvent(Event[Literal["hello"], HelloData]):
    """The first event of a stream. Clients fetch again what they hold, because events may be missing."""


class PingStreamEvent(Event[Literal["ping"], Empty]):
    """An empty event, sent after a while without another one."""


class JobStreamEvent(Event[Literal["job"], JobChange]):
    """A job has changed."""


class VersionStreamEvent(Event[Literal["version"], VersionClosed]):
    """A job has a new version."""


class MetricsStreamEvent(Event[Literal["metrics"], VersionMeasured]):
    """Nodes have measured a version."""


class JobEventStreamEvent(Event[Literal["job_event"], JobEventAdded]):
    """A job event was recorded."""


class NodesStreamEvent(Event[Literal["nodes"], JobNodesChange]):
    """Nodes of a job have changed."""


class TrafficStreamEvent(Event[Literal["traffic"], JobTrafficChange]):
    """The byte counts of a job have changed."""


class PeersStreamEvent(Event[Literal["peers"], JobPeersUpdate]):
    """Peers of a job have reported their state."""


class FailureStreamEvent(Event[Literal["failure"], FailureView]):
    """A failure was recorded."""


class LogsStreamEvent(Event[Literal["logs"], LogsAdded]):
    """The log has new lines."""


class AlertStreamEvent(Event[Literal["alert"], AlertView]):
    """An alert was raised, changed or has ended."""


AnyEvent = (
    HelloStreamEvent
    | PingStreamEvent
    | JobStreamEvent
    | VersionStreamEvent
    | MetricsStreamEvent
    | JobEventStreamEvent
    | NodesStreamEvent
    | TrafficStreamEvent
    | PeersStreamEvent
    | FailureStreamEvent
    | LogsStreamEvent
    | AlertStreamEvent
)


class StreamEvent(RootModel[Annotated[AnyEvent, Field(discriminator="event")]]):
    """An event of the stream. Events with an `id` can be replayed with `Last-Event-ID`."""
