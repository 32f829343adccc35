"""Schemas of jobs and of what operators do to them.

Times `*_at` are ISO 8601 in UTC, durations `*_s` and `seconds` are seconds, sizes are bytes. A number that is not
finite is one of the strings "NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator

from shoal_coordinator.schemas.peers import RestoredFrom, RestoreRequest
from shoal_coordinator.schemas.values import BestVersion, JsonObject, Metrics, ProvisionalAccuracy

DRAFT_CHARS_MAX = 64 * 1024
Mode = Literal["server", "gossip", "returning"]
JobState = Literal["waiting", "running", "paused", "evaluating", "done", "stopped", "failed"]


class ModelInfo(BaseModel):
    """The current model of a job."""

    digest: str = Field(description="SHA-256 of the safetensors file")
    bytes: int
    parameters: int


class BaseModelInfo(BaseModel):
    """The base model of a job: the frozen tensors that all nodes hold alike."""

    digest: str = Field(description="SHA-256 of the safetensors file")
    bytes: int | None = Field(description="null: it was not uploaded, so each node must hold it")
    nodes: int = Field(description="members that hold it; the others fetch it, or are excluded")


class JobView(BaseModel):
    """A job and its current state."""

    name: str = Field(examples=["digits"])
    title: str
    state: JobState
    state_why: str = Field(
        description="the event that the job waits for, or the reason that it ended",
        examples=["round 1: 1 of 3 nodes ready; not asked: lab-2: without the tag ship"],
    )
    idle: bool = Field(False, description="no node works for the job, nor will one before the event in `state_why`")
    headline: str = Field("", description="a summary in one sentence")
    algorithm: str = Field(examples=["fedavg"])
    schedule: str = Field(examples=["rounds"])
    mode: Mode = Field(
        "server",
        description="server: the coordinator leads; gossip: the nodes do; returning: they hand the job back",
    )
    mode_since: str | None = Field(None, description="time of the last change of mode; null: it never changed")
    version: int = Field(description="number of closed versions")
    versions: int | None = Field(description="number of versions to make; null: no limit")
    progress: float = Field(description="0 to 1")
    eta_s: float | None = Field(description="time left at the pace of the last versions; null: unknown or not running")
    nodes: int = Field(description="nodes that are present and that the selection admits")
    members: int = Field(0, description="nodes that have joined and are present")
    busy: int
    created_at: str
    started_at: str | None
    ended_at: str | None
    model: ModelInfo | None
    base_model: BaseModelInfo | None = Field(None, description="null: the job names none")
    metrics: Metrics = Field(description="latest metrics of the newest measured version")
    metrics_version: int | None = Field(None, description="the version of `metrics`")
    provisional: ProvisionalAccuracy | None = Field(
        None, description="null: all asked nodes have measured that version"
    )
    best: BestVersion | None = Field(description="among versions that all asked nodes have measured")
    restored_from: RestoredFrom | None = Field(None, description="null: the job was not restored from its nodes")
    up_bytes: int = Field(description="from nodes to the coordinator and to each other, including headers and polls")
    down_bytes: int
    spec: dict[str, Any]
    settings_changed: dict[str, float] = Field(
        {}, description="settings that an operator has changed since the start", examples=[{"algorithm.lr": 0.05}]
    )
    settings_pending: dict[str, float] = Field(
        {}, description="changed settings that take effect with the next version"
    )
    tags: list[str] = []
    labels: dict[str, int] = Field({}, description="promoted versions, by label", examples=[{"production": 12}])


class JobList(BaseModel):
    """List jobs, newest first."""

    jobs: list[JobView]
    next: str | None = Field(None, description="`after` of the next page; null: this is the last")


class VersionView(BaseModel):
    """A closed version. The metrics "eval/…" describe its own model."""

    number: int
    digest: str
    bytes: int
    why: str
    opened_at: str
    closed_at: str
    elapsed_s: float = Field(description="time since the first version was opened, on the job's clock")
    seconds: float
    reports: int
    asked: int
    weight: float
    metrics: Metrics
    provisional: ProvisionalAccuracy | None = Field(None, description="null: all asked nodes have measured the version")
    numbers: Metrics = Field(description="state of the schedule after this version, such as its threshold")
    up_bytes: int = Field(description="of the round that made it, and of earlier rounds that retention has merged")
    down_bytes: int
    total_bytes: int = Field(description="both directions, from the start of the job to the end of that round")


class VersionList(BaseModel):
    """Closed versions, by number."""

    versions: list[VersionView]


class JobEventView(BaseModel):
    """A decision or an occurrence in a job, and its reason."""

    id: int
    at: str
    version: int
    kind: Literal["decision", "mode", "node", "refusal", "state", "warning"]
    node: str | None
    text: str


class JobEvents(BaseModel):
    """Events of a job, oldest first."""

    events: list[JobEventView]


class JobRequest(BaseModel):
    """A job file as JSON, and optionally the digests of an uploaded initial model and base model."""

    spec: JsonObject = Field(examples=[{"name": "digits", "rounds": 30, "algorithm": {"name": "fedavg", "lr": 0.1}}])
    start_model: str | None = None
    base_model: str | None = Field(
        None,
        description="digest of a base model that was uploaded, or that another job keeps; nodes without it fetch it; "
        "null: the job file's, if it is here",
        examples=[None],
    )
    paused: bool = Field(False, description="start paused: nodes are asked only after a resume")
    restore: RestoreRequest | None = Field(
        None, description="continue a job of a lost coordinator from documents that its nodes kept"
    )


class JobDraft(BaseModel):
    """A job file to validate, as TOML or as JSON."""

    toml: str | None = Field(None, max_length=DRAFT_CHARS_MAX, examples=['name = "digits"'])
    spec: JsonObject | None = Field(None, examples=[{"name": "digits", "algorithm": {"name": "fedavg", "lr": "fast"}}])

    @model_validator(mode="after")
    def _check_one_given(self) -> JobDraft:
        if (self.toml is None) == (self.spec is None):
            raise ValueError("either toml or spec")
        return self


class FieldError(BaseModel):
    """An error in a job file."""

    place: list[str | int] = Field(
        description="path of keys and list indices from the top of the file; empty: the file as a whole",
        examples=[["algorithm", "lr"]],
    )
    text: str = Field(examples=["algorithm fedavg: lr: Input should be a valid number"])
    hint: str = Field("", examples=["did you mean 'lr'?"])


class DraftCheck(BaseModel):
    """A parsed job file and its errors. Without errors, the job can start."""

    spec: dict[str, Any] = Field(description="the parsed file; empty if it cannot be parsed")
    mistakes: list[FieldError]


class ReasonRequest(BaseModel):
    """The reason for an operation, and when to stop."""

    why: str = ""
    when: Literal["now", "round"] = "now"


def _strip_and_sort(tags: list[str]) -> list[str]:
    return sorted({tag.strip() for tag in tags})


Tag = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f,]*[^\x00-\x20\x7f,][^\x00-\x1f\x7f,]*$", max_length=40)]


class TagsRequest(BaseModel):
    """All tags of a job; they replace the former ones. A tag contains no comma and no control character."""

    tags: Annotated[list[Tag], AfterValidator(_strip_and_sort)] = Field(
        max_length=16, examples=[["baseline", "tumours"]]
    )


class SwitchPreview(BaseModel):
    """The effect that a switch would have now."""

    to: Literal["gossip", "server"]
    possible: bool
    why: str = Field(description="the effect, or why the switch is not possible now")
    hint: str = Field("", description="how to make it possible")
    version: int = Field(description="the version that nodes would continue from, or that their models would follow")
    asked: list[str] = Field(description="nodes that would be asked")
    unable: list[str] = Field(description="nodes that are present but have no address for other nodes")


class SwitchRequest(BaseModel):
    """The mode to switch a job to, and the reason."""

    to: Literal["gossip", "server"]
    why: str = ""


class SplitVersionView(BaseModel):
    """A closed round of a split job."""

    number: int
    nodes: list[str] = Field(description="nodes whose turns counted, in order")
    metrics: Metrics
    batches: int = Field(description="steps of all turns that counted")
    examples: int
    up_bytes: int = Field(description="all bytes from nodes in this round: batches, parts of the model and HTTP heads")
    down_bytes: int


class SplitNodeView(BaseModel):
    """A node of a split job."""

    name: str
    turn_batches: int | None = Field(description="batches of its open turn that are done; null: it waits for a turn")
    excluded: str = Field(description="the reason why it has no turns any more; empty: it takes part")


class SplitJobView(BaseModel):
    """A split job. `state`: waiting for nodes, running, done or failed."""

    name: str
    state: JobState
    id: str = Field(description="differs for each start of a job from the beginning")
    spec: dict[str, Any] = Field(description="the job's file, without the coordinator's learner")
    form: str = Field(description="hash of the tensors of the model's parts and at the cut, alike at all learners")
    forms: dict[str, str] = Field(description="with vertical data: hash of each party's head and of what it sends")
    merge_small: bool = Field(description="a last batch of less than half the size joins the one before")
    round: int = Field(description="closed rounds")
    ended: str = Field(description="why it has ended; empty: it runs")
    nodes: list[SplitNodeView]
    metrics: Metrics = Field(description="of the last closed round")
    step_up_bytes: int = Field(description="bytes of tensors that a full batch sends to the coordinator, by formula")
    step_down_bytes: int
    up_bytes: int = Field(description="all bytes from nodes so far")
    down_bytes: int


class SplitJobDetail(SplitJobView):
    """A split job with its closed rounds."""

    versions: list[SplitVersionView]


class SplitJobList(BaseModel):
    """All split jobs."""

    split_jobs: list[SplitJobView]
