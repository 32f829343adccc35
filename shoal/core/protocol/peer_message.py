"""The messages between peers.

    pairwise     ExchangeRequest    asks whether an exchange may begin        answer: ExchangeGrant or ExchangeDeny
    exchange     ExchangeOffer      the sender's model                        answer: ExchangeAccept, with the
                                                                              receiver's model, or ExchangeAbort
                 ExchangeQuery      asks for the outcome of an exchange       answer: the same
                 ExchangeCommit     the exchange is over at the sender too    no answer
    rounds of    ModelOffer         the sender's model after a local round    answer: Received
    neighbors   PushShare               a share of the sender's mass              answer: Received or ExchangeAbort
                 ExchangeQuery      asks a leaving peer's neighbor for a     answer: ExchangeAbort, if there is none
                                    share in transit
                 RingChunk          a piece of a ring all-reduce              answer: Received or ExchangeAbort
    coordinator  CoordinatorProbe   asks whether the coordinator is heard     answer: CoordinatorStatus
                 DeclareFailover    the sender goes on without it             no answer
                 RelayRequest       a message to pass on to the coordinator   answer: RelayResponse
    membership   PeerHello          a new process, which knows no peer        answer: StateSync
                 Ping               asks whether the receiver is alive        answer: PingAck
                 PingRequest        asks the receiver to ping another peer    answer: PingAck or PingNack

Each may be lost, duplicated, delayed or sent again. Models are not part of a message: a `BlobRef` names one by the
SHA-256 of its bytes. `type_name` is a message's `type` in a head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from shoal.core.protocol.message import BlobRef, Message

ExchangeId = tuple[str, int, int]
"""(initiator, its process number, n): the n-th exchange of this process. Later ones of one initiator compare greater.

The answer to a `ModelOffer` names (its sender, its round, 0), that to a `RingChunk` (its sender, its round, its step).
"""

VersionVector = dict[str, int]
"""Local rounds of each peer that a model contains in any proportion: a version vector."""


@dataclass(frozen=True)
class ExchangeRequest:
    """Request for an exchange. No model has been sent yet, so a denial costs few bytes.

    `norm`: of the sender's model. `rounds`: the sender's own count in `version_vector`. `step`, `group`: the number of
    this exchange in `shoal.core.mixing.final_averaging`, and its members; 0: it is not part of that.
    """

    type_name: ClassVar[str] = "exchange_request"
    node: str
    id: ExchangeId
    norm: float = 0.0
    rounds: int = 0
    step: int = 0
    group: str = ""


@dataclass(frozen=True)
class ExchangeGrant:
    """Permission: the sender begins no other exchange for a while. `norm`: of the sender's model."""

    type_name: ClassVar[str] = "exchange_grant"
    node: str
    id: ExchangeId
    norm: float = 0.0


@dataclass(frozen=True)
class ExchangeDeny:
    """Denial of an exchange. `wait_s`: seconds before which a new request is denied as well.

    `rounds`: as in `ExchangeRequest`; `step`: the sender's position in the final averaging (`FinalAveraging.number`).
    """

    type_name: ClassVar[str] = "exchange_deny"
    node: str
    id: ExchangeId
    why: str
    wait_s: float = 0.0
    rounds: int = 0
    step: int = 0


@dataclass(frozen=True)
class ExchangeOffer:
    """The initiator's model, its weight, and the longest step that it is ready to take towards the other
    model.

    `step`: as in `ExchangeRequest`; the weight is then the mass of the model.
    """

    type_name: ClassVar[str] = "exchange_offer"
    node: str
    id: ExchangeId
    weight: float
    longest_step: float
    blob: BlobRef
    version_vector: VersionVector = field(default_factory=dict)
    step: int = 0


@dataclass(frozen=True)
class ExchangeAccept:
    """The sender has taken its step, over `step_fraction` of the distance; `blob` is its model before the step."""

    type_name: ClassVar[str] = "exchange_accept"
    node: str
    id: ExchangeId
    weight: float
    step_fraction: float
    blob: BlobRef
    version_vector: VersionVector = field(default_factory=dict)
    step: int = 0


@dataclass(frozen=True)
class ExchangeAbort:
    """The sender has not taken this step and never will. To a leaving peer: no share is in transit to it. From the
    initiator of a granted exchange: the receiver need not stay free."""

    type_name: ClassVar[str] = "exchange_abort"
    node: str
    id: ExchangeId
    why: str = ""


@dataclass(frozen=True)
class ExchangeQuery:
    """Question for the outcome of an exchange without an answer; in push-sum, for a share in transit to the sender."""

    type_name: ClassVar[str] = "exchange_query"
    node: str
    id: ExchangeId


@dataclass(frozen=True)
class ExchangeCommit:
    """The exchange is over at the sender: the receiver need not keep its answer."""

    type_name: ClassVar[str] = "exchange_commit"
    node: str
    id: ExchangeId


@dataclass(frozen=True)
class ModelOffer:
    """The sender's model in a round of mixing, for its neighbors in that round. `weight`: in examples."""

    type_name: ClassVar[str] = "model_offer"
    node: str
    round: int
    blob: BlobRef
    version_vector: VersionVector = field(default_factory=dict)
    weight: float = 1.0


@dataclass(frozen=True)
class PushShare:
    """A share of the sender's mass: `mass` times the model of `blob`. By `id`, the receiver adds it only once."""

    type_name: ClassVar[str] = "push_share"
    node: str
    id: ExchangeId
    mass: float
    blob: BlobRef
    version_vector: VersionVector = field(default_factory=dict)


@dataclass(frozen=True)
class Received:
    """The message was received: the sender need not repeat it. In an exchange: also a request to confirm the answer."""

    type_name: ClassVar[str] = "received"
    node: str
    id: ExchangeId


@dataclass(frozen=True)
class RingChunk:
    """One step of the ring all-reduce in a round of mixing: one piece of the mean so far, and its weight.

    `group` names the members: a receiver goes on only if its own ring has the same members.
    """

    type_name: ClassVar[str] = "ring_chunk"
    node: str
    round: int
    step: int
    piece: int
    weight: float
    blob: BlobRef
    version_vector: VersionVector = field(default_factory=dict)
    group: str = ""


@dataclass(frozen=True)
class CoordinatorProbe:
    """Question whether the receiver hears the coordinator, which the sender has not heard for too long."""

    type_name: ClassVar[str] = "coordinator_probe"
    node: str
    term: int


@dataclass(frozen=True)
class CoordinatorStatus:
    """A node's view of the coordinator: reachability, term, and the newest version held."""

    type_name: ClassVar[str] = "coordinator_status"
    node: str
    term: int
    hears_hub: bool
    is_gossiping: bool
    version: int
    model: BlobRef | None


@dataclass(frozen=True)
class DeclareFailover:
    """The sender continues without the coordinator, from this version, in this term; earlier terms are void."""

    type_name: ClassVar[str] = "declare_failover"
    node: str
    term: int
    version: int
    model: BlobRef
    why: str


@dataclass(frozen=True)
class RelayRequest:
    """Request to relay a message to the coordinator, which the receiver can reach and the sender cannot."""

    type_name: ClassVar[str] = "relay_request"
    node: str
    message: Message


@dataclass(frozen=True)
class RelayResponse:
    """The coordinator's answer to a relayed request."""

    type_name: ClassVar[str] = "relay_response"
    node: str
    message: Message


Liveness = Literal["alive", "suspect", "dead", "left"]


@dataclass(frozen=True)
class MemberUpdate:
    """The state of a peer. A higher incarnation wins; within one, left > dead > suspect > alive.

    Only the peer itself raises its incarnation. `suspected_by`: the peers that suspect it independently, sorted.
    """

    node: str
    state: Liveness
    incarnation: int
    suspected_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class PeerHello:
    """First message of a new process. `incarnation` is the sender's own, here and below."""

    type_name: ClassVar[str] = "peer_hello"
    node: str
    incarnation: int
    updates: tuple[MemberUpdate, ...] = ()


@dataclass(frozen=True)
class Ping:
    """Probe of the receiver. `updates`: the latest updates that the sender has heard."""

    type_name: ClassVar[str] = "ping"
    node: str
    incarnation: int
    seq: int
    updates: tuple[MemberUpdate, ...] = ()


@dataclass(frozen=True)
class PingAck:
    """`of` is alive: the sender itself, or the peer that it probed for the receiver."""

    type_name: ClassVar[str] = "ping_ack"
    node: str
    incarnation: int
    seq: int
    of: str
    updates: tuple[MemberUpdate, ...] = ()


@dataclass(frozen=True)
class PingRequest:
    """Request to ping `target`, and to pass its answer on."""

    type_name: ClassVar[str] = "ping_request"
    node: str
    incarnation: int
    seq: int
    target: str
    updates: tuple[MemberUpdate, ...] = ()


@dataclass(frozen=True)
class PingNack:
    """`target` has not answered the sender's ping; the sender itself is alive."""

    type_name: ClassVar[str] = "ping_nack"
    node: str
    incarnation: int
    seq: int
    target: str
    updates: tuple[MemberUpdate, ...] = ()


@dataclass(frozen=True)
class StateSync:
    """A peer's member table, or a piece of it, for a peer that is new or back. No answer."""

    type_name: ClassVar[str] = "state_sync"
    node: str
    incarnation: int
    updates: tuple[MemberUpdate, ...]


MembershipMessage = PeerHello | Ping | PingAck | PingRequest | PingNack | StateSync
MixingMessage = (
    ExchangeRequest
    | ExchangeGrant
    | ExchangeDeny
    | ExchangeOffer
    | ExchangeAccept
    | ExchangeAbort
    | ExchangeQuery
    | ExchangeCommit
    | ModelOffer
    | PushShare
    | Received
    | RingChunk
)
HubMessage = CoordinatorProbe | CoordinatorStatus | DeclareFailover | RelayRequest | RelayResponse
PeerMessage = MixingMessage | HubMessage | MembershipMessage
