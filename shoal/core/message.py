"""The protocol's nouns on one screen. All are level-triggered: each may be lost, doubled, late or sent again.

    node -> hub     Join     a process has started: send what stands; earlier failures are forgotten
                    Poll     what stands for me?                     (also the sign of life)
                    Status   a few numbers from the middle of an order; the latest one counts
                    Report   the result of an order; resent until acknowledged
                    Fail     the order cannot be done, and why; resent until acknowledged
                    Leave    I go; take my order back
                    Knock    are you there? I carry on without you
    hub -> node     Order    the work that stands; repeated at every poll until its report is durable
                    Amendment  how the order that you hold reads now
                    Idle     nothing stands for you
                    Ack      your report or failure is durable, and whether it counted
                    Stop     the job has ended
                    Lease    I am here, in this term
    operator -> hub Pause, Resume, Stop, Switch, Drain, Change

Bodies (models, updates) never travel inside: `Ref` names one by the SHA-256 of its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from shoal.core.tree import ModelForm, Slots

OrderId = tuple[int, int]
"""(boot, n): the coordinator's n-th order, counted anew at each of its starts. Later orders compare greater."""

Kind = Literal["init", "train", "evaluate", "gossip"]
"""What an order asks: an initial model; local training; an evaluation only; to carry on among peers until recalled."""

Phase = Literal["", "download", "init", "train", "evaluate", "gossip", "upload"]
"""How far a node was with an order when it failed: fetching, in the work itself, delivering; empty: it doesn't say."""

Metrics = dict[str, float]
"""Named numbers. "train/…" were taken while training, "eval/…" on the node's own held-out data with the model of
`version`; "eval/examples" is the weight of the latter."""


@dataclass(frozen=True)
class Ref:
    """A body by content: SHA-256 in hexadecimal, and its length in bytes."""

    digest: str
    nbytes: int


def ref_state(ref: Ref | None) -> list[str | int] | None:
    """A reference as JSON values; None for none."""
    return [ref.digest, ref.nbytes] if ref is not None else None


def ref_of(state: Sequence[Any] | None) -> Ref | None:
    """What `ref_state` gave."""
    return Ref(*state) if state is not None else None


class Bodies(Protocol):
    """Where bodies are kept. Content-addressed, so putting twice is the same as once."""

    def put(self, slots: Slots) -> Ref: ...

    def get(self, ref: Ref) -> Slots: ...


@dataclass(frozen=True)
class About:
    """What a node says of itself that bears on whether it is asked (`shoal.core.selection`)."""

    tags: tuple[str, ...] = ()
    hours: tuple[str, ...] = ()
    """When it may be asked, such as "22:00-06:00" (UTC); none: at any time."""
    held: str = ""
    """Why it is asked nothing at any time: an operator's word, not its own. Empty: it may be asked."""
    model: ModelForm | None = None
    """What its learner's model looks like; None: it does not say."""


@dataclass(frozen=True)
class Join:
    """A process has started and holds nothing; or a peer that has carried on without the hub (`away`) is back.

    `about` is put in where the message arrives, of what the node has said of itself: it doesn't travel.
    """

    node: str
    away: OrderId | None = None
    """(term, local rounds): what it carries of that time, which no version holds yet."""
    about: About = About()


@dataclass(frozen=True)
class Poll:
    """What stands for me? `about` as in `Join`."""

    node: str
    about: About = About()


@dataclass(frozen=True)
class Order:
    """Work for one node. `seed` is the only source of randomness that the work may use.

    An order that stands can be *amended*: `rev` counts that. `recall` asks for the report at the node's next check,
    whatever it has; `until` is the check that it may go on to by itself (0: as far as it likes).
    """

    id: OrderId
    node: str
    kind: Kind
    version: int
    seed: int
    body: Ref | None = None
    base: Ref | None = None
    """A model that both ends hold, which the report is relative to, and the body too if filters are at work."""
    numbers: Metrics = field(default_factory=dict)
    """What the schedule lets the node know, such as the threshold of its local condition."""
    rev: int = 0
    recall: bool = False
    until: int = 0
    given_in: int = 0
    """The hub's term when it gave this, where the receiver knows that: a hub that was started again gives what it had
    ordered in an earlier term to those who have not heard it yet."""


@dataclass(frozen=True)
class Amendment:
    """How an order reads now, for a node that holds it: the fields of `Order` that can change, as they are."""

    order: OrderId
    rev: int = 0
    recall: bool = False
    until: int = 0


@dataclass(frozen=True)
class Status:
    """Where a node is in the middle of an order: how many checks it has made, and what it measured at the last one.

    `state` is a monitor's few bytes, if it needs more than numbers.
    """

    node: str
    order: OrderId
    check: int
    values: Metrics = field(default_factory=dict)
    state: bytes = b""


@dataclass(frozen=True)
class Report:
    """What came of an order. `norm` is the receiver's measurement of the body (0 without one), never the sender's."""

    node: str
    order: OrderId
    version: int
    weight: float
    body: Ref | None = None
    metrics: Metrics = field(default_factory=dict)
    norm: float = 0.0


@dataclass(frozen=True)
class Fail:
    """The order was not done. `error` is one line for people, `traceback` where in whose code it came from."""

    node: str
    order: OrderId
    error: str
    phase: Phase = ""
    traceback: str = ""


@dataclass(frozen=True)
class Leave:
    """I go; take my order back."""

    node: str


@dataclass(frozen=True)
class Knock:
    """Are you there? Asked by a node that carries on without the hub; it commits it to nothing. `term`: its own."""

    node: str
    term: int


@dataclass(frozen=True)
class Lease:
    """The hub is there. Its orders are of this term, which is above every one that it was told of."""

    term: int


@dataclass(frozen=True)
class Idle:
    """Nothing stands. `after` is the newest order that the hub had made, so a late Idle cannot cancel a newer order."""

    after: OrderId


@dataclass(frozen=True)
class Ack:
    """The hub will never need this order's report again. Only a counted one commits the node's private memory."""

    order: OrderId
    counted: bool
    why: str = ""


@dataclass(frozen=True)
class Pause:
    """Ask nothing new for now."""

    why: str = "by an operator"


@dataclass(frozen=True)
class Resume:
    """Go on."""

    why: str = "by an operator"


@dataclass(frozen=True)
class Stop:
    """To a node: the job has ended. From an operator: end it, now or when the current version has closed."""

    why: str = "by an operator"
    when: Literal["now", "round"] = "now"
    foreign: bool = False
    """To a node: the job goes on without it, since its model is another."""


@dataclass(frozen=True)
class Switch:
    """Let the peers carry the job on by themselves; or have them hand it back."""

    to: Literal["gossip", "server"]
    why: str = "by an operator"


@dataclass(frozen=True)
class Change:
    """Let settings have other values from the next version on (`shoal.core.settings_change`), by their keys."""

    values: Metrics
    why: str = "by an operator"


@dataclass(frozen=True)
class Drain:
    """Ask this node nothing more, or (with an empty `why`) ask it again. It stays a member, and its memory stays.

    `withdraw`: take its standing order back at once; otherwise it finishes that one and its report counts.
    """

    node: str
    why: str = ""
    withdraw: bool = False


Message = (
    Join
    | Poll
    | Knock
    | Status
    | Report
    | Fail
    | Leave
    | Order
    | Amendment
    | Idle
    | Ack
    | Lease
    | Stop
    | Pause
    | Resume
    | Switch
    | Drain
    | Change
)
ToHub = Join | Poll | Knock | Status | Report | Fail | Pause | Resume | Switch | Drain | Change
"""What a hub alone is told."""


def term_of(message: Message, held: Order | None = None) -> int | None:
    """The hub's term as a message of its shows it; None where it shows none, or amends what was obeyed when it came."""
    match message:
        case Amendment(order=order) if held is not None and order == held.id:
            return None
        case Order(id=order, given_in=term):
            return max(order[0], term)
        case Amendment(order=order) | Idle(after=order):
            return order[0]
        case Lease(term):
            return term
    return None
