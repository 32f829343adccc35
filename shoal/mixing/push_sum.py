"""Push-sum: after each local round a peer gives half of its mass to another peer and needs no model in return.

Kempe, Dobra, Gehrke: "Gossip-Based Computation of Aggregate Information", FOCS 2003, protocol Push-Sum; with training
in between, Assran, Loizou, Ballas, Rabbat: "Stochastic Gradient Push for Distributed Deep Learning", ICML 2019,
Algorithm 1. Peer k holds a mass w_k and a sum s_k = w_k x_k, where x_k is its model; w_k is n_k (examples) at first.

push        w_k  <-  w_k / 2                    the other half, m = w_k / 2, travels with x_k; x_k stays
on (m, q)   x_k  <-  x_k + m / (w_k + m) (q - x_k),   w_k  <-  w_k + m
learning d  x_k  <-  x_k + min(1, n_k / w_k) d  so s_k grows by n_k d, or by w_k d while there is less mass

Sums of w and of w x over all peers and all pushes in flight are conserved; all x_k approach their ratio, the
sample-weighted mean. It holds if each push is taken exactly once: a push is kept, and sent again, until it is Received,
and a receiver remembers the last id from each sender, which has one push to each in flight. Refused mass
(ExchangeAbort) is taken back; mass pushed to a peer that never returns is lost with it.

A peer that is about to go (`halt`) must know that nothing is in flight to it. It asks all present peers (ExchangeQuery)
and waits for their answers (ExchangeAbort): a push to it that was in flight has been taken by then, and no other comes.

The paper's step is n_k / w_k d for any w_k. On little mass it is many times as long as d and diverges (a simulated run
has shown it), so no step is made longer here. Such an update counts for less; to make that rare, a peer with less than
`floor` of its own weight gives nothing away until others have given to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

from shoal.core.errors.ranges import PositiveFloat, PositiveFraction
from shoal.core.gossip.gossip_state import GossipState
from shoal.core.gossip.mixer import Mixing
from shoal.core.gossip.transfer import Transfer
from shoal.core.membership.retransmission import Retransmissions
from shoal.core.model.tree import Tree, norm, sub
from shoal.core.model.tree_steps import towards
from shoal.core.protocol.machine import Effect, JobEvent, Tell
from shoal.core.protocol.message import BlobRef, ref_state
from shoal.core.protocol.peer_message import (
    ExchangeAbort,
    ExchangeId,
    ExchangeQuery,
    MixingMessage,
    PushShare,
    Received,
)

PENDING_MAX = 16
"""Maximum number of unacknowledged pushes; at the limit, nothing more is pushed."""

FLOOR_AT_REST = 1 / 64
"""Used instead of `floor` after the local rounds, when no update can lose weight any more."""


@dataclass(frozen=True)
class PushSum(Mixing):
    """Each peer gives half of its mass to one random other after a local round, and waits for no answer."""

    name: ClassVar[str] = "push_sum"
    title: ClassVar[str] = "Push-sum (Kempe et al. 2003; Assran et al. 2019)"

    floor: PositiveFraction = 0.25
    """Fraction of its own weight that a peer must hold to push; it always keeps half of that."""
    retransmit_s: PositiveFloat = 1.0
    """Seconds until an unacknowledged push is sent again; doubled each time."""

    def mixer(self) -> PushSumMixer:
        return PushSumMixer(self)


@dataclass(frozen=True)
class PendingPush:
    """Mass that has left this peer, and may have arrived."""

    partner: str
    mass: float
    shown: BlobRef
    version_vector: dict[str, int]


@dataclass(frozen=True)
class LastPush:
    """The last push of a sender, and whether its mass was added here or refused for ever."""

    process_number: int
    number: int
    taken: bool


@dataclass
class PushSumMixer:
    """Durable state: `mass`, `pending` and `last`."""

    synchronous: ClassVar[bool] = False
    policy: PushSum
    mass: float = 0.0
    """0 until the start, then the peer's weight."""
    pending: dict[ExchangeId, PendingPush] = field(default_factory=dict)
    last: dict[str, LastPush] = field(default_factory=dict)
    alarm: float = inf
    refused: int = 0
    """Pushes that must not be mixed."""

    def __post_init__(self) -> None:
        self._closed = False
        self._count = 0
        self._unacknowledged: Retransmissions[ExchangeId] = Retransmissions(self.policy.retransmit_s)
        self._queries: Retransmissions[str] = Retransmissions(
            self.policy.retransmit_s
        )  # unanswered queries, while leaving
        self._answered_queries: set[str] = set()  # peers without pushes to this one
        self._query_id: ExchangeId | None = None  # id of the queries
        self._leaving: dict[str, ExchangeId] = {}  # queries of leaving peers, which get no more pushes
        self._unlearned: Tree | None = None  # the model before the present local round

    @property
    def is_waiting(self) -> bool:
        return False

    @property
    def is_busy(self) -> bool:
        return bool(self.pending) or len(self._queries) > 0

    @property
    def moving_until(self) -> float:
        return self._unacknowledged.moving_until

    def halt(self) -> None:
        self._closed = True

    def resume(self) -> None:
        """Allow pushes; peers that were about to leave may have stayed, too."""
        self._closed = False
        self._queries.clear()
        self._answered_queries, self._query_id, self._leaving = set(), None, {}

    # Pushing

    def begin_turn(self, me: GossipState, now: float) -> Sequence[Effect]:
        """Scale the local update by the mass, then push half of the mass."""
        self._begin(me)
        if self._unlearned is not None and self.mass > me.weight:
            me.mixed = towards(self._unlearned, self._unlearned, me.mixed, me.weight / self.mass)
        self._unlearned = me.mixed
        return [*self._push(me, now), *self.on_timer(me, now)]

    def _begin(self, me: GossipState) -> None:
        self.mass = self.mass or me.weight

    def _push(self, me: GossipState, now: float) -> list[Effect]:
        """Push to a live peer that has acknowledged the last push to it."""
        free = sorted(me.peers.nodes - {one.partner for one in self.pending.values()} - self._leaving.keys())
        floor = min(self.policy.floor, FLOOR_AT_REST) if me.counts.rounds_done else self.policy.floor
        if self._closed or not free or len(self.pending) >= PENDING_MAX or self.mass < floor * me.weight:
            return []
        self._count += 1
        xid = (me.node, me.process_number, self._count)
        half = self.mass / 2
        self.mass -= half
        self.pending[xid] = PendingPush(me.rng.choice(free), half, me.publish_model(), dict(me.counts.version_vector))
        self._unacknowledged.add(xid, now)
        return [self._push_message(xid)]

    def _push_message(self, xid: ExchangeId) -> Tell:
        one = self.pending[xid]
        return Tell(one.partner, PushShare(xid[0], xid, one.mass, one.shown, one.version_vector))

    def on_transfer(self, transfer: Transfer, me: GossipState, now: float) -> Sequence[Effect]:
        """Note the progress of a push: it is not sent again."""
        one = self.pending.get(transfer.id)
        if transfer.leaving and one is not None and transfer.nbytes < one.shown.nbytes:
            self._unacknowledged.postpone(transfer.id, now)
        return self.on_timer(me, now)

    def on_timer(self, me: GossipState, now: float) -> Sequence[Effect]:
        """Repeat unacknowledged pushes."""
        self._begin(me)
        if self._unlearned is None:
            self._unlearned = me.mixed
        effects = [
            self._push_message(xid)
            for xid in self._unacknowledged.take_due(now)
            if self.pending[xid].partner in me.peers.nodes
        ]
        if self._closed:
            effects += self._query_incoming(me, now)
        self.alarm = min(self._unacknowledged.alarm, self._queries.alarm)
        return effects

    def _query_incoming(self, me: GossipState, now: float) -> list[Tell]:
        """Ask all live peers whether they have a push under way to this one, until none has."""
        if self._query_id is None:
            self._count += 1
            self._query_id = (me.node, me.process_number, self._count)
        for node in self._queries.keys() - me.peers.nodes:
            self._queries.drop(node)
        self._queries.add_due(me.peers.nodes - self._answered_queries - self._queries.keys())
        return [Tell(node, ExchangeQuery(me.node, self._query_id)) for node in self._queries.take_due(now)]

    def _receive_query(self, message: ExchangeQuery, me: GossipState) -> list[Effect]:
        """Push nothing more there; repeat pending pushes, and answer after their acknowledgement."""
        self._leaving[message.node] = message.id
        under_way = [xid for xid, one in self.pending.items() if one.partner == message.node]
        self._unacknowledged.add_due(under_way)
        return [] if under_way else [self._nothing_incoming(message.node, me)]

    def _nothing_incoming(self, node: str, me: GossipState) -> Tell:
        return Tell(node, ExchangeAbort(me.node, self._leaving[node], "nothing is under way"))

    # Messages

    def on(self, message: MixingMessage, me: GossipState, now: float) -> Sequence[Effect]:
        """Handle a push or its answer, from its two sides only."""
        self._begin(me)
        effects: list[Effect] = []
        if isinstance(message, PushShare) and message.id[0] == message.node:
            effects = self._receive_push(message, me)
        elif isinstance(message, ExchangeQuery) and message.id[0] == message.node:
            effects = self._receive_query(message, me)
        elif isinstance(message, ExchangeAbort) and message.id == self._query_id:
            self._queries.drop(message.node)
            self._answered_queries.add(message.node)
        elif isinstance(message, Received | ExchangeAbort):
            one = self.pending.get(message.id)
            if one is not None and one.partner == message.node:
                effects = self._receive_answer(message, me)
        return [*effects, *self.on_timer(me, now)]

    def reject(self, message: MixingMessage, why: str, me: GossipState, now: float) -> Sequence[Effect]:
        """Return the mass to its sender."""
        if isinstance(message, PushShare) and message.id[0] == message.node:
            self._begin(me)
            return [*self._receive_push(message, me, why), *self.on_timer(me, now)]
        return self.on(message, me, now)

    def _receive_push(self, push: PushShare, me: GossipState, why: str = "") -> list[Effect]:
        """Add the mass once, or refuse it for ever."""
        _, process_number, number = push.id
        last = self.last.get(push.node, LastPush(-1, -1, True))
        effects: list[Effect] = []
        if (process_number, number) > (last.process_number, last.number):
            why = why or me.share_fault(push.blob, push.mass)
            last = self.last[push.node] = LastPush(process_number, number, not why)
            if push.id > self._leaving.get(push.node, push.id):
                del self._leaving[push.node]  # it did not leave
            if why:
                self.refused += 1
                effects = [JobEvent("refusal", f"its share was not mixed: {why}", me.local_rounds, push.node)]
            else:
                theirs = me.open_model(push.blob)
                me.record_distance(push.node, norm(sub(theirs, me.mixed)))
                self._add(push.mass, theirs, me)
                me.counts.merge(push.version_vector)
        # An older push needs any answer: its sender has had the right one, or it would not have pushed again.
        answer = Received(me.node, push.id) if last.taken else ExchangeAbort(me.node, push.id, "it must not be mixed")
        return [*effects, Tell(push.node, answer)]

    def _receive_answer(self, answer: Received | ExchangeAbort, me: GossipState) -> list[Effect]:
        one = self.pending.pop(answer.id)
        self._unacknowledged.drop(answer.id)
        if isinstance(answer, ExchangeAbort):
            self._add(one.mass, me.open_model(one.shown), me)
        return [self._nothing_incoming(one.partner, me)] if one.partner in self._leaving else []

    def _add(self, mass: float, theirs: Tree, me: GossipState) -> None:
        self.mass += mass
        me.mixed = self._unlearned = towards(me.mixed, me.mixed, theirs, mass / self.mass)

    # Stored state

    def state(self) -> dict[str, Any]:
        return {
            "mass": self.mass,
            "pending": [
                [list(xid), one.partner, one.mass, ref_state(one.shown), one.version_vector]
                for xid, one in sorted(self.pending.items())
            ],
            "last": {node: [one.process_number, one.number, one.taken] for node, one in sorted(self.last.items())},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the durable state; pending pushes are repeated at once."""
        self.mass = state["mass"]
        for xid, partner, mass, shown, seen in state["pending"]:
            self.pending[(xid[0], xid[1], xid[2])] = PendingPush(partner, mass, BlobRef(*shown), seen)
        self.last = {node: LastPush(*last) for node, last in state["last"].items()}
        self._unacknowledged.add_due(self.pending)
        self.alarm = 0.0

    def blob_refs(self) -> list[BlobRef]:
        return [one.shown for one in self.pending.values()]

    def counters(self) -> dict[str, int]:
        return {"under_way": len(self.pending), "refused": self.refused}
