"""Ring all-reduce: after each local round all live peers take the exact weighted mean of their models, or none does.

Patarasuk, Yuan: "Bandwidth Optimal All-Reduce Algorithms for Clusters of Workstations", J. Parallel and Distributed
Computing 69 (2009), section 3. A model is cut into n pieces of equal length. Each peer sends 2 (n - 1) messages of one
piece to the next on the ring, so less than two models, whatever n is:

    n - 1 steps     pass on the last piece received, with one's own part added     each piece has passed all peers
    n - 1 steps     pass on the last piece received                                each peer has every piece

A piece carries the weighted *mean* so far and its weight, in the model's own types, so that half-precision models do
not overflow; each of n - 1 steps computes it in float64 and rounds it once. All peers end with the same bits. Whole
numbers take the greatest value.

A round applies as a whole or not at all: a peer that misses a chunk for `exchange_timeout_s`, receives an abort, or
finds that the others mean another ring, aborts the round, says so, and keeps its own model. The members are the peers
that are live when a peer's round begins, and the ring's identifier names them. Rounds are numbered as in Lamport's
clock: a peer that is behind moves to its predecessor's round. One of two peers may have ended a round that the other
aborts (no bounded exchange of messages can prevent that), and then the mean of all models moves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Any, ClassVar

import numpy as np

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import InvalidPayload
from shoal.core.errors.ranges import PositiveFloat
from shoal.core.gossip.counter_bounds import ROUND_LEAP, implausible
from shoal.core.gossip.gossip_state import GossipState
from shoal.core.gossip.mixer import Mixing
from shoal.core.gossip.transfer import Transfer
from shoal.core.mixing.round_mixer import RoundMixer
from shoal.core.model.tree import STATISTICS, Layout, Segment, Tree, combine, norm, same_layout, sub
from shoal.core.protocol.machine import Effect, JobEvent, Tell
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.peer_message import (
    ExchangeAbort,
    ExchangeId,
    MixingMessage,
    Received,
    RingChunk,
    VersionVector,
)


@dataclass(frozen=True)
class AllReduce(Mixing):
    """All live peers take their exact weighted mean, in step; a round that misses a peer is aborted."""

    name: ClassVar[str] = "all_reduce"
    title: ClassVar[str] = "Ring all-reduce (Patarasuk, Yuan 2009)"

    exchange_timeout_s: PositiveFloat = 60.0
    """Seconds to wait for the next chunk before the round is aborted. Choose more than the slowest local round."""
    retransmit_s: PositiveFloat = 1.0
    """Seconds until an unacknowledged chunk is sent again; doubled each time."""

    def mixer(self) -> AllReduceMixer:
        return AllReduceMixer(self)


# Pieces


def runs(layout: Layout, piece: int, count: int) -> Iterator[Segment]:
    """Yield the elements of each type and kind in a piece: all elements, cut into `count` parts of about one length."""
    low, high = layout.elements * piece // count, layout.elements * (piece + 1) // count
    for segment in layout.segments:
        size = segment.itemsize
        start = max(segment.start, segment.start + (low - segment.first) * size)
        stop = min(segment.stop, segment.start + (high - segment.first) * size)
        if start < stop:
            first = segment.first + (start - segment.start) // size
            yield Segment(segment.dtype, start, stop, first, segment.is_statistic)


def cut(tree: Tree, piece: int, count: int) -> Tree:
    """Return one piece: a tree with a flat tensor for each type and kind in it. All floats are weights there: peers add
    parts of one mean, in which statistics have the same weights."""
    found = list(runs(tree.layout, piece, count))
    layout = Layout.placed((_name(run), run.dtype, ((run.stop - run.start) // run.itemsize,)) for run in found)
    parts = [tree.block(run.start, run.stop) for run in found]
    return Tree(layout, np.concatenate([np.empty(0, np.uint8), *parts]))


def _name(run: Segment) -> str:
    return f"{run.dtype} {STATISTICS}" if run.is_statistic else run.dtype


def joined(layout: Layout, pieces: Sequence[Tree]) -> Tree:
    """Return the tree of these pieces, in order."""
    out = np.empty(layout.nbytes, np.uint8)
    for number, piece in enumerate(pieces):
        at = 0
        for run in runs(layout, number, len(pieces)):
            length = run.stop - run.start
            out[run.start : run.stop] = piece.block(at, at + length)
            at += length
    return Tree(layout, out)


# Rounds


@dataclass
class RingRound:
    """The open round. `step`: number of the predecessor's chunks that have been passed on."""

    members: tuple[str, ...]
    place: int
    until: float
    step: int = 0
    came: dict[int, RingChunk] = field(default_factory=dict)
    pieces: dict[int, Tree] = field(default_factory=dict)
    version_vector: VersionVector = field(default_factory=dict)

    @property
    def name(self) -> str:
        return hashlib.sha256("\n".join(self.members).encode()).hexdigest()[:16]

    @property
    def count(self) -> int:
        return len(self.members)

    @property
    def steps(self) -> int:
        return 2 * (self.count - 1)

    @property
    def before(self) -> str:
        return self.members[self.place - 1]

    @property
    def after(self) -> str:
        return self.members[(self.place + 1) % self.count]


@dataclass(frozen=True)
class SentChunk:
    """An unacknowledged chunk."""

    to: str
    part: RingChunk
    until: float


def merge_chunk(part: RingChunk, piece: int, one: RingRound, me: GossipState) -> tuple[Tree, float]:
    """Return the piece, with this peer's part in it on its first way round. Raises `InvalidPayload`."""
    theirs = tree_slot(me.blobs.get(part.blob), "piece")
    mine = cut(me.mixed, piece, one.count)
    same_layout(theirs.layout, mine.layout)
    if part.piece != piece or not (norm(theirs) < inf and isfinite(part.weight) and part.weight > 0):
        raise InvalidPayload(f"{part.node} sent a part that is not finite, or not the next one")
    if one.step >= one.count - 1:
        return theirs, part.weight
    whole = part.weight + me.weight
    return combine(theirs, mine, part.weight / whole, me.weight / whole), whole


class AllReduceMixer(RoundMixer[RingRound, ExchangeId]):
    """Durable state: the numbers of the last round and of the last completed one."""

    def __init__(self, policy: AllReduce) -> None:
        super().__init__(policy.retransmit_s)
        self.policy = policy
        self.done = 0
        self.given_up = 0
        """Number of aborted rounds."""
        self.early: dict[str, dict[int, RingChunk]] = {}
        """Chunks of the newest later round from each peer, by step."""
        self._aborted_round = 0  # a later round that another peer has aborted
        self._sent: dict[ExchangeId, SentChunk] = {}

    def begin_turn(self, me: GossipState, now: float) -> Sequence[Effect]:
        """Send the first piece."""
        later = [part.round for parts in self.early.values() for part in parts.values()]
        return self._begin(max([self.round + 1, *later]), me, now)

    def _begin(self, round_: int, me: GossipState, now: float) -> list[Effect]:
        members = tuple(sorted({me.node, *me.peers.nodes}))
        self.round = round_
        if len(members) == 1:
            self.open, self.done = None, round_
            return [*self.on_timer(me, now)]
        self.open = one = RingRound(
            members,
            members.index(me.node),
            now + self.policy.exchange_timeout_s,
            version_vector=dict(me.counts.version_vector),
        )
        effects: list[Effect] = []
        if round_ == self._aborted_round:
            effects = self._give_up("another has given it up", me)
        else:
            blob = me.blobs.put_transient({"piece": cut(me.mixed, one.place, one.count)})
            effects = [self._pass_on(one.place, blob, me.weight, me, now)]
        early, self.early = self.early, {}
        for node, parts in sorted(early.items()):
            for _, part in sorted(parts.items()):
                if part.round > round_:
                    self.early.setdefault(node, {})[part.step] = part
                elif part.round == round_:
                    effects += self._accept_chunk(part, me)
        return [*effects, *self._advance(me, now), *self.on_timer(me, now)]

    def _pass_on(self, piece: int, blob: BlobRef, weight: float, me: GossipState, now: float) -> Tell:
        """Send the next chunk to the next peer."""
        one = self.open
        assert one is not None
        part = RingChunk(me.node, self.round, one.step, piece, weight, blob, dict(one.version_vector), one.name)
        xid = (me.node, self.round, one.step)
        self._sent[xid] = SentChunk(one.after, part, now + self.policy.exchange_timeout_s)
        self._unacknowledged.add(xid, now)
        return Tell(one.after, part)

    def on_transfer(self, transfer: Transfer, me: GossipState, now: float) -> Sequence[Effect]:
        """Note the progress of a chunk: it is not sent again, and a round waits for incoming ones."""
        until, one = now + self.policy.exchange_timeout_s, self.open
        if transfer.leaving and transfer.id in self._sent:
            sent = self._sent[transfer.id]
            if transfer.nbytes < sent.part.blob.nbytes:
                self._unacknowledged.postpone(transfer.id, now)
            self._sent[transfer.id] = replace(sent, until=max(sent.until, until))
        elif one is not None and transfer.node == one.before and transfer.id[1] == self.round and not transfer.leaving:
            one.until = max(one.until, until)
        return self.on_timer(me, now)

    def on_timer(self, me: GossipState, now: float) -> Sequence[Effect]:
        """Repeat unacknowledged chunks; abort the round when nothing arrives."""
        effects: list[Effect] = []
        for xid in self._unacknowledged.take_due(now):
            sent = self._sent[xid]
            if sent.to in me.peers.nodes and now < sent.until:
                effects.append(Tell(sent.to, sent.part))
            else:
                self._forget(xid)
        one = self.open
        if one is not None and one.before not in me.peers.nodes:
            effects += self._give_up(f"{one.before} has gone", me)
        elif one is not None and now >= one.until:
            effects += self._give_up(f"{one.before} was silent for {self.policy.exchange_timeout_s:g} s", me)
        self.alarm = min(self._unacknowledged.alarm, self.open.until if self.open is not None else inf)
        return effects

    def _forget(self, xid: ExchangeId) -> None:
        self._sent.pop(xid, None)
        self._unacknowledged.drop(xid)

    def _leave(self) -> None:
        self.open = None
        for xid in [xid for xid in self._sent if xid[1] == self.round]:
            self._forget(xid)

    def _give_up(self, why: str, me: GossipState) -> list[Effect]:
        """Abort the round: keep the own model, and tell the next peer."""
        assert self.open is not None
        after = self.open.after
        self.given_up += 1
        self._leave()
        reply = Tell(after, ExchangeAbort(me.node, (me.node, self.round, 0), "it was given up"))
        return [reply, JobEvent("decision", f"mixing round {self.round} was aborted: {why}", me.local_rounds)]

    # Messages

    def on(self, message: MixingMessage, me: GossipState, now: float) -> Sequence[Effect]:
        """Handle a chunk, an acknowledgement or an abort."""
        effects: list[Effect] = []
        match message:
            case RingChunk():
                effects = self._receive_chunk(message, me, now)
            case Received() if message.id in self._sent and self._sent[message.id].to == message.node:
                self._forget(message.id)
            case ExchangeAbort():
                effects = self._receive_abort(message, me)
        return [*effects, *self._advance(me, now), *self.on_timer(me, now)]

    def reject(self, message: MixingMessage, why: str, me: GossipState, now: float) -> Sequence[Effect]:
        """Abort the round: a piece of a mean cannot be left out."""
        effects: list[Effect] = []
        if isinstance(message, RingChunk):
            xid = (message.node, message.round, message.step)
            effects = [Tell(message.node, ExchangeAbort(me.node, xid, why))]
            if self.open is not None and message.round == self.round:
                effects += self._give_up(why, me)
            return [*effects, *self.on_timer(me, now)]
        return self.on(message, me, now)

    def _receive_abort(self, never: ExchangeAbort, me: GossipState) -> list[Effect]:
        """Handle the abort of a neighbor on the ring."""
        round_, one = never.id[1], self.open
        if self.round < round_ <= self.round + ROUND_LEAP:
            self._aborted_round = round_
        elif one is not None and round_ == self.round and never.node in {one.before, one.after}:
            return self._give_up(f"{never.node} has given it up", me)
        return []

    def _receive_chunk(self, part: RingChunk, me: GossipState, now: float) -> list[Effect]:
        taken = Tell(part.node, Received(me.node, (part.node, part.round, part.step)))
        if part.round == self.round > self.done:
            return self._accept_chunk(part, me)
        if part.round > self.round + ROUND_LEAP:
            reply = f"is in mixing round {part.round}; this peer is in {self.round}"
            return [taken, implausible(part.node, reply, me.local_rounds)]
        if part.round <= self.round or not 0 <= part.step < 2 * len(me.peers.nodes):
            return [taken]
        kept = self.early.get(part.node, {})
        newest = max((one.round for one in kept.values()), default=0)
        if part.round >= newest:
            self.early[part.node] = {**(kept if part.round == newest else {}), part.step: part}
        one = self.open
        if one is not None and part.node == one.before and one.step < one.count - 1:
            # That round lacks this peer's part, so the predecessor has aborted it.
            self._leave()
            return [taken, *self._begin(part.round, me, now)]
        return [taken]

    def _accept_chunk(self, part: RingChunk, me: GossipState) -> list[Effect]:
        """Handle a chunk of the present or aborted round."""
        one, xid = self.open, (part.node, part.round, part.step)
        if one is None:
            return [Tell(part.node, ExchangeAbort(me.node, xid, "the round was given up"))]
        if part.group != one.name or part.node != one.before:
            reply = Tell(part.node, ExchangeAbort(me.node, xid, "not the same peers are there, as I see it"))
            return [reply, *self._give_up(f"{part.node} means other peers", me)]
        if one.step <= part.step < one.steps:
            one.came[part.step] = part
        return [Tell(part.node, Received(me.node, xid))]

    def _advance(self, me: GossipState, now: float) -> list[Effect]:
        """Process the chunks that have arrived, in order, and pass them on."""
        effects: list[Effect] = []
        while self.open is not None and self.open.step in self.open.came:
            one = self.open
            part = one.came.pop(one.step)
            piece = (one.place - 1 - one.step) % one.count
            try:
                tree, weight = merge_chunk(part, piece, one, me)
            except InvalidPayload as error:
                return [*effects, *self._give_up(error.message, me)]
            one.step += 1
            one.until = now + self.policy.exchange_timeout_s
            one.version_vector |= {
                node: max(count, one.version_vector.get(node, 0)) for node, count in part.version_vector.items()
            }
            if one.step >= one.count - 1:
                one.pieces[piece] = tree
            if one.step < one.steps:
                blob = part.blob if one.step >= one.count else me.blobs.put_transient({"piece": tree})
                effects.append(self._pass_on(piece, blob, weight, me, now))
            else:
                self._finish(one, me)
        return effects

    def _finish(self, one: RingRound, me: GossipState) -> None:
        """Set the model of a complete round."""
        before, me.mixed = me.mixed, joined(me.mixed.layout, [one.pieces[piece] for piece in range(one.count)])
        if me.counts.rounds_done:
            moved = norm(sub(me.mixed, before))
            for node in one.members:
                me.record_distance(node, moved)
        me.counts.merge(one.version_vector)
        self.open, self.done = None, self.round

    # Stored state

    def state(self) -> dict[str, Any]:
        return {"round": self.round, "done": self.done}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state; a round that was open is aborted."""
        self.round, self.done = state["round"], state["done"]

    def blob_refs(self) -> list[BlobRef]:
        early = [part for parts in self.early.values() for part in parts.values()]
        came = self.open.came.values() if self.open is not None else ()
        return [part.blob for part in [*early, *came, *(sent.part for sent in self._sent.values())]]

    def counters(self) -> dict[str, int]:
        return {"round": self.round, "unheard": len(self._unacknowledged), "given_up": self.given_up}
