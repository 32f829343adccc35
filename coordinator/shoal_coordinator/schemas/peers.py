"""Schemas of nodes as peers: contacts, trust documents, status."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, BaseModel, Field, model_validator

from shoal.trust.documents import PEERS_MAX, Url
from shoal.trust.keys import PUBLIC
from shoal.validation.message_checks import NAME
from shoal_coordinator.schemas.values import Metrics, ReportedMetrics

PROJECTIONS = 32

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Code = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
Count = Annotated[int, Field(ge=0, le=2**53)]
Part = Annotated[float, Field(ge=-1e100, le=1e100, allow_inf_nan=False)]
"""Its bounds keep squares and sums finite."""
Projection = Annotated[list[Part], Field(max_length=PROJECTIONS)]

PeerState = Literal["coordinated", "suspect", "gossip", "returning"]
Liveness = Literal["alive", "suspect", "dead", "left"]


class ContactRequest(BaseModel):
    """The public key and the addresses of a node as a peer."""

    public_key: str = Field(pattern=f"^{PUBLIC}$", description="Ed25519 key", examples=["ed25519:" + "ab" * 32])
    urls: list[Url] = Field([], max_length=4, examples=[["http://10.0.0.7:9001"]])
    is_reachable: bool = Field(description="true if other peers can call the node; if not, the node calls them")

    @model_validator(mode="after")
    def _check_urls(self) -> Self:
        if self.is_reachable != bool(self.urls):
            raise ValueError("is_reachable is true for a peer that has urls, and for no other")
        return self


class TrustDocumentsView(BaseModel):
    """The signed documents by which nodes of a job trust each other; see docs/explanation/security.md."""

    version: int = Field(description="of the roster; grows with each change")
    charter: str
    roster: str
    certificate: str = Field(
        "", description="admits the node to peers with an older roster; empty: the node has no key"
    )


class SignedVersion(BaseModel):
    """The newest version and its signed manifest."""

    version: int
    manifest: str = Field(description="contains the SHA-256 of the model; see docs/explanation/security.md")


class RestoreRequest(BaseModel):
    """Documents of a job that its nodes kept, signed with the key of this coordinator."""

    charter: str = Field(max_length=512 * 1024)
    roster: str
    manifest: str = Field(max_length=1024 * 1024, description="of the version with the model `start_model`")
    node: str = Field("", pattern=f"^({NAME.pattern})?$", description="the node that kept it")
    term: int = Field(0, ge=0, le=2**53, description="the highest term that a node reported")
    created_at: AwareDatetime | None = Field(
        None, description="start of the job as its nodes know it; nodes treat another time as another job"
    )

    def documents(self) -> dict[str, bytes]:
        """Return the documents as bytes, by name."""
        return {"charter": self.charter.encode(), "roster": self.roster.encode(), "manifest": self.manifest.encode()}


class RestoredFrom(BaseModel):
    """The origin of a job that was restored from its nodes. Its history before that is unknown."""

    node: str = Field(description="the node that kept the model; empty: unknown")
    version: int
    term: int = Field(description="the first term of this coordinator")


class ReenrolmentRequest(BaseModel):
    """A credential that a node generated: `shn_` and 43 characters."""

    secret_sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the whole credential")


class ReenrolmentView(BaseModel):
    """The result of a re-enrolment."""

    name: str = Field(description="the node that now owns the credential; empty: the request was for another term")
    term: int = Field(description="the coordinator's term in that job")


class PeerLinkView(BaseModel):
    """The state of another peer as one peer sees it, and their traffic since that one's process started."""

    state: Liveness
    exchanges: Count = 0
    sent: Count = Field(0, description="bytes, including headers")
    received: Count = 0
    rtt_ms: float | None = Field(None, ge=0, le=1e9, allow_inf_nan=False)
    carried: Count = Field(0, description="bytes that it relayed between the other and the coordinator")


class ByteBudgetView(BaseModel):
    """The bytes that a peer may still exchange with peers."""

    bytes_per_hour: float = Field(gt=0, le=1e18, allow_inf_nan=False)
    left: float = Field(ge=-1e18, le=1e18, allow_inf_nan=False, description="below 0: the budget is exceeded")
    wait_s: float = Field(
        0, ge=0, le=1e18, allow_inf_nan=False, description="until the next exchange may start; 0: now"
    )


class PeerStatusReport(BaseModel):
    """The status of a node as a peer. Sums count from the start of its process."""

    process_number: int = Field(ge=1, le=2**53)
    state: PeerState
    term: Count
    local_rounds: Count = Field(description="that it has made since the failover")
    weight: float = Field(ge=0, le=2**53, allow_inf_nan=False)
    rounds_by_peer: dict[Name, Count] = Field(
        {}, max_length=PEERS_MAX, description="local rounds of each peer that the model includes"
    )
    peers: dict[Name, PeerLinkView] = Field({}, max_length=PEERS_MAX)
    refused: dict[Code, Count] = Field({}, max_length=256, description="refused messages, by code")
    quarantine: list[Name] = Field([], max_length=PEERS_MAX, description="peers whose models it does not mix")
    budget: ByteBudgetView | None = Field(None, description="null: unlimited")
    metrics: ReportedMetrics = Field({}, max_length=64, description="of its last local round")
    model_projection: Projection = Field([], description=f"{PROJECTIONS} projections of weight · model; empty: unknown")
    expected_projection: Projection = Field([], description="of weight · (model at the failover + updates since)")

    @model_validator(mode="after")
    def _check_projections(self) -> Self:
        if any(len(one) not in (0, PROJECTIONS) for one in (self.model_projection, self.expected_projection)):
            raise ValueError(f"model_projection and expected_projection have {PROJECTIONS} numbers each, or none")
        return self


class PeerStateChange(BaseModel):
    """A change of a node's state as a peer."""

    at: str
    state: PeerState


class PeerView(BaseModel):
    """A peer of a job. Values that it has not reported since the coordinator started are null or empty."""

    name: str
    peer_id: str
    is_reachable: bool
    state: PeerState | None = None
    relayed_by: str | None = Field(None, description="the peer that relays its requests to the coordinator; null: none")
    changes: list[PeerStateChange] = Field([], description="last changes of state, oldest first")
    told_s: float | None = Field(None, description="seconds since its last status report")
    process_number: int | None = None
    term: int | None = None
    local_rounds: int | None = Field(None, description="that it has made since the failover")
    weight: float | None = None
    metrics: Metrics = Field({}, description="of its last local round")
    rounds_by_peer: dict[str, int] = Field({}, description="local rounds of each peer that the model includes")
    coverage: float | None = Field(None, description="share of all local rounds that the model includes")
    peers: dict[str, PeerLinkView] = Field({}, description="the other peers as it sees them")
    refused: dict[str, int] = Field({}, description="refused messages, by code")
    quarantine: list[str] = Field([], description="peers whose models it does not mix")
    budget: ByteBudgetView | None = Field(None, description="null: unlimited")


class ConsensusPoint(BaseModel):
    """Statistics of the peers in gossip mode that reported lately, at one time; null: unknown."""

    at: str
    peers: int = Field(description="peers in gossip mode")
    consensus: float | None = Field(description="distance of models from their mean, relative to the mean")
    residual: float | None = Field(
        description="relative difference between the sum of weighted models and all that the peers learned"
    )
    coverage: float | None = Field(description="mean share of all local rounds that a model includes")
    rounds: int = Field(0, description="most local rounds of a peer")
    accuracy: float | None = Field(None, description="of the peers' models, each on its own data, weighted by examples")
    loss: float | None = Field(None, description="mean loss, likewise")


class PeerUpdateView(PeerView):
    """A peer whose status changed."""

    partial: bool = Field(False, description="`rounds_by_peer` and `peers` hold changed entries only")


class JobPeersUpdate(BaseModel):
    """Changes of a job's peers."""

    job: str
    roster: int = Field(description="version of the roster")
    peers: list[PeerUpdateView] = Field(description="changed and new peers")
    now: ConsensusPoint | None


class JobPeers(BaseModel):
    """The peers of a job."""

    roster: int | None = Field(description="version of the roster; null: no roster")
    peers: list[PeerView]
    now: ConsensusPoint | None
    history: list[ConsensusPoint] = Field(description="oldest first, since the coordinator started")
