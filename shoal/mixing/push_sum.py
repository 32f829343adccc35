"""Push-sum: after each local round a peer gives half of its mass to another, and nobody has to answer with a model.

Kempe, Dobra, Gehrke: "Gossip-Based Computation of Aggregate Information", FOCS 2003, protocol Push-Sum; with training
in between, Assran, Loizou, Ballas, Rabbat: "Stochastic Gradient Push for Distributed Deep Learning", ICML 2019,
Algorithm 1. Peer k holds a mass w_k and a sum s_k = w_k x_k, where x_k is its model; w_k is n_k (examples) at first.

    push        w_k  <-  w_k / 2                    the other half, m = w_k / 2, travels with x_k; x_k stays
    on (m, q)   x_k  <-  x_k + m / (w_k + m) (q - x_k),   w_k  <-  w_k + m
    learning d  x_k  <-  x_k + min(1, n_k / w_k) d  so s_k grows by n_k d, or by w_k d while there is less mass

Sums of w and of w x over all peers, and over what is under way, stay as they were; all x_k approach their ratio, which
is the sample-weighted mean. It holds if each push is taken exactly once: a push is kept, and sent again, until it is
Taken, and a receiver remembers the last id from each sender, who has one push to each under way. Mass that is refused
(Never) is taken back; mass pushed to a peer that never returns is lost with it, and with it the share that it had.

So whoever is about to go (`halt`) must know that nothing is under way to it. It asks all who are there (Resolve), and
waits for their answers (Never): a push to it that was under way has been taken by then, and there will be no other.

The paper's step is n_k / w_k d whatever w_k: on little mass that is many times as long as what was learned, which
diverges (a simulated run has shown it), so no step is made longer here. What a peer learns then counts for less; for
that to happen little, a peer with less than `floor` of its own weight gives nothing away until others have given to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, ClassVar

from shoal.core.errors import InvalidJob, InvalidPayload
from shoal.core.gossip import Holding, Mixing
from shoal.core.machine import Effect, Note, Tell
from shoal.core.message import Ref, ref_state
from shoal.core.peer_message import ExchangeId, MixingMessage, Never, Push, Resolve, Taken
from shoal.core.repeat import Repeats
from shoal.core.transfer import Transfer
from shoal.core.tree import Tree, norm, same_layout, sub, towards

PENDING_MAX = 16
"""Pushes that have not been answered. With so many, nothing more is pushed."""

FLOOR_AT_REST = 1 / 64
"""Instead of `floor`, when nothing more is learned that could count for less."""


@dataclass(frozen=True)
class PushSum(Mixing):
    """Each peer gives half of its mass to one random other after a local round, and waits for nobody."""

    name: ClassVar[str] = "push_sum"
    title: ClassVar[str] = "Push-sum (Kempe et al. 2003; Assran et al. 2019)"

    floor: float = 0.25
    """A peer pushes while it holds at least this share of its own weight, so it always keeps half of that."""
    repeat_s: float = 1.0
    """Seconds until an unanswered push is sent again, doubled each time."""

    def __post_init__(self) -> None:
        if not 0 < self.floor <= 1:
            raise InvalidJob(f"push_sum: floor is {self.floor}, but a share lies above 0 and is at most 1")
        if not 0 < self.repeat_s < inf:
            raise InvalidJob("push_sum: repeat_s must be positive")

    def mixer(self) -> PushSumMixer:
        """A peer's side of it."""
        return PushSumMixer(self)


@dataclass(frozen=True)
class Pushed:
    """Mass that has left this peer, and may have arrived."""

    partner: str
    mass: float
    shown: Ref
    seen: dict[str, int]


@dataclass(frozen=True)
class Last:
    """The last push of a sender, and whether its mass was added here or refused for ever."""

    boot: int
    number: int
    taken: bool


@dataclass
class PushSumMixer:
    """What is kept (`mass`, `pending`, `last`) survives the process."""

    in_step: ClassVar[bool] = False
    policy: PushSum
    mass: float = 0.0
    """0 until the beginning, when it is the peer's weight."""
    pending: dict[ExchangeId, Pushed] = field(default_factory=dict)
    last: dict[str, Last] = field(default_factory=dict)
    alarm: float = inf
    refused: int = 0
    """Pushes that must not be mixed."""

    def __post_init__(self) -> None:
        self._closed = False
        self._count = 0
        self._unheard: Repeats[ExchangeId] = Repeats(self.policy.repeat_s)
        self._parting: Repeats[str] = Repeats(self.policy.repeat_s)  # who may have something under way to us, who go
        self._parted: set[str] = set()  # who has nothing, and will not have
        self._asked: ExchangeId | None = None  # under which id they are asked
        self._going: dict[str, ExchangeId] = {}  # who goes, as it has asked: nothing is pushed to it
        self._unlearned: Tree | None = None  # the model as it was before the local round that is being made

    @property
    def waiting(self) -> bool:
        return False

    @property
    def busy(self) -> bool:
        return bool(self.pending) or len(self._parting) > 0

    @property
    def moving_until(self) -> float:
        return self._unheard.moving_until

    def halt(self) -> None:
        self._closed = True

    def resume(self) -> None:
        """All who were about to go may have stayed, as we have."""
        self._closed = False
        self._parting.clear()
        self._parted, self._asked, self._going = set(), None, {}

    # Beginning

    def turn(self, me: Holding, now: float) -> Sequence[Effect]:
        """Weigh what was learned, then give half of the mass away."""
        self._begin(me)
        if self._unlearned is not None and self.mass > me.weight:
            me.model = towards(self._unlearned, self._unlearned, me.model, me.weight / self.mass)
        self._unlearned = me.model
        return [*self._push(me, now), *self.ring(me, now)]

    def _begin(self, me: Holding) -> None:
        self.mass = self.mass or me.weight

    def _push(self, me: Holding, now: float) -> list[Effect]:
        """To one of those that are there, and have answered our last push."""
        free = sorted(me.live - {one.partner for one in self.pending.values()} - self._going.keys())
        floor = min(self.policy.floor, FLOOR_AT_REST) if me.resting else self.policy.floor
        if self._closed or not free or len(self.pending) >= PENDING_MAX or self.mass < floor * me.weight:
            return []
        self._count += 1
        xid = (me.node, me.boot, self._count)
        half = self.mass / 2
        self.mass -= half
        self.pending[xid] = Pushed(me.rng.choice(free), half, me.shown(), dict(me.seen))
        self._unheard.add(xid, now)
        return [self._told(xid)]

    def _told(self, xid: ExchangeId) -> Tell:
        one = self.pending[xid]
        return Tell(one.partner, Push(xid[0], xid, one.mass, one.shown, one.seen))

    def moves(self, transfer: Transfer, me: Holding, now: float) -> Sequence[Effect]:
        """What is on its way is not sent again."""
        one = self.pending.get(transfer.id)
        if transfer.leaving and one is not None and transfer.nbytes < one.shown.nbytes:
            self._unheard.postpone(transfer.id, now)
        return self.ring(me, now)

    def ring(self, me: Holding, now: float) -> Sequence[Effect]:
        """Send again what has not been answered."""
        self._begin(me)
        if self._unlearned is None:
            self._unlearned = me.model
        effects = [self._told(xid) for xid in self._unheard.take_due(now) if self.pending[xid].partner in me.live]
        if self._closed:
            effects += self._part(me, now)
        self.alarm = min(self._unheard.alarm, self._parting.alarm)
        return effects

    def _part(self, me: Holding, now: float) -> list[Tell]:
        """Ask all who are there whether they have something under way to us, until they have not."""
        if self._asked is None:
            self._count += 1
            self._asked = (me.node, me.boot, self._count)
        for node in self._parting.keys() - me.live:
            self._parting.drop(node)
        self._parting.add_due(me.live - self._parted - self._parting.keys())
        return [Tell(node, Resolve(me.node, self._asked)) for node in self._parting.take_due(now)]

    def _goes(self, message: Resolve, me: Holding) -> list[Effect]:
        """Nothing more goes there; what is under way is sent once more, and answered first."""
        self._going[message.node] = message.id
        under_way = [xid for xid, one in self.pending.items() if one.partner == message.node]
        self._unheard.add_due(under_way)
        return [] if under_way else [self._farewell(message.node, me)]

    def _farewell(self, node: str, me: Holding) -> Tell:
        return Tell(node, Never(me.node, self._going[node], "nothing is under way"))

    # Messages

    def on(self, message: MixingMessage, me: Holding, now: float) -> Sequence[Effect]:
        """A push, or its answer: from those two alone whom it concerns."""
        self._begin(me)
        effects: list[Effect] = []
        if isinstance(message, Push) and message.id[0] == message.node:
            effects = self._pushed(message, me)
        elif isinstance(message, Resolve) and message.id[0] == message.node:
            effects = self._goes(message, me)
        elif isinstance(message, Never) and message.id == self._asked:
            self._parting.drop(message.node)
            self._parted.add(message.node)
        elif isinstance(message, Taken | Never):
            one = self.pending.get(message.id)
            if one is not None and one.partner == message.node:
                effects = self._answered(message, me)
        return [*effects, *self.ring(me, now)]

    def decline(self, message: MixingMessage, why: str, me: Holding, now: float) -> Sequence[Effect]:
        """The mass goes back to its sender."""
        if isinstance(message, Push) and message.id[0] == message.node:
            self._begin(me)
            return [*self._pushed(message, me, why), *self.ring(me, now)]
        return self.on(message, me, now)

    def _pushed(self, push: Push, me: Holding, why: str = "") -> list[Effect]:
        """Add it, once; or refuse it, for ever."""
        _, boot, number = push.id
        last = self.last.get(push.node, Last(-1, -1, True))
        effects: list[Effect] = []
        if (boot, number) > (last.boot, last.number):
            why = why or self._fault(push, me)
            last = self.last[push.node] = Last(boot, number, not why)
            if push.id > self._going.get(push.node, push.id):
                del self._going[push.node]  # it has stayed
            if why:
                self.refused += 1
                effects = [Note("refusal", f"its share was not mixed: {why}", me.round, push.node)]
            else:
                theirs = me.opened(push.body)
                me.met(push.node, norm(sub(theirs, me.model)))
                self._add(push.mass, theirs, me)
                me.learn_of(push.seen)
        # To an older one any answer will do: its sender has had the right one, or it would not have pushed again.
        answer = Taken(me.node, push.id) if last.taken else Never(me.node, push.id, "it must not be mixed")
        return [*effects, Tell(push.node, answer)]

    def _fault(self, push: Push, me: Holding) -> str:
        """Why it must not be mixed; "" if nothing is wrong with it."""
        try:
            theirs = me.opened(push.body)
            same_layout(me.model.layout, theirs.layout)
        except InvalidPayload as error:
            return error.message
        return "" if norm(theirs) < inf and push.mass > 0 and isfinite(push.mass) else "it is not finite"

    def _answered(self, answer: Taken | Never, me: Holding) -> list[Effect]:
        one = self.pending.pop(answer.id)
        self._unheard.drop(answer.id)
        if isinstance(answer, Never):
            self._add(one.mass, me.opened(one.shown), me)
        return [self._farewell(one.partner, me)] if one.partner in self._going else []

    def _add(self, mass: float, theirs: Tree, me: Holding) -> None:
        self.mass += mass
        me.model = self._unlearned = towards(me.model, me.model, theirs, mass / self.mass)

    # What survives

    def state(self) -> dict[str, Any]:
        return {
            "mass": self.mass,
            "pending": [
                [list(xid), one.partner, one.mass, ref_state(one.shown), one.seen]
                for xid, one in sorted(self.pending.items())
            ],
            "last": {node: [one.boot, one.number, one.taken] for node, one in sorted(self.last.items())},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """What was under way is sent again at once."""
        self.mass = state["mass"]
        for xid, partner, mass, shown, seen in state["pending"]:
            self.pending[(xid[0], xid[1], xid[2])] = Pushed(partner, mass, Ref(*shown), seen)
        self.last = {node: Last(*last) for node, last in state["last"].items()}
        self._unheard.add_due(self.pending)
        self.alarm = 0.0

    def names(self) -> list[Ref]:
        return [one.shown for one in self.pending.values()]

    def tallies(self) -> dict[str, int]:
        return {"under_way": len(self.pending), "refused": self.refused}
