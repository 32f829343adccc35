"""When a node stops waiting for its hub, and from where it carries on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import Algorithm, tree_slot
from shoal.core.anchor import SYNC, received
from shoal.core.errors import InvalidJob, StorageFailed
from shoal.core.filter import Filters, unpack
from shoal.core.message import Bodies, Fail, Order, Ref, Report
from shoal.core.tree import Slots, add


@dataclass(frozen=True)
class Failover:
    """When a node stops waiting for its hub, and when it believes that it is back. All times in seconds."""

    ttl_s: float = 15.0
    """Silence after which the hub is suspected."""
    grace_s: float = 15.0
    """How long it is suspected before anybody goes away."""
    votes: Literal["any", "majority"] | int = "any"
    """How many nodes, this one among them, must miss the hub: any two, more than half of all, or so many."""
    dwell_s: float = 60.0
    """How long a node stays away at least, and how long the hub must have been answering before it is trusted."""
    settle_s: float = 20.0
    """How long exchanges that are open at a handover are waited for."""

    def __post_init__(self) -> None:
        if not min(self.ttl_s, self.grace_s, self.settle_s) > 0 or not self.dwell_s >= 0:
            raise InvalidJob("failover: ttl_s, grace_s and settle_s must be above 0, dwell_s not negative")
        if isinstance(self.votes, int) and self.votes < 1:
            raise InvalidJob(f"failover: votes is {self.votes}, but a node has at least its own")

    def needed(self, population: int) -> int:
        """How many votes that is among so many nodes."""
        if isinstance(self.votes, int):
            return self.votes
        return 2 if self.votes == "any" else population // 2 + 1


@dataclass(frozen=True)
class Base:
    """The newest version that this node holds; -1: none."""

    version: int = -1
    model: Ref | None = None


@dataclass(frozen=True)
class Grant:
    """A term, and which life of the coordinator (a number drawn at its start) has it here; 0: none has."""

    term: int = 0
    life: int = 0

    def after(self, term: int, life: int) -> Grant | None:
        """What holds when one of that term and life was heard; None: another has that term, and this one is refused.

        One that does not say its life (0) is of an older release; what is of an older term nobody obeys anyway.
        """
        if not life or term < self.term:
            return self
        if term > self.term:
            return Grant(term, life)
        return self if life == self.life else None


@dataclass(frozen=True)
class Holds:
    """An event: the node has this version's model, whole, and keeps it. From there it could carry on.

    Where reports are relative to a base, that is the model: what the node has reported is added to it."""

    version: int
    model: Ref


@dataclass(frozen=True)
class Decreed:
    """An operator says, in a word that the shell has verified: carry on without the hub, in this term."""

    term: int
    why: str


MIXED_ROUNDS = "gossip/rounds"
"""A metric of a model that is handed back: the local rounds that its node has made among peers."""


def unsaid(said: Report | Fail | None, held: Base, base: Base) -> Report | None:
    """The work that a node has reported on what it now starts from, and nobody has acknowledged; None: there is none.

    `held`: the version that it held before it knew of `base`. Not the first model, which is version 0 itself, nor one
    that was handed back: a crash may have kept either in the spool, and it is in `base`, or in the version after it.
    """
    if not isinstance(said, Report) or not said.version == held.version == base.version:
        return None
    return said if said.weight > 0 and MIXED_ROUNDS not in said.metrics else None


def carried_on(
    algorithm: Algorithm, filters: Filters, bodies: Bodies, base: Ref, work: Report | Order | None
) -> tuple[Slots, Order | None]:
    """Return what a node begins with that carries on from a version, and the order that becomes its first local round.

    `work`: a report that nobody has acknowledged, which is added at once, or an order in hand. An order against a base
    is carried on from that base, not from the version: the version may hold a part of what the node has learned since
    the base was set. One whose bodies have not come has not been begun, and is dropped.
    """
    slots = algorithm.init(tree_slot(bodies.get(base), "model"))
    if isinstance(work, Report) and work.body is not None:
        update = unpack(filters, bodies.get(work.body), algorithm.reply(slots))
        return {**slots, "model": add(tree_slot(slots, "model"), tree_slot(update, "model"))}, None
    if not isinstance(work, Order) or SYNC not in work.numbers or work.body is None:
        return slots, work if isinstance(work, Order) else None
    try:
        held = bodies.get(work.base) if work.base is not None else {}
        _, held = received(work, bodies.get(work.body), held, filters)
    except StorageFailed:
        return slots, None
    return {**slots, "model": tree_slot(held, "model")}, work
