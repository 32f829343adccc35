"""What peers say to each other, with no server between them. Each may be lost, doubled, late or sent again.

    pairwise     Reserve   may I exchange with you now?             answer: Slot, or Busy
    exchange     Swap      here is my model                         answer: Swapped (and mine), or Never
                 Resolve   what came of our exchange?               answer: the same
                 Settle    it is done on my side too: forget it
    rounds of    Offer     my model after a local round             answer: Taken
    neighbours   Push      a share of my mass                       answer: Taken, or Never
                 Resolve   I go: is a share under way to me?        answer: Never, when none is
                 Part      a piece of a mean that goes round a ring answer: Taken, or Never
    where the    Suspect   I have not heard the hub: have you?      answer: Bulletin
    hub is       Declare   we carry on without it
                 Relay     pass this on to the hub for me           answer: Relayed
    membership   Hello     I know nobody yet                        answer: News
                 Ping      are you there?                           answer: Pong
                 Probe     ask that one for me                      answer: Pong, or Silent

Bodies never travel inside: `Ref` names one by the SHA-256 of its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from shoal.core.message import Message, Ref

ExchangeId = tuple[str, int, int]
"""(initiator, its boot, n): the n-th that this process has begun. Later ones of one initiator compare greater.

An Offer is answered as (its sender, its round, 0), a Part as (its sender, its round, its step).
"""

Seen = dict[str, int]
"""How many local rounds of each peer are in a model, diluted as they may be: its provenance, a version vector."""


@dataclass(frozen=True)
class Reserve:
    """May I exchange with you now? No body has been sent yet, so a refusal costs nothing. `norm`: of my model.

    `rounds`: my own count in `seen`. `step`, `ring`: the exchange of `shoal.core.doubling` that this is, and its
    members; 0: none.
    """

    node: str
    id: ExchangeId
    norm: float = 0.0
    rounds: int = 0
    step: int = 0
    ring: str = ""


@dataclass(frozen=True)
class Slot:
    """Yes: I keep myself free for this exchange, for a while. `norm`: of my model."""

    node: str
    id: ExchangeId
    norm: float = 0.0


@dataclass(frozen=True)
class Busy:
    """No, and why not. `wait_s`: it is no use to ask again before so many seconds have passed.

    `rounds`: as in `Reserve`; `step`: where I am in the last averaging (`Doubling.number`).
    """

    node: str
    id: ExchangeId
    why: str
    wait_s: float = 0.0
    rounds: int = 0
    step: int = 0


@dataclass(frozen=True)
class Swap:
    """My model, the weight that it speaks for, and the longest step that I am ready to take towards yours.

    `step`: as in `Reserve`; the weight is then the mass of the model.
    """

    node: str
    id: ExchangeId
    weight: float
    cap: float
    body: Ref
    seen: Seen = field(default_factory=dict)
    step: int = 0


@dataclass(frozen=True)
class Swapped:
    """I have taken my step, as long as `share` of the whole way; here is my model from before it: take yours."""

    node: str
    id: ExchangeId
    weight: float
    share: float
    body: Ref
    seen: Seen = field(default_factory=dict)
    step: int = 0


@dataclass(frozen=True)
class Never:
    """I have not taken this step, and promise never to take it. To one that goes: nothing will come to you from me.
    From the one that has reserved: keep no slot for me."""

    node: str
    id: ExchangeId
    why: str = ""


@dataclass(frozen=True)
class Resolve:
    """What came of our exchange? I sent my model and heard nothing. In push-sum: I go, is anything under way to me?"""

    node: str
    id: ExchangeId


@dataclass(frozen=True)
class Settle:
    """Our exchange is over on my side, for good: you need not keep your answer."""

    node: str
    id: ExchangeId


@dataclass(frozen=True)
class Offer:
    """My model in round `round` of mixing, for my neighbours of that round, and the examples that it speaks for."""

    node: str
    round: int
    body: Ref
    seen: Seen = field(default_factory=dict)
    weight: float = 1.0


@dataclass(frozen=True)
class Push:
    """A share of my mass: `mass` times the model of `body`. Adding it twice is prevented by `id`."""

    node: str
    id: ExchangeId
    mass: float
    body: Ref
    seen: Seen = field(default_factory=dict)


@dataclass(frozen=True)
class Taken:
    """I have it: you need not send it again. Of a Swap: and have you what I answered?"""

    node: str
    id: ExchangeId


@dataclass(frozen=True)
class Part:
    """Step `step` of the ring all-reduce in round `round` of mixing: one piece of the mean so far, and its weight.

    `ring` names those who take part: only who means the same ones may go on with it.
    """

    node: str
    round: int
    step: int
    piece: int
    weight: float
    body: Ref
    seen: Seen = field(default_factory=dict)
    ring: str = ""


@dataclass(frozen=True)
class Suspect:
    """I have not heard the hub for too long: have you?"""

    node: str
    term: int


@dataclass(frozen=True)
class Bulletin:
    """What I know of the hub: whether I hear it, in which term, and the newest version that I hold."""

    node: str
    term: int
    hears: bool
    away: bool
    version: int
    model: Ref | None


@dataclass(frozen=True)
class Declare:
    """In this term we carry on without the hub, from this version. It overrules everything of an earlier term."""

    node: str
    term: int
    version: int
    model: Ref
    why: str


@dataclass(frozen=True)
class Relay:
    """Pass this on to the hub for me: my own way there is broken, yours is not."""

    node: str
    message: Message


@dataclass(frozen=True)
class Relayed:
    """What the hub said to that."""

    node: str
    message: Message


Liveness = Literal["alive", "suspect", "dead", "left"]


@dataclass(frozen=True)
class Rumour:
    """What somebody believes about a peer. A higher incarnation overrules; within one, left > dead > suspect > alive.

    Only the peer itself raises its incarnation. `accusers`: who, independently, holds the suspicion; sorted.
    """

    node: str
    state: Liveness
    incarnation: int
    accusers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hello:
    """This process has just begun and knows nobody. `incarnation` is the sender's own, here and below."""

    node: str
    incarnation: int
    news: tuple[Rumour, ...] = ()


@dataclass(frozen=True)
class Ping:
    """Are you there? With it, what I last heard."""

    node: str
    incarnation: int
    seq: int
    news: tuple[Rumour, ...] = ()


@dataclass(frozen=True)
class Pong:
    """`of` is there (the sender itself, or the one that was probed for the receiver)."""

    node: str
    incarnation: int
    seq: int
    of: str
    news: tuple[Rumour, ...] = ()


@dataclass(frozen=True)
class Probe:
    """Ping `target` for me, and tell me."""

    node: str
    incarnation: int
    seq: int
    target: str
    news: tuple[Rumour, ...] = ()


@dataclass(frozen=True)
class Silent:
    """The one that you had me probe has not answered; I, though, am here."""

    node: str
    incarnation: int
    seq: int
    target: str
    news: tuple[Rumour, ...] = ()


@dataclass(frozen=True)
class News:
    """What I believe of everybody, or a piece of it: for one that is new to me, or here again. No answer."""

    node: str
    incarnation: int
    news: tuple[Rumour, ...]


MembershipMessage = Hello | Ping | Pong | Probe | Silent | News
MixingMessage = Reserve | Slot | Busy | Swap | Swapped | Never | Resolve | Settle | Offer | Push | Taken | Part
HubMessage = Suspect | Bulletin | Declare | Relay | Relayed
PeerMessage = MixingMessage | HubMessage | MembershipMessage
