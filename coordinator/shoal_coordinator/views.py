"""What the API answers with: the shapes that the dashboard's types are generated from.

Times `*_at` are ISO 8601 in UTC, durations `*_s` and `seconds` are seconds, sizes are bytes. A number that is not
finite is one of the strings "NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, overload

from pydantic import AfterValidator, BaseModel, Field, model_validator

from shoal_coordinator.measure_views import Best, Metric, Metrics, Provisional
from shoal_coordinator.peer_views import Contact, GoesOn, Rebuilt
from shoal_coordinator.presence import Availability

INFO_BYTES_MAX = 8192
DEPTH_MAX = 32
DRAFT_CHARS_MAX = 64 * 1024
Mode = Literal["server", "away", "returning"]
JobState = Literal["waiting", "running", "paused", "evaluating", "done", "stopped", "failed"]


@overload
def iso(seconds: float) -> str: ...
@overload
def iso(seconds: float | None) -> str | None: ...
def iso(seconds: float | None) -> str | None:
    """Seconds since 1970 as ISO 8601."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(text: str) -> float:
    """What `iso` has written."""
    return datetime.fromisoformat(text).timestamp()


def _plain(value: Any, depth: int = 0) -> Any:
    """JSON that can be stored and sent on to others: finite numbers, whole characters, not nested beyond reason."""
    if depth > DEPTH_MAX:
        raise ValueError(f"nested more than {DEPTH_MAX} deep")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("numbers must be finite")
    if isinstance(value, str) and not value.isascii():
        value.encode()  # half a character is a ValueError of its own
    for inner in value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, dict) else ():
        _plain(inner, depth + 1)
    return value


def _small(value: dict[str, Any]) -> dict[str, Any]:
    """What a node says of itself goes to every browser."""
    if len(json.dumps(value)) > INFO_BYTES_MAX:
        raise ValueError(f"at most {INFO_BYTES_MAX} bytes")
    return value


Plain = Annotated[dict[str, Any], AfterValidator(_plain)]
Info = Annotated[Plain, AfterValidator(_small)]


class Model(BaseModel):
    """A job's present model."""

    digest: str = Field(description="SHA-256 of the safetensors file")
    bytes: int
    parameters: int


class Job(BaseModel):
    """A job as it stands."""

    name: str = Field(examples=["digits"])
    title: str
    state: JobState
    state_why: str = Field(
        description="what it waits for, how far it is with that, or why it ended",
        examples=["round 1: 1 of 3 nodes ready; not asked: lab-2: without the tag ship"],
    )
    idle: bool = Field(False, description="no node works for it, and none will before what `state_why` says has come")
    headline: str = Field("", description="what a reader wants to know first, in a sentence")
    algorithm: str = Field(examples=["fedavg"])
    schedule: str = Field(examples=["rounds"])
    mode: Mode = Field(
        "server",
        description="who leads: the coordinator; its nodes (away); its nodes, handing back (returning)",
    )
    mode_since: str | None = Field(None, description="when that changed last; null: never yet")
    version: int = Field(description="versions closed so far")
    versions: int | None = Field(description="versions wanted; null where they come as they like")
    progress: float = Field(description="0 to 1")
    eta_s: float | None = Field(description="at the pace of the last versions; null: not known, or nothing goes on")
    nodes: int = Field(description="that take part and are here")
    members: int = Field(0, description="that have joined and are here: the selection may leave some of them out")
    busy: int
    created_at: str
    started_at: str | None
    ended_at: str | None
    model: Model | None
    metrics: Metrics = Field(description="the newest known, of the newest version that was measured")
    measured: int | None = Field(None, description="that version")
    provisional: Provisional | None = Field(None, description="null: no node that was asked is still to measure it")
    best: Best | None = Field(description="of the versions whose accuracy is complete")
    rebuilt: Rebuilt | None = Field(None, description="null: all of the job's life has been here")
    up_bytes: int = Field(description="from nodes to the coordinator, heads and polls included, and to each other")
    down_bytes: int
    spec: dict[str, Any]
    changed: dict[str, float] = Field(
        {}, description="settings that an operator has changed since", examples=[{"algorithm.lr": 0.05}]
    )
    awaited: dict[str, float] = Field({}, description="the same, of those that begin with the next version")
    tags: list[str] = []
    labels: dict[str, int] = Field({}, description="promoted versions, by label", examples=[{"production": 12}])


class Jobs(BaseModel):
    """Jobs, newest first."""

    jobs: list[Job]
    next: str | None = Field(None, description="give this as `after`; null: that was all")


class Version(BaseModel):
    """A closed version. `metrics` "eval/…" describe its own model."""

    number: int
    digest: str
    bytes: int
    why: str
    opened_at: str
    closed_at: str
    elapsed_s: float = Field(description="since the job's first version was opened, on the job's clock")
    seconds: float
    reports: int
    asked: int
    weight: float
    metrics: Metrics
    provisional: Provisional | None = Field(None, description="null: no node that was asked is still to measure it")
    numbers: Metrics = Field(description="what the schedule keeps from here on: its threshold, its counters")
    up_bytes: int = Field(description="of the round that made it, and of rounds before that are not kept")
    down_bytes: int
    total_bytes: int = Field(description="both directions, from the job's start to the end of that round")


class Versions(BaseModel):
    """Closed versions, by number."""

    versions: list[Version]


class Note(BaseModel):
    """A sentence for people: what was decided or happened, and why."""

    id: int
    at: str
    version: int
    kind: Literal["decision", "mode", "node", "refusal", "state", "warning"]
    node: str | None
    text: str


class Notes(BaseModel):
    """Notes, oldest first."""

    notes: list[Note]


class JobNode(BaseModel):
    """A node in one job."""

    name: str
    state: Literal["training", "evaluating", "idle", "stale", "gone"]
    progress: float | None
    order: str | None = Field(examples=["1.17"])
    version: int | None
    reports: int
    weight: float | None
    seconds: float | None = Field(description="from order to report, the last time")
    metrics: Metrics
    losses: list[Metric] = Field([], description="train/loss of its last reports, oldest first")
    left_out: str = Field("", description="why it takes no part: the job's selection excludes it; empty: it does")
    deadlines_missed: int = Field(0, description="of the last rounds that had asked it")
    deadlines: int = Field(0, description="how many rounds those are, ten at most")
    resting: bool = Field(False, description="left out for a while: it alone kept causing synchronisations")
    away: bool = Field(False, description="it carries on without the coordinator, or is asked to hand back what it has")
    up_bytes: int
    down_bytes: int
    last_seen_s: float | None
    failures: int
    last_error: str | None
    info: dict[str, Any]


class JobNodes(BaseModel):
    """The nodes of one job."""

    nodes: list[JobNode]


class Node(BaseModel):
    """A node."""

    name: str
    state: Literal["online", "training", "stale", "gone"]
    availability: Availability = Field(description="drained: asked nothing new; blocked: its orders are void")
    jobs: list[str]
    last_seen_s: float | None
    joined_at: str
    info: dict[str, Any] = Field(description="what it says of itself")
    reports: int = Field(description="that counted since the coordinator started, in all jobs")
    up_bytes: int
    down_bytes: int
    failures: int = Field(description="since the coordinator started")
    last_error: str | None


class NodeAvailability(BaseModel):
    """Whether jobs ask a node."""

    availability: Availability


class Nodes(BaseModel):
    """Nodes, by name."""

    nodes: list[Node]
    next: str | None = Field(None, description="give this as `after`; null: that was all")


class NodePart(BaseModel):
    """A node in a job that it takes or has taken part in."""

    job: str
    here: bool = Field(description="whether it takes part now")
    left_out: str = Field("", description="why it takes no part though it has joined: the job's selection excludes it")
    reports: int = Field(description="that counted, as far as they are kept")
    reported_at: str | None = Field(description="when the last of them counted")
    up_bytes: int
    down_bytes: int
    failures: int = Field(description="since the coordinator started")


class NodeNote(Note):
    """A note on a node, and in which job it was made."""

    job: str


class NodeDetail(Node):
    """A node, its jobs, and when it came and went."""

    parts: list[NodePart]
    history: list[NodeNote] = Field(description="newest first")


class NewJob(BaseModel):
    """A job file as JSON, and optionally the digest of an initial model that was uploaded before."""

    spec: Plain = Field(examples=[{"name": "digits", "rounds": 30, "algorithm": {"name": "fedavg", "lr": 0.1}}])
    start_model: str | None = None
    hold: bool = Field(False, description="begin it paused: nothing is asked of nodes before somebody resumes it")
    goes_on: GoesOn | None = Field(
        None, description="go on from what nodes have kept of a job whose coordinator is lost"
    )


class Draft(BaseModel):
    """A job file that is to be looked at: as TOML, or as JSON."""

    toml: str | None = Field(None, max_length=DRAFT_CHARS_MAX, examples=['name = "digits"'])
    spec: Plain | None = Field(None, examples=[{"name": "digits", "algorithm": {"name": "fedavg", "lr": "fast"}}])

    @model_validator(mode="after")
    def _one_of_them(self) -> Draft:
        if (self.toml is None) == (self.spec is None):
            raise ValueError("either toml or spec")
        return self


class Mistake(BaseModel):
    """One thing that is wrong with a job file."""

    place: list[str | int] = Field(
        description="keys, and numbers of tables, from the top of the file; empty: the file as a whole",
        examples=[["algorithm", "lr"]],
    )
    text: str = Field(examples=["algorithm fedavg: lr: Input should be a valid number"])
    hint: str = Field("", examples=["did you mean 'lr'?"])


class Checked(BaseModel):
    """What a job file says, and all that is wrong with it; nothing: the job could begin."""

    spec: dict[str, Any] = Field(description="as it was read; empty where it could not be")
    mistakes: list[Mistake]


class Why(BaseModel):
    """A reason, for the record; and for a stop, when."""

    why: str = ""
    when: Literal["now", "round"] = "now"


def _distinct(tags: list[str]) -> list[str]:
    return sorted({tag.strip() for tag in tags})


Tag = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f,]*[^\x00-\x20\x7f,][^\x00-\x1f\x7f,]*$", max_length=40)]


class Tags(BaseModel):
    """All tags of a job, instead of those that it had. None has a comma or a character that controls."""

    tags: Annotated[list[Tag], AfterValidator(_distinct)] = Field(max_length=16, examples=[["baseline", "tumours"]])


class Move(BaseModel):
    """What a switch would do, if it were made now."""

    to: Literal["gossip", "server"]
    possible: bool
    why: str = Field(description="what it would do, or why it cannot be made now")
    hint: str = Field("", description="what can be done about it")
    version: int = Field(description="the version that nodes would carry on from, or that their work would follow")
    asked: list[str] = Field(description="nodes that would be asked, and can do it")
    unable: list[str] = Field(description="nodes that are here, but show no address at which others could reach them")


class Switch(BaseModel):
    """Who is to lead the job, and why."""

    to: Literal["gossip", "server"]
    why: str = ""


class Knock(BaseModel):
    """A node that carries on without the coordinator. Its term; -1: it only wants to know whether it is heard."""

    term: int = Field(ge=-1, le=2**53)


class Lease(BaseModel):
    """The coordinator is there. Its orders are of this term."""

    term: int
    ttl_s: float = Field(description="seconds of silence after which it may be suspected")


class Return(BaseModel):
    """A node that is back, and what it carries of the time without the coordinator."""

    away: tuple[Annotated[int, Field(ge=0, le=2**53)], Annotated[int, Field(ge=0, le=2**53)]] | None = Field(
        None, description="(term, local rounds); null: nothing"
    )


class SignIn(BaseModel):
    """A token that signs somebody in."""

    token: str


class Session(BaseModel):
    """Who the browser is signed in as."""

    role: Literal["operator", "viewer"] | None


class Enrolment(BaseModel):
    """A node that wants a credential."""

    token: str = Field(examples=["sht_…"])
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", examples=["hospital-a"])
    info: Info = Field(default_factory=dict)
    protocols: list[int] = Field([1], max_length=16)


class Enrolled(BaseModel):
    """A node's credential, shown this once."""

    credential: str
    name: str
    protocol: int


class Hello(BaseModel):
    """A node whose process has started."""

    info: Info = Field(default_factory=dict)
    protocols: list[int] = Field([1], max_length=16)
    peer: Contact | None = Field(None, description="null: it takes part in jobs, but never in gossip")
    layout: Annotated[dict[str, str], AfterValidator(_plain)] | None = Field(
        None,
        max_length=20_000,
        description="type and shape of each tensor of its learner's model; its digest is info.model",
        examples=[{"0.weight": "F32[16, 30]", "0.bias": "F32[16]"}],
    )


class Welcome(BaseModel):
    """What the coordinator expects of its nodes."""

    name: str
    protocol: int
    lease_s: float
    beat_s: float
    wait_s_max: float
    targets: bool = Field(False, description="whether bodies have addresses of their own: …/bodies/{digest}/target")


class UploadSize(BaseModel):
    """How large a body is."""

    bytes: int = Field(ge=1, lt=2**63)


class Target(BaseModel):
    """Where a body is to be got or put, for a while; the headers go with it. A path is this coordinator's own."""

    method: str
    url: str
    headers: dict[str, str]
    version: int = Field(description="to be told with what has crossed")


class Moved(BaseModel):
    """What one transfer by such an address has moved. Telling it twice is the same as once."""

    id: str = Field(pattern=r"^[0-9a-f]{16}$", description="of this transfer alone")
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    direction: Literal["up", "down"] = Field(description="down: a model that was got")
    version: int = Field(ge=-1, lt=2**63)
    requests: int = Field(ge=0, le=1000)
    up_head: int = Field(ge=0, lt=2**40)
    up_body: int = Field(ge=0, lt=2**40)
    down_head: int = Field(ge=0, lt=2**40)
    down_body: int = Field(ge=0, lt=2**40)


class Beat(BaseModel):
    """How far a node is with an order."""

    job: str
    order: str = Field(pattern=r"^\d{1,18}\.\d{1,18}$")
    progress: float = Field(ge=0, le=1)


class Body(BaseModel):
    """A body that is here."""

    digest: str
    bytes: int


class Release(BaseModel):
    """What runs here."""

    version: str
    protocols: list[int]
