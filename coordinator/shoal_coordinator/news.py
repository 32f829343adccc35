"""The events of the stream, typed: `event` and `data` are the fields of the same names of a server-sent event.

They are part of the OpenAPI document, so that the dashboard's types are generated from them. `data` is one of the API's
nouns with the name of its job beside it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from shoal_coordinator import views
from shoal_coordinator.measure_views import Metrics, Provisional
from shoal_coordinator.observe_views import Alert, Failure
from shoal_coordinator.peer_views import PeersNews


class Greeting(BaseModel):
    """The coordinator that has answered. `boot` differs when it was started anew."""

    server_time: str
    version: str
    boot: str


class HelloEvent(BaseModel):
    """The first of each stream: fetch again what was fetched before, something may have been missed."""

    event: Literal["hello"] = "hello"
    data: Greeting


class Nothing(BaseModel):
    """An empty object."""

    model_config = ConfigDict(extra="forbid")


class PingEvent(BaseModel):
    """The connection lives; nothing else came for a while."""

    event: Literal["ping"] = "ping"
    data: Nothing


class JobNews(views.Job):
    """A job as it stands now."""

    job: str


class JobEvent(BaseModel):
    """A job has begun, or has changed."""

    event: Literal["job"] = "job"
    data: JobNews


class VersionNews(views.Version):
    """A version of that job."""

    job: str


class VersionEvent(BaseModel):
    """A version has closed. It can be replayed."""

    event: Literal["version"] = "version"
    data: VersionNews


class MetricsNews(BaseModel):
    """Metrics of a version; those that were known of it before, and have other names, still hold."""

    job: str
    at: str
    number: int
    metrics: Metrics
    provisional: Provisional | None = Field(None, description="as of the version, with all that is known of it")


class MetricsEvent(BaseModel):
    """A version was measured. It can be replayed."""

    event: Literal["metrics"] = "metrics"
    data: MetricsNews


class NoteNews(views.Note):
    """A note of that job."""

    job: str


class NoteEvent(BaseModel):
    """Something was decided, or has happened. It can be replayed."""

    event: Literal["note"] = "note"
    data: NoteNews


class NodesNews(views.JobNodes):
    """Nodes of that job: those that have changed."""

    job: str


class NodesEvent(BaseModel):
    """Nodes have changed."""

    event: Literal["nodes"] = "nodes"
    data: NodesNews


class TrafficNews(BaseModel):
    """Bytes on the wire of that job since its start."""

    job: str
    up_bytes: int
    down_bytes: int


class TrafficEvent(BaseModel):
    """Bytes were counted."""

    event: Literal["traffic"] = "traffic"
    data: TrafficNews


class PeersEvent(BaseModel):
    """Nodes as each other's peers have told how they do, or the roster has changed."""

    event: Literal["peers"] = "peers"
    data: PeersNews


class LogsNews(BaseModel):
    """Log lines were written, up to this one. They are to be asked for."""

    job: str = Field(description="empty: lines of no job")
    last: int


class LogsEvent(BaseModel):
    """There are new log lines."""

    event: Literal["logs"] = "logs"
    data: LogsNews


class AlertEvent(BaseModel):
    """An alert was raised, cleared, or acknowledged."""

    event: Literal["alert"] = "alert"
    data: Alert


class FailureEvent(BaseModel):
    """An order was not done, or more is known of one that was not."""

    event: Literal["failure"] = "failure"
    data: Failure


Event = (
    HelloEvent
    | PingEvent
    | JobEvent
    | VersionEvent
    | MetricsEvent
    | NoteEvent
    | NodesEvent
    | TrafficEvent
    | PeersEvent
    | FailureEvent
    | LogsEvent
    | AlertEvent
)


class StreamEvent(RootModel[Annotated[Event, Field(discriminator="event")]]):
    """Any event of the stream. The `id` of one that can be replayed is what `Last-Event-ID` names."""
