"""The messages of split learning, between a node with the first layers of a model and the coordinator with the others.

    node -> coordinator  SplitPoll     request for the node's turn, and a sign of life
                         SplitRequest  activations of a batch, or the gradient at the input of the node's last layers
                         TurnReport    the node's part at the end of its turn; sent until the turn is over
                         TurnFailed    the turn or the alignment cannot be done, and why; sent until it is over
                         PartyIds      masked ids of a party with vertical data; sent until they are kept
    coordinator -> node  SplitTurn     the turn that the node has, from this state of its part
                         SplitAnswer   the answer to a request: a gradient, or activations for the node's last layers
                         TurnOver      this turn is over, and whether it counts
                         NoTurn        the node has no turn now
                         AlignRows     the intersection of ids that a party takes part in before its turns
                         IdsKept       the coordinator has the party's masked ids
                         OtherIds      masked ids of the other party
                         SplitEnded    the job has ended, or the node's part in it

All are level-triggered: each may be lost, duplicated, delayed or sent again. Turns are numbered in the order of their
start; a node follows a later turn only. A request and its answer have the number of a batch and a leg: leg 0 begins
with activations, leg 1 (labels at the node) with a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from shoal.core.protocol.message import BlobRef, Metrics


@dataclass(frozen=True)
class SplitPoll:
    """Request for the node's turn. `rows`, `batches`: of a party with vertical data, in each turn; no batches: its rows
    are not aligned. `number`: of its intersection. `kept`: its messages of it that the coordinator has."""

    type_name: ClassVar[str] = "split_poll"
    node: str
    rows: int = 0
    batches: int = 0
    number: int = 0
    kept: int = 0


@dataclass(frozen=True)
class SplitRequest:
    """One leg of a batch. `metrics`: "train/loss" of the batch, where the node computes the loss."""

    type_name: ClassVar[str] = "split_request"
    node: str
    turn: int
    batch: int
    leg: int
    examples: int
    blob: BlobRef
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True)
class TurnReport:
    """The node has done all batches of its turn. `weight`: its number of examples."""

    type_name: ClassVar[str] = "turn_report"
    node: str
    turn: int
    weight: float
    blob: BlobRef


@dataclass(frozen=True)
class TurnFailed:
    """The turn was not done, or the intersection `number`, before the first turn. `error` is one line for people."""

    type_name: ClassVar[str] = "turn_failed"
    node: str
    turn: int
    error: str
    number: int = 0


@dataclass(frozen=True)
class PartyIds:
    """A party's ids of an intersection, masked (leg 0), or the other party's, masked again (leg 1). `own`: hash of the
    message of leg 0, which tells the party's secret from one that an earlier process has lost."""

    type_name: ClassVar[str] = "party_ids"
    node: str
    number: int
    leg: int
    own: str
    blob: BlobRef


@dataclass(frozen=True)
class AlignRows:
    """The party runs the intersection of this number, with a new secret."""

    type_name: ClassVar[str] = "align_rows"
    number: int


@dataclass(frozen=True)
class IdsKept:
    """The coordinator has the party's ids of this leg. The party polls for those of the other."""

    type_name: ClassVar[str] = "ids_kept"
    number: int
    leg: int
    own: str


@dataclass(frozen=True)
class OtherIds:
    """The other party's ids of this leg; the coordinator has the receiver's. `own`: of the receiver."""

    type_name: ClassVar[str] = "other_ids"
    number: int
    leg: int
    own: str
    blob: BlobRef


@dataclass(frozen=True)
class SplitTurn:
    """A turn, which starts from the part of the node's layers in `blob`."""

    type_name: ClassVar[str] = "split_turn"
    turn: int
    round: int
    blob: BlobRef


@dataclass(frozen=True)
class SplitAnswer:
    """Answer to the request of that turn, batch and leg."""

    type_name: ClassVar[str] = "split_answer"
    turn: int
    batch: int
    leg: int
    blob: BlobRef


@dataclass(frozen=True)
class TurnOver:
    """The turn is over. The node drops it and polls."""

    type_name: ClassVar[str] = "turn_over"
    turn: int
    counted: bool
    why: str = ""


@dataclass(frozen=True)
class NoTurn:
    """The node has no turn now; it polls again later."""

    type_name: ClassVar[str] = "no_turn"


@dataclass(frozen=True)
class SplitEnded:
    """The job has ended, or the node's part in it."""

    type_name: ClassVar[str] = "split_ended"
    why: str


FromSplitNode = SplitPoll | SplitRequest | TurnReport | TurnFailed | PartyIds
ToSplitNode = AlignRows | IdsKept | OtherIds | SplitTurn | SplitAnswer | TurnOver | NoTurn | SplitEnded
SplitMessage = FromSplitNode | ToSplitNode
