"""Schemas of the event stream: `event` and `data` are the fields of a server-sent event.

The data of most events is a schema of the API with the name of its job added. The OpenAPI document contains the events,
so that the dashboard's types are generated from them.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, RootModel

from shoal_coordinator.schemas.jobs import JobEventView, JobView, VersionView
from shoal_coordinator.schemas.nodes import JobNodes
from shoal_coordinator.schemas.observability import AlertView, FailureView
from shoal_coordinator.schemas.peers import JobPeersUpdate
from shoal_coordinator.schemas.values import Metrics, Provisional

Topic = TypeVar("Topic")
Data = TypeVar("Data", bound=BaseModel)


class Event(BaseModel, Generic[Topic, Data]):
    """An event of the stream."""

    event: Topic
    data: Data

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """Return the name in the OpenAPI document, such as JobStreamEvent for the topic "job"."""
        (topic,) = get_args(params[0])
        return f"{topic.title().replace('_', '')}StreamEvent"


class Greeting(BaseModel):
    """The coordinator that answers. `boot` changes when it restarts."""

    server_time: str
    version: str
    boot: str


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
    provisional: Provisional | None = Field(None, description="null: all asked nodes have measured the version")


class JobEventAdded(JobEventView):
    """A new job event."""

    job: str


class JobNodesChange(JobNodes):
    """The nodes of a job that changed."""

    job: str


class TrafficTotal(BaseModel):
    """Bytes of a job since its start."""

    job: str
    up_bytes: int
    down_bytes: int


class LogsAdded(BaseModel):
    """The id of the newest log line."""

    job: str = Field(description="empty: lines of no job")
    last: int


HelloEvent = Event[Literal["hello"], Greeting]
PingEvent = Event[Literal["ping"], Empty]
JobChangeEvent = Event[Literal["job"], JobChange]
VersionEvent = Event[Literal["version"], VersionClosed]
AnyEvent = (
    HelloEvent  # the first event of a stream: clients fetch again what they hold, because events may be missing
    | PingEvent  # after a while without another event
    | JobChangeEvent
    | VersionEvent
    | Event[Literal["metrics"], VersionMeasured]
    | Event[Literal["job_event"], JobEventAdded]
    | Event[Literal["nodes"], JobNodesChange]
    | Event[Literal["traffic"], TrafficTotal]
    | Event[Literal["peers"], JobPeersUpdate]
    | Event[Literal["failure"], FailureView]
    | Event[Literal["logs"], LogsAdded]
    | Event[Literal["alert"], AlertView]
)


class StreamEvent(RootModel[Annotated[AnyEvent, Field(discriminator="event")]]):
    """An event of the stream. Events with an `id` can be replayed with `Last-Event-ID`."""
