"""The shapes of what concerns nodes as peers: what they show and tell of themselves, and what they are given."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, BaseModel, Field, model_validator

from shoal.heads import NAME
from shoal.trust.keys import PUBLIC
from shoal.trust.papers import PEERS_MAX, Url
from shoal_coordinator import ledger, papers
from shoal_coordinator.measure_views import Metrics, Told

PROJECTIONS = 32

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Code = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
Count = Annotated[int, Field(ge=0, le=2**53)]
Part = Annotated[float, Field(ge=-1e100, le=1e100, allow_inf_nan=False)]
"""So that squares and sums of it are finite."""
Projection = Annotated[list[Part], Field(max_length=PROJECTIONS)]

PeerState = Literal["coordinated", "suspect", "away", "handover"]
Liveness = Literal["alive", "suspect", "dead", "left"]


class Contact(BaseModel):
    """How a node is known and reached among its peers."""

    pub: str = Field(pattern=f"^{PUBLIC}$", description="its public key", examples=["ed25519:" + "ab" * 32])
    urls: list[Url] = Field([], max_length=4, examples=[["http://10.0.0.7:9001"]])
    inbound: bool = Field(description="whether others can call it there; if not, it is the one that calls")

    @model_validator(mode="after")
    def _can_be_called(self) -> Self:
        if self.inbound != bool(self.urls):
            raise ValueError("a peer with inbound true has urls, one with inbound false has none")
        return self

    def plain(self) -> papers.Contact:
        """The same for the papers."""
        return papers.Contact(self.pub, tuple(self.urls), self.inbound)


class Papers(BaseModel):
    """What the nodes of a job need to trust each other, as it was signed; see docs/security.md."""

    version: int = Field(description="of the roster; it rises with each new one")
    charter: str
    roster: str
    certificate: str = Field("", description="lets the node in among peers that hold an older roster; empty: no key")


class SignedVersion(BaseModel):
    """The newest version, as the coordinator vouches for it."""

    version: int
    manifest: str = Field(description="names the model by its SHA-256; see docs/security.md")


class GoesOn(BaseModel):
    """What nodes have kept of a job: signed with the key of the coordinator that goes on with it."""

    charter: str = Field(max_length=512 * 1024)
    roster: str
    manifest: str = Field(max_length=1024 * 1024, description="of the version whose model is `start_model`")
    node: str = Field("", pattern=f"^({NAME.pattern})?$", description="who had kept it")
    term: int = Field(0, ge=0, le=2**53, description="the highest that any node has told; this coordinator's is above")
    created_at: AwareDatetime | None = Field(
        None, description="when the job was begun, as its nodes know it; else they take it for another one"
    )

    def texts(self) -> dict[str, bytes]:
        """The papers as bytes, by name."""
        return {"charter": self.charter.encode(), "roster": self.roster.encode(), "manifest": self.manifest.encode()}


class Rebuilt(BaseModel):
    """Where a job goes on from, at a coordinator that had lost its disk. What was before is not known there."""

    node: str = Field(description="who had kept the model; empty: that was not said")
    version: int
    term: int = Field(description="the first of this coordinator's")


class Readmission(BaseModel):
    """A credential that a node has made: `shn_` and 43 letters of its choice."""

    secret_sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the whole credential")


class Readmitted(BaseModel):
    """The answer to a readmission."""

    name: str = Field(description="the node whose credential it is now; empty: the request was for another term")
    term: int = Field(description="of the coordinator in that job")


class Edge(BaseModel):
    """How one peer sees another, and what they have exchanged since the first one's process began."""

    state: Liveness
    exchanges: Count = 0
    sent: Count = Field(0, description="bytes, heads and bodies")
    received: Count = 0
    rtt_ms: float | None = Field(None, ge=0, le=1e9, allow_inf_nan=False)
    carried: Count = Field(0, description="bytes that it has passed on to the coordinator for the other, and back")


class Budget(BaseModel):
    """How many bytes a peer may still send and receive among peers."""

    bytes_per_hour: float = Field(gt=0, le=1e18, allow_inf_nan=False)
    left: float = Field(ge=-1e18, le=1e18, allow_inf_nan=False, description="below 0: more than its share has crossed")
    wait_s: float = Field(0, ge=0, le=1e18, allow_inf_nan=False, description="until an exchange may begin; 0: now")


class Peering(BaseModel):
    """How a node does as a peer. Sums are of this process, whose start is number `boot`."""

    boot: int = Field(ge=1, le=2**53)
    state: PeerState
    term: Count
    round: Count = Field(description="local rounds since it went away")
    weight: float = Field(ge=0, le=2**53, allow_inf_nan=False)
    seen: dict[Name, Count] = Field({}, max_length=PEERS_MAX, description="local rounds of each that its model holds")
    peers: dict[Name, Edge] = Field({}, max_length=PEERS_MAX)
    refused: dict[Code, Count] = Field({}, max_length=256, description="what it has refused, by code")
    quarantine: list[Name] = Field([], max_length=PEERS_MAX, description="with whom it begins nothing any more")
    budget: Budget | None = Field(None, description="null: it has none")
    metrics: Told = Field({}, max_length=64, description="what its last local round has measured")
    sketch: Projection = Field([], description=f"{PROJECTIONS} projections of weight · model; empty: none is known")
    books: Projection = Field([], description="the same of weight · (base + what it has learned since it went away)")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if any(len(one) not in (0, PROJECTIONS) for one in (self.sketch, self.books)):
            raise ValueError(f"sketch and books have {PROJECTIONS} numbers each, or none")
        return self

    def mark(self) -> ledger.Mark:
        """What of it the ledger books."""
        exchanges, sent, received = (
            sum(getattr(edge, name) for edge in self.peers.values()) for name in ("exchanges", "sent", "received")
        )
        return ledger.Mark(self.boot, exchanges, sent, received)


class Change(BaseModel):
    """A node's state as a peer has changed."""

    at: str
    state: PeerState


class PeerRow(BaseModel):
    """A peer of a job. What it has not told in this coordinator's life is null or empty."""

    name: str
    peer_id: str
    inbound: bool
    state: PeerState | None = None
    relayed_by: str | None = Field(None, description="who carries what it says to the coordinator, its own way broken")
    changes: list[Change] = Field([], description="its last changes of state, oldest first")
    told_s: float | None = Field(None, description="seconds since its last word")
    boot: int | None = None
    term: int | None = None
    round: int | None = None
    weight: float | None = None
    metrics: Metrics = Field({}, description="what its last local round has measured")
    seen: dict[str, int] = Field({}, description="by peer, the local rounds that its model holds")
    coverage: float | None = Field(None, description="of all local rounds, the share that its model holds")
    peers: dict[str, Edge] = Field({}, description="the others, as it sees them")
    refused: dict[str, int] = Field({}, description="messages that it has refused, by code")
    quarantine: list[str] = Field([], description="with whom it begins nothing, for what they have sent")
    budget: Budget | None = Field(None, description="bytes that it may still send and receive; null: any number")


class PeersPoint(BaseModel):
    """How the peers did at one moment, over those that carry on and have told so lately; null: it cannot be said."""

    at: str
    peers: int = Field(description="how many carried on")
    consensus: float | None = Field(description="how far models are from their mean, relative to that")
    residual: float | None = Field(description="what the sum of weighted models has that nobody learned, relative")
    coverage: float | None = Field(description="of all local rounds, the share that a model holds, in the mean")
    rounds: int = Field(0, description="local rounds that the furthest has made")
    accuracy: float | None = Field(None, description="of their models, each on its own data, weighted by its examples")
    loss: float | None = Field(None, description="the same of the loss")


class PeerNews(PeerRow):
    """A peer that has told something."""

    partial: bool = Field(False, description="`seen` and `peers` name only whom something has changed of")


class PeersNews(BaseModel):
    """What has changed of a job's peers."""

    job: str
    roster: int = Field(description="version of the roster")
    peers: list[PeerNews] = Field(description="those that have told something since, or are new")
    now: PeersPoint | None


class JobPeers(BaseModel):
    """A job's nodes as each other's peers."""

    roster: int | None = Field(description="version of the roster; null: none was signed")
    peers: list[PeerRow]
    now: PeersPoint | None
    history: list[PeersPoint] = Field(description="oldest first; it begins with the coordinator's process")
