"""Ring all-reduce: after each local round all that are there come to the one weighted mean of their models, or do not.

Patarasuk, Yuan: "Bandwidth Optimal All-Reduce Algorithms for Clusters of Workstations", J. Parallel and Distributed
Computing 69 (2009), section 3. A model is cut into n pieces of equal length. Each peer sends 2 (n - 1) messages of one
piece to the next on the ring, so less than two models, whatever n is:

    n - 1 steps     pass on what has just come, with one's own part in it      each piece has gone past all once
    n - 1 steps     pass on what has just come                                 everybody has every piece

What goes round is the weighted *mean* so far and its weight, in the model's own types, so that half-precision models do
not overflow; each of n - 1 steps computes it in float64 and rounds it once. All peers end with the same bits. Whole
numbers take the greatest value.

A round applies as a whole or not at all: who misses a part for `patience_s`, or hears that another has given up, or
finds that the others mean another ring, gives the round up, says so, and keeps its own model. Who takes part is settled
by the name of the ring: those that a peer believes to be there when its round begins. Rounds are numbered as in
Lamport's clock: a peer that is behind goes where its predecessor is. Between two peers of one round one may have ended
it and the other not (no bounded exchange of messages can prevent that), and then the mean of all models moves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Any, ClassVar

import numpy as np

from shoal.core.algorithm import tree_slot
from shoal.core.errors import InvalidJob, InvalidPayload
from shoal.core.gossip import Holding, Mixing
from shoal.core.machine import Effect, Note, Tell
from shoal.core.message import Ref
from shoal.core.peer_message import ExchangeId, MixingMessage, Never, Part, Seen, Taken
from shoal.core.plausible import ROUND_LEAP, lie
from shoal.core.repeat import Repeats
from shoal.core.transfer import Transfer
from shoal.core.tree import Layout, Segment, Tree, combine, norm, same_layout, sub


@dataclass(frozen=True)
class AllReduce(Mixing):
    """All that are there take their exact weighted mean, in step; a round that somebody misses is given up."""

    name: ClassVar[str] = "all_reduce"
    title: ClassVar[str] = "Ring all-reduce (Patarasuk, Yuan 2009)"

    patience_s: float = 60.0
    """Seconds to wait for the next part, then the round is given up: longer than the slowest peer's local round."""
    repeat_s: float = 1.0
    """Seconds until an unanswered part is sent again, doubled each time."""

    def __post_init__(self) -> None:
        if not (0 < self.patience_s < inf and 0 < self.repeat_s < inf):
            raise InvalidJob("all_reduce: patience_s and repeat_s must be positive")

    def mixer(self) -> AllReduceMixer:
        """A peer's side of it."""
        return AllReduceMixer(self)


# Pieces


def runs(layout: Layout, piece: int, count: int) -> Iterator[Segment]:
    """Which elements of each type are in a piece: all elements, cut into `count` parts that differ by one at most."""
    low, high = layout.elements * piece // count, layout.elements * (piece + 1) // count
    for segment in layout.segments:
        size = segment.itemsize
        start = max(segment.start, segment.start + (low - segment.first) * size)
        stop = min(segment.stop, segment.start + (high - segment.first) * size)
        if start < stop:
            yield Segment(segment.dtype, start, stop, segment.first + (start - segment.start) // size)


def cut(tree: Tree, piece: int, count: int) -> Tree:
    """One piece: a tree with a flat tensor for each type in it."""
    found = list(runs(tree.layout, piece, count))
    layout = Layout.placed((run.dtype, run.dtype, ((run.stop - run.start) // run.itemsize,)) for run in found)
    parts = [tree.block(run.start, run.stop) for run in found]
    return Tree(layout, np.concatenate([np.empty(0, np.uint8), *parts]))


def joined(layout: Layout, pieces: Sequence[Tree]) -> Tree:
    """The tree whose pieces these are, in order."""
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
class Round:
    """The round that is open. `step`: how many parts of the predecessor have been passed on."""

    members: tuple[str, ...]
    place: int
    until: float
    step: int = 0
    came: dict[int, Part] = field(default_factory=dict)
    pieces: dict[int, Tree] = field(default_factory=dict)
    seen: Seen = field(default_factory=dict)

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
class Sent:
    """A part that may have been lost."""

    to: str
    part: Part
    until: float


class AllReduceMixer:
    """What survives the process: the number of the last round, and of the last that was not given up."""

    in_step: ClassVar[bool] = True

    def __init__(self, policy: AllReduce) -> None:
        self.policy = policy
        self.round = 0
        self.done = 0
        self.alarm = inf
        self.given_up = 0
        """Rounds after which this peer has kept its own model."""
        self.open: Round | None = None
        self.early: dict[str, dict[int, Part]] = {}
        """The parts of the newest later round that each peer has sent, by step."""
        self._spoilt = 0  # a round that we have not begun, and another has given up
        self._sent: dict[ExchangeId, Sent] = {}
        self._unheard: Repeats[ExchangeId] = Repeats(policy.repeat_s)

    @property
    def waiting(self) -> bool:
        return self.open is not None

    @property
    def busy(self) -> bool:
        return self.open is not None or len(self._unheard) > 0

    @property
    def moving_until(self) -> float:
        return self._unheard.moving_until

    def halt(self) -> None:
        """Rounds are begun by `turn` alone, and end by themselves."""

    def resume(self) -> None:
        """The next `turn` begins one."""

    def turn(self, me: Holding, now: float) -> Sequence[Effect]:
        """Send the first piece on its way."""
        later = [part.round for parts in self.early.values() for part in parts.values()]
        return self._begin(max([self.round + 1, *later]), me, now)

    def _begin(self, round_: int, me: Holding, now: float) -> list[Effect]:
        members = tuple(sorted({me.node, *me.live}))
        self.round = round_
        if len(members) == 1:
            self.open, self.done = None, round_
            return [*self.ring(me, now)]
        self.open = one = Round(members, members.index(me.node), now + self.policy.patience_s, seen=dict(me.seen))
        effects: list[Effect] = []
        if round_ == self._spoilt:
            effects = self._give_up("another has given it up", me)
        else:
            effects = [self._pass_on(one.place, cut(me.model, one.place, one.count), me.weight, me, now)]
        early, self.early = self.early, {}
        for node, parts in sorted(early.items()):
            for _, part in sorted(parts.items()):
                if part.round > round_:
                    self.early.setdefault(node, {})[part.step] = part
                elif part.round == round_:
                    effects += self._current(part, me)
        return [*effects, *self._advance(me, now), *self.ring(me, now)]

    def _pass_on(self, piece: int, tree: Tree, weight: float, me: Holding, now: float) -> Tell:
        """The next part for the next peer."""
        one = self.open
        assert one is not None
        body = me.bodies.put({"piece": tree})
        part = Part(me.node, self.round, one.step, piece, weight, body, dict(one.seen), one.name)
        xid = (me.node, self.round, one.step)
        self._sent[xid] = Sent(one.after, part, now + self.policy.patience_s)
        self._unheard.add(xid, now)
        return Tell(one.after, part)

    def moves(self, transfer: Transfer, me: Holding, now: float) -> Sequence[Effect]:
        """What is on its way is not sent again, and a round waits for what is coming."""
        until, one = now + self.policy.patience_s, self.open
        if transfer.leaving and transfer.id in self._sent:
            sent = self._sent[transfer.id]
            if transfer.nbytes < sent.part.body.nbytes:
                self._unheard.postpone(transfer.id, now)
            self._sent[transfer.id] = replace(sent, until=max(sent.until, until))
        elif one is not None and transfer.node == one.before and transfer.id[1] == self.round and not transfer.leaving:
            one.until = max(one.until, until)
        return self.ring(me, now)

    def ring(self, me: Holding, now: float) -> Sequence[Effect]:
        """Send again what may be lost; give up when nothing comes."""
        effects: list[Effect] = []
        for xid in self._unheard.take_due(now):
            sent = self._sent[xid]
            if sent.to in me.live and now < sent.until:
                effects.append(Tell(sent.to, sent.part))
            else:
                self._forget(xid)
        one = self.open
        if one is not None and one.before not in me.live:
            effects += self._give_up(f"{one.before} has gone", me)
        elif one is not None and now >= one.until:
            effects += self._give_up(f"{one.before} was silent for {self.policy.patience_s:g} s", me)
        self.alarm = min(self._unheard.alarm, self.open.until if self.open is not None else inf)
        return effects

    def _forget(self, xid: ExchangeId) -> None:
        self._sent.pop(xid, None)
        self._unheard.drop(xid)

    def _leave(self) -> None:
        """The open round is not gone on with."""
        self.open = None
        for xid in [xid for xid in self._sent if xid[1] == self.round]:
            self._forget(xid)

    def _give_up(self, why: str, me: Holding) -> list[Effect]:
        """Keep the own model, and let the next peer know."""
        assert self.open is not None
        after = self.open.after
        self.given_up += 1
        self._leave()
        told = Tell(after, Never(me.node, (me.node, self.round, 0), "it was given up"))
        return [told, Note("decision", f"round {self.round} of mixing was given up: {why}", me.round)]

    # Messages

    def on(self, message: MixingMessage, me: Holding, now: float) -> Sequence[Effect]:
        """A part, its answer, or that somebody has given up."""
        effects: list[Effect] = []
        match message:
            case Part():
                effects = self._part(message, me, now)
            case Taken() if message.id in self._sent and self._sent[message.id].to == message.node:
                self._forget(message.id)
            case Never():
                effects = self._spoil(message, me)
        return [*effects, *self._advance(me, now), *self.ring(me, now)]

    def decline(self, message: MixingMessage, why: str, me: Holding, now: float) -> Sequence[Effect]:
        """A piece of a mean says nothing of one model: the round is given up."""
        effects: list[Effect] = []
        if isinstance(message, Part):
            xid = (message.node, message.round, message.step)
            effects = [Tell(message.node, Never(me.node, xid, why))]
            if self.open is not None and message.round == self.round:
                effects += self._give_up(why, me)
            return [*effects, *self.ring(me, now)]
        return self.on(message, me, now)

    def _spoil(self, never: Never, me: Holding) -> list[Effect]:
        """A neighbour on the ring has given a round up."""
        round_, one = never.id[1], self.open
        if self.round < round_ <= self.round + ROUND_LEAP:
            self._spoilt = round_
        elif one is not None and round_ == self.round and never.node in {one.before, one.after}:
            return self._give_up(f"{never.node} has given it up", me)
        return []

    def _part(self, part: Part, me: Holding, now: float) -> list[Effect]:
        taken = Tell(part.node, Taken(me.node, (part.node, part.round, part.step)))
        if part.round == self.round > self.done:
            return self._current(part, me)
        if part.round > self.round + ROUND_LEAP:
            told = f"is in round {part.round} of mixing; this peer is in {self.round}"
            return [taken, lie(part.node, told, me.round)]
        if part.round <= self.round or not 0 <= part.step < 2 * len(me.live):
            return [taken]
        kept = self.early.get(part.node, {})
        newest = max((one.round for one in kept.values()), default=0)
        if part.round >= newest:
            self.early[part.node] = {**(kept if part.round == newest else {}), part.step: part}
        one = self.open
        if one is not None and part.node == one.before and one.step < one.count - 1:
            # A round that still lacks our own part cannot have ended there: our predecessor is not coming back to it.
            self._leave()
            return [taken, *self._begin(part.round, me, now)]
        return [taken]

    def _current(self, part: Part, me: Holding) -> list[Effect]:
        """A part of the round that we are in, or have given up."""
        one, xid = self.open, (part.node, part.round, part.step)
        if one is None:
            return [Tell(part.node, Never(me.node, xid, "the round was given up"))]
        if part.ring != one.name or part.node != one.before:
            told = Tell(part.node, Never(me.node, xid, "not the same peers are there, as I see it"))
            return [told, *self._give_up(f"{part.node} means other peers", me)]
        if one.step <= part.step < one.steps:
            one.came[part.step] = part
        return [Tell(part.node, Taken(me.node, xid))]

    def _advance(self, me: Holding, now: float) -> list[Effect]:
        """Take what has come, in order, and pass it on."""
        effects: list[Effect] = []
        while self.open is not None and self.open.step in self.open.came:
            one = self.open
            part = one.came.pop(one.step)
            piece = (one.place - 1 - one.step) % one.count
            try:
                tree, weight = self._merged(part, piece, one, me)
            except InvalidPayload as error:
                return [*effects, *self._give_up(error.message, me)]
            one.step += 1
            one.until = now + self.policy.patience_s
            one.seen |= {node: max(count, one.seen.get(node, 0)) for node, count in part.seen.items()}
            if one.step >= one.count - 1:
                one.pieces[piece] = tree
            if one.step < one.steps:
                effects.append(self._pass_on(piece, tree, weight, me, now))
            else:
                self._finish(one, me)
        return effects

    def _merged(self, part: Part, piece: int, one: Round, me: Holding) -> tuple[Tree, float]:
        """What came, with our own part in it while it goes round for the first time. Raises `InvalidPayload`."""
        theirs = tree_slot(me.bodies.get(part.body), "piece")
        mine = cut(me.model, piece, one.count)
        same_layout(theirs.layout, mine.layout)
        if part.piece != piece or not (norm(theirs) < inf and isfinite(part.weight) and part.weight > 0):
            raise InvalidPayload(f"{part.node} sent a part that is not finite, or not the next one")
        if one.step >= one.count - 1:
            return theirs, part.weight
        whole = part.weight + me.weight
        return combine(theirs, mine, part.weight / whole, me.weight / whole), whole

    def _finish(self, one: Round, me: Holding) -> None:
        """Everything is there: apply it."""
        before, me.model = me.model, joined(me.model.layout, [one.pieces[piece] for piece in range(one.count)])
        moved = norm(sub(me.model, before))
        for node in one.members:
            me.met(node, moved)
        me.learn_of(one.seen)
        self.open, self.done = None, self.round

    # What survives

    def state(self) -> dict[str, Any]:
        return {"round": self.round, "done": self.done}

    def restore(self, state: dict[str, Any]) -> None:
        """A round that was open is given up."""
        self.round, self.done = state["round"], state["done"]

    def names(self) -> list[Ref]:
        early = [part for parts in self.early.values() for part in parts.values()]
        came = self.open.came.values() if self.open is not None else ()
        return [part.body for part in [*early, *came, *(sent.part for sent in self._sent.values())]]

    def tallies(self) -> dict[str, int]:
        return {"round": self.round, "unheard": len(self._unheard), "given_up": self.given_up}
