"""Schemas of nodes, and of the requests that nodes make as JSON."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from shoal_coordinator.schemas.jobs import JobEventView
from shoal_coordinator.schemas.peers import ContactRequest
from shoal_coordinator.schemas.values import Metric, Metrics, NodeInfoJson, check_json

Availability = Literal["active", "drained", "blocked"]
"""Availability of a node: a drained node finishes its tasks; those of a blocked node are withdrawn."""
Counter = Annotated[int, Field(ge=0, le=2**53)]


class JobNode(BaseModel):
    """A node in one job."""

    name: str
    state: Literal["training", "evaluating", "idle", "stale", "gone"]
    progress: float | None
    task: str | None = Field(examples=["1.17"])
    version: int | None
    reports: int
    weight: float | None
    seconds: float | None = Field(description="time from the last task to its report")
    metrics: Metrics
    losses: list[Metric] = Field([], description="train/loss of its last reports, oldest first")
    excluded_text: str = Field("", description="why the job's selection excludes the node; empty: it does not")
    deadlines_missed: int = Field(0, description="among the last rounds that asked the node")
    deadlines: int = Field(0, description="number of those rounds, at most ten")
    resting: bool = Field(False, description="excluded for a while, because it alone kept causing synchronizations")
    is_gossiping: bool = Field(False, description="trains with its peers, or is asked to hand its model back")
    up_bytes: int
    down_bytes: int
    last_seen_s: float | None
    failures: int
    last_error: str | None
    info: dict[str, Any]


class JobNodes(BaseModel):
    """The nodes of one job."""

    nodes: list[JobNode]


class NodeView(BaseModel):
    """A node."""

    name: str
    state: Literal["online", "training", "stale", "gone"]
    availability: Availability = Field(description="drained: gets no new tasks; blocked: its tasks are withdrawn too")
    jobs: list[str]
    last_seen_s: float | None
    joined_at: str
    info: dict[str, Any] = Field(description="facts that the node reports about itself")
    reports: int = Field(description="accepted reports in all jobs since the coordinator started")
    up_bytes: int
    down_bytes: int
    failures: int = Field(description="since the coordinator started")
    last_error: str | None


class NodeAvailability(BaseModel):
    """The availability of a node for tasks."""

    availability: Availability


class NodeList(BaseModel):
    """Nodes, by name."""

    nodes: list[NodeView]
    next: str | None = Field(None, description="`after` of the next page; null: this is the last")


class NodeJob(BaseModel):
    """The part of a node in a job, past or present."""

    job: str
    is_present: bool = Field(description="true if the node is a member now")
    excluded_text: str = Field("", description="why the job's selection excludes the node; empty: it does not")
    reports: int = Field(description="accepted reports that are still stored")
    reported_at: str | None = Field(description="time of the last of them")
    up_bytes: int
    down_bytes: int
    failures: int = Field(description="since the coordinator started")


class NodeEvent(JobEventView):
    """A job event about a node, and its job."""

    job: str


class NodeDetail(NodeView):
    """A node, its jobs, and its connection history."""

    parts: list[NodeJob]
    history: list[NodeEvent] = Field(description="newest first")


class EnrolmentRequest(BaseModel):
    """A request for a credential."""

    token: str = Field(examples=["sht_…"])
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", examples=["hospital-a"])
    info: NodeInfoJson = Field(default_factory=dict)
    protocols: list[int] = Field([1], max_length=16)


class CredentialView(BaseModel):
    """The credential of a node. It cannot be read again."""

    credential: str
    name: str
    protocol: int


class HelloRequest(BaseModel):
    """The introduction of a node's process that has started."""

    info: NodeInfoJson = Field(default_factory=dict)
    protocols: list[int] = Field([1], max_length=16)
    peer: ContactRequest | None = Field(None, description="null: the node never takes part in gossip")
    layout: Annotated[dict[str, str], AfterValidator(check_json)] | None = Field(
        None,
        max_length=20_000,
        description="type and shape of each tensor of the learner's model; `info.model` is its digest",
        examples=[{"0.weight": "F32[16, 30]", "0.bias": "F32[16]"}],
    )


class WelcomeView(BaseModel):
    """The settings of the coordinator that its nodes follow."""

    name: str
    protocol: int
    lease_s: float
    heartbeat_s: float
    wait_s_max: float
    targets: bool = Field(False, description="true if blobs have presigned URLs: …/blobs/{digest}/presign")


class HeartbeatRequest(BaseModel):
    """The progress of a node with a task."""

    job: str
    task: str = Field(pattern=r"^\d{1,18}\.\d{1,18}$")
    progress: float = Field(ge=0, le=1)


class CoordinatorPingRequest(BaseModel):
    """A ping from a node in gossip mode."""

    term: int = Field(ge=-1, le=2**53, description="the node's term; -1: a probe of the connection alone")


class LeaseView(BaseModel):
    """The lease of the coordinator on a job."""

    term: int
    ttl_s: float = Field(description="seconds of silence after which nodes may suspect the coordinator")


class RejoinRequest(BaseModel):
    """The return of a node to a job, perhaps with a model that it trained by gossip."""

    gossip_rounds: tuple[Counter, Counter] | None = Field(None, description="(term, local rounds); null: no such model")


class ReleaseView(BaseModel):
    """The release of the coordinator."""

    version: str
    protocols: list[int]
