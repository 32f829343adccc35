"""Conserving pairwise exchange: two peers meet, and each takes a step towards the other; their weighted sum stays.

Boyd, Ghosh, Prabhakar, Shah: "Randomized Gossip Algorithms", IEEE Trans. Information Theory 52 (2006), section I.B,
with weights n_k (examples), and made safe against loss: for peers i and j that show each other q_i and q_j,

    x_i  <-  x_i + c n_j / (n_i + n_j) (q_j - q_i)
    x_j  <-  x_j + c n_i / (n_i + n_j) (q_i - q_j)            c in (0, 1]: both take the same share of the way

so n_i x_i + n_j x_j stays where it was, whatever q is (a model that filters have rounded, one that is late), as long as
both reckon with what the other one received, and with it the mean sum_k n_k x_k / sum_k n_k of all. That holds if
either both take their step, once, or neither does:

    i                                      j
    Reserve      --------------------->    free? then keep a slot for this exchange, else Busy
    keep (id, q_i)  <-----------  Slot
    Swap(q_i)    --------------------->    slot held, and never promised not to: step, keep (id, q_j)
    step, forget (id, q_i)  <-- Swapped(q_j)
    Settle       --------------------->    forget (id, q_j)

`i` in doubt asks (Resolve), for ever: j answers what it keeps; or Slot, which says "send it again"; or promises Never
to take that step. j in doubt whether its answer has come says that it has taken its step (Taken): it is asked for the
answer, or told to forget it. A model that is on its way (`Transfer`) is neither asked for nor sent again, and keeps its
slot. A peer has one exchange in flight, as initiator or as partner, because steps that are computed on models which
other steps have left meanwhile add up, and diverge; but a partner that does not answer is not waited for longer than
`patience_s`, and what the model's bytes take besides (`shoal.core.pacing`): its doubt stays, and the late step is
taken whenever it comes. Who has not answered is not asked for a while.

Models of which one is NORM_TIMES_MAX times as long as the other are not exchanged: both say how long theirs is before
any has been sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, ClassVar

from shoal.core.errors import InvalidJob
from shoal.core.exchange import Answer, Doubt, Meeting, Step
from shoal.core.gossip import Holding, Mixing
from shoal.core.machine import Effect, Note, Tell
from shoal.core.message import Ref
from shoal.core.pacing import NORM_TIMES_MAX, RATE_LEAST, Patience, Reach, UnderWay
from shoal.core.peer_message import (
    Busy,
    ExchangeId,
    MixingMessage,
    Never,
    Offer,
    Part,
    Reserve,
    Resolve,
    Settle,
    Slot,
    Swap,
    Swapped,
    Taken,
)
from shoal.core.steps import Steps, acceptable, unlike
from shoal.core.transfer import Transfer
from shoal.core.tree import Tree, norm, sub

WAIT_MAX_S = 3600.0
"""Who says that it is busy is asked again after so long, whatever it says."""

UNSETTLED_MAX = 16
"""Answers kept for partners that have not said that they arrived. With so many, no new exchange is entered into."""


@dataclass(frozen=True)
class Pairwise(Mixing):
    """Each peer exchanges with one random other at a time; the weighted mean of all models never moves by it."""

    name: ClassVar[str] = "pairwise"
    asks: ClassVar[bool] = True
    filtered: ClassVar[bool] = True
    title: ClassVar[str] = "Conserving pairwise exchange (Boyd et al. 2006)"

    delta: float = 0.0
    """Exchange only when the model has moved by more than this (squared distance) since it last did; 0: always."""
    attempts: int = 4
    """How many partners to ask after a local round, when they are busy or silent."""
    models_per_round: float = 2.0
    """Models that a peer may send in each local round, on average, whoever began the exchange."""
    burst: float = 3.0
    """Models that it may save up to send at once."""
    patience_s: float = 10.0
    """Seconds until a silent partner is not waited for any longer; beside what its model's bytes take."""
    slot_s: float = 30.0
    """Seconds that a peer keeps itself free for a partner that has reserved, until that one's model begins to come."""
    clip: bool = True
    """Whether a step that is more than twice as long as usual is shortened, on both sides alike."""

    def __post_init__(self) -> None:
        if not (self.delta >= 0 and isfinite(self.delta)):
            raise InvalidJob(f"pairwise: delta is {self.delta}, but a squared distance is a number from 0 on")
        if self.attempts < 1:
            raise InvalidJob(f"pairwise: attempts is {self.attempts}, but at least one partner must be asked")
        if not (self.models_per_round > 0 and self.burst >= 1):
            raise InvalidJob("pairwise: models_per_round must be positive, and burst at least 1")
        if not (self.patience_s > 0 and self.slot_s > 0):
            raise InvalidJob("pairwise: patience_s and slot_s must be positive")

    def mixer(self) -> PairwiseMixer:
        """A peer's side of it."""
        return PairwiseMixer(self)


@dataclass
class PairwiseMixer:
    """What is kept (`doubts`, `answers`, `over`) survives the process; the rest is begun anew."""

    in_step: ClassVar[bool] = False
    policy: Pairwise
    doubts: dict[ExchangeId, Doubt] = field(default_factory=dict)
    answers: dict[ExchangeId, Answer] = field(default_factory=dict)
    over: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(boot, n) of the last exchange of each initiator that was either done here, or promised never to be."""
    meeting: Meeting | None = None
    alarm: float = inf
    refused: int = 0
    """Steps that were not taken, because what the other side sent must not be mixed."""

    def __post_init__(self) -> None:
        self._closed = False
        self._count = 0
        self._attempts = 0
        self._tokens = self.policy.burst
        self._next_try = inf
        self._ask_again: dict[ExchangeId, tuple[float, float]] = {}
        self._busy_until: dict[str, float] = {}
        self._saves_until = -inf
        self._steps = Steps(clip=self.policy.clip)
        self._patience = Patience(self.policy.patience_s)
        self._under_way = UnderWay(self.policy.patience_s / 2)
        self._reach = Reach(self.policy.patience_s)
        self._reference: Tree | None = None

    @property
    def waiting(self) -> bool:
        return False

    @property
    def busy(self) -> bool:
        return self.meeting is not None or bool(self.doubts or self.answers)

    @property
    def moving_until(self) -> float:
        return self._under_way.until

    def halt(self) -> None:
        self._closed, self._attempts, self._next_try = True, 0, inf

    def resume(self) -> None:
        self._closed = False

    # Beginning

    def turn(self, me: Holding, now: float) -> Sequence[Effect]:
        """Look for a partner, if the model has moved enough and the budget allows."""
        policy = self.policy
        self._tokens = min(policy.burst, self._tokens + policy.models_per_round)
        rests = self._reference is not None and norm(sub(me.model, self._reference)) ** 2 <= policy.delta
        if rests and not me.resting:
            return []
        self._attempts, self._next_try = policy.attempts, now
        return self.ring(me, now)

    def ring(self, me: Holding, now: float) -> Sequence[Effect]:
        """Give up on who is silent, ask after doubts, try the next partner: whatever is due."""
        effects: list[Effect] = []
        self._reach.keep(me.live)
        self._break_off(me, now)
        me.unreached = self._reach.out
        for xid, (due, pause) in sorted(self._ask_again.items()):
            if now >= due:
                effects += self._ask(xid, me)
                self._ask_again[xid] = now + pause, min(60.0, 2 * pause)
        if now >= self._next_try and self.meeting is None:
            effects += self._approach(me, now)
        self._set_alarm()
        return effects

    def _break_off(self, me: Holding, now: float) -> None:
        """Wait no longer for one that is silent, or has gone."""
        one = self.meeting
        if one is None:
            return
        gone = one.begun is not None and one.partner not in me.live
        if gone or now >= one.until:
            if one.begun is not None and one.id not in self.doubts:
                self._reach.missed(one.partner, now)
            self._part(me, now)

    def _ask(self, xid: ExchangeId, me: Holding) -> list[Effect]:
        """Ask what came of an exchange; or say that our step is taken, so that it is asked for, or settled."""
        if xid not in self.doubts:
            return [Tell(xid[0], Taken(me.node, xid))]
        if not self._may_repeat(me):
            return []
        me.meter.told(me.model_bytes)  # its answer is a model
        return [Tell(self.doubts[xid].partner, Resolve(me.node, xid))]

    def _may_repeat(self, me: Holding) -> bool:
        """Over the budget of bytes nothing is said again, unless this peer is leaving."""
        return self._closed or me.meter.open

    def _approach(self, me: Holding, now: float) -> list[Effect]:
        """Ask one of those that are there, and with whom nothing is open."""
        self._next_try = inf
        open_with = {doubt.partner for doubt in self.doubts.values()}
        free = sorted(me.live - open_with)
        if not free or not self._attempts or self._tokens < 1 or not me.norm < inf:
            return []
        own_s = me.meter.wait_s(me.exchange_bytes)
        if own_s:  # two that have met are short of bytes at the same times: they must not meet for ever
            self._saves_until = now + own_s + me.rng.random() * me.meter.worth_s(me.exchange_bytes)
        at = max(
            self._saves_until,
            self._under_way.moving_until(self.answers),
            min(self._busy_until.get(one, now) for one in free),
        )
        if at > now:
            self._next_try = me.hindered_until = at
            return []
        free = [one for one in free if self._busy_until.get(one, now) <= now]
        self._attempts -= 1
        self._count += 1
        answering = [one for one in free if self._reach.skipped_until(one) <= now]
        partner = me.rng.choice(answering) if answering else min(free, key=self._reach.skipped_until)
        self.meeting = Meeting((me.node, me.boot, self._count), partner, now + self.policy.patience_s, now, now)
        return [Tell(partner, Reserve(me.node, self.meeting.id, me.norm))]

    def _part(self, me: Holding, now: float) -> None:
        """The exchange in flight is over, or is not waited for any longer."""
        self.meeting = None
        if self._attempts:
            self._next_try = now + 0.5 * me.rng.random()

    def _set_alarm(self) -> None:
        due = [at for at, _ in self._ask_again.values()]
        self.alarm = min([self.meeting.until if self.meeting else self._next_try, *due])

    def moves(self, transfer: Transfer, me: Holding, now: float) -> Sequence[Effect]:
        """An exchange whose models move is waited for, if they do not move all too slowly."""
        xid, one = transfer.id, self.meeting
        other = xid[0] if xid[0] != me.node else self._partner_in(xid, me)
        if other == transfer.node and (xid in self.doubts or xid in self.answers or self._holds_slot(xid)):
            self._under_way.moved(xid, now)
            if xid in self._ask_again:
                at, pause = self._ask_again[xid]
                self._ask_again[xid] = max(at, now + self.policy.patience_s), pause
            crossed = transfer.nbytes + (me.model_bytes if self._is_mine(xid) and not transfer.leaving else 0)
            whole = me.exchange_bytes if self._is_mine(xid) else me.model_bytes
            if one is not None and one.id == xid and now <= one.since + self.policy.slot_s + crossed / RATE_LEAST:
                one.until = max(one.until, now + self._patience.seconds(whole - crossed))
        return self.ring(me, now)

    # Messages

    def on(self, message: MixingMessage, me: Holding, now: float) -> Sequence[Effect]:
        """Nobody but an exchange's two sides has a say in it."""
        effects: list[Effect] = []
        own = message.id[0] == message.node if not isinstance(message, Offer | Part) else False
        if isinstance(message, Reserve | Swap | Resolve | Settle | Never) and own:
            effects = self._asked(message, me, now)
        elif isinstance(message, Swapped | Taken) and message.id[0] == me.node and message.id not in self.doubts:
            effects = [Tell(message.node, Settle(me.node, message.id))]
        elif isinstance(message, Taken) and message.node == self._partner_in(message.id, me):
            effects = self._ask(message.id, me)
        elif isinstance(message, Slot | Busy | Swapped | Never) and message.node == self._partner_in(message.id, me):
            effects = self._answered(message, me, now)
        return [*effects, *self.ring(me, now)]

    def decline(self, message: MixingMessage, why: str, me: Holding, now: float) -> Sequence[Effect]:
        """Reserve: busy. Swap: never. To everything else our word is given already."""
        mine = message.id[0] == message.node if isinstance(message, Reserve | Swap) else False
        if isinstance(message, Reserve) and mine:
            return [Tell(message.node, Busy(me.node, message.id, why)), *self.ring(me, now)]
        if isinstance(message, Swap) and mine and message.id not in self.answers:
            self.refused += 1
            return [*self._promise_never(message.node, message.id, me, why), *self.ring(me, now)]
        return self.on(message, me, now)

    def _partner_in(self, xid: ExchangeId, me: Holding) -> str:
        """With whom this peer began that exchange; "" if it did not, or if it is over."""
        if xid in self.doubts:
            return self.doubts[xid].partner
        return self.meeting.partner if self._is_mine(xid) and self.meeting is not None else ""

    def _is_mine(self, xid: ExchangeId) -> bool:
        return self.meeting is not None and self.meeting.id == xid and self.meeting.begun is not None

    def _holds_slot(self, xid: ExchangeId) -> bool:
        return self.meeting is not None and self.meeting.id == xid and self.meeting.begun is None

    # The side that was asked

    def _asked(self, message: Reserve | Swap | Resolve | Settle | Never, me: Holding, now: float) -> list[Effect]:
        match message:
            case Reserve():
                return self._reserve(message, me, now)
            case Swap():
                return self._swap(message, me, now)
            case Resolve():
                return self._resolve(message, me, now)
            case Settle():
                self._settle(message.id)
            case Never() if self._holds_slot(message.id):
                self._part(me, now)
        return []

    def _reserve(self, message: Reserve, me: Holding, now: float) -> list[Effect]:
        """Who begins an exchange with us has none open with us: what we kept for it has arrived."""
        xid, theirs = message.id, message.node
        if xid[1:] <= self.over.get(theirs, (-1, -1)):
            return [Tell(theirs, Busy(me.node, xid, "this exchange is over"))]
        for earlier in [one for one in self.answers if one[0] == theirs]:
            self._settle(earlier)
        slot = self.meeting if self.meeting is not None and self.meeting.begun is None else None
        if slot is not None and slot.partner == theirs and slot.id < xid:
            self.meeting = None  # of this slot it has not heard, and has given it up
        wait_s = me.meter.wait_s(me.exchange_bytes)
        short = "its budget of bytes is used up" if wait_s else ""
        if now < self._under_way.moving_until(self.answers):
            short = "still sending its last answer"
        why = "" if self._holds_slot(xid) else short or self._unwilling(theirs) or unlike(message.norm, me.norm)
        if why:
            return [Tell(theirs, Busy(me.node, xid, why, wait_s))]
        self.meeting = Meeting(xid, theirs, now + self.policy.slot_s, since=now)
        return [Tell(theirs, Slot(me.node, xid, me.norm))]

    def _unwilling(self, theirs: str) -> str:
        """Why no exchange may be entered into now."""
        if self._closed:
            return "not mixing any more"
        if self.meeting is not None:
            return "in an exchange"
        if any(doubt.partner == theirs for doubt in self.doubts.values()):
            return "an exchange with you is in doubt"
        if self._tokens < 1:
            return "over budget"
        if len(self.answers) >= UNSETTLED_MAX:
            return "too many answers have not arrived"
        return ""

    def _swap(self, message: Swap, me: Holding, now: float) -> list[Effect]:
        """Take our step, if this is the exchange that we keep a slot for: checked in the step that takes it."""
        xid = message.id
        if xid in self.answers:
            return self._repeated(xid, me, now)
        if not self._holds_slot(xid) or xid[1:] <= self.over.get(xid[0], (-1, -1)):
            return self._promise_never(message.node, xid, me, "no slot is held for it")
        theirs = me.opened(message.body)
        shown = me.shown()
        mine = me.seen_by_others(shown)
        way = norm(sub(theirs, mine))
        if not way < inf or not message.cap > 0 or not 0 < message.weight < inf:
            self.refused += 1
            return self._promise_never(message.node, xid, me, "it must not be mixed: it is not finite")
        share = min(1.0, self._steps.cap / way, message.cap / way) if way else 1.0
        self.answers[xid] = Answer(shown, me.weight, share, dict(me.seen))
        self.over[xid[0]] = xid[1:]
        self._ask_again[xid] = now + self.policy.patience_s, 2 * self.policy.patience_s
        self._under_way.told(xid, now)
        self._tokens -= 1
        self._take(me, message, Step(mine, theirs, me.weight, share, way))
        me.learn_of(message.seen)
        if self.meeting is not None:
            self._patience.learn(me.model_bytes, now - self.meeting.since)
        self.meeting = None
        return [Tell(message.node, self._swapped(xid, me))]

    def _promise_never(self, to: str, xid: ExchangeId, me: Holding, why: str) -> list[Effect]:
        self.over[xid[0]] = max(xid[1:], self.over.get(xid[0], (-1, -1)))
        if self._holds_slot(xid):
            self.meeting = None
        return [Tell(to, Never(me.node, xid, why))]

    def _swapped(self, xid: ExchangeId, me: Holding) -> Swapped:
        kept = self.answers[xid]
        return Swapped(me.node, xid, kept.weight, kept.share, kept.shown, kept.seen)

    def _repeated(self, xid: ExchangeId, me: Holding, now: float) -> list[Effect]:
        """The answer once more, if it is not on its way; where that must wait, it is asked for again."""
        if self._under_way.has(xid, now) or not self._may_repeat(me):
            return []
        self._under_way.told(xid, now)
        return [Tell(xid[0], self._swapped(xid, me))]

    def _resolve(self, message: Resolve, me: Holding, now: float) -> list[Effect]:
        xid = message.id
        if xid in self.answers:
            return self._repeated(xid, me, now)
        if self._holds_slot(xid):  # while its model is coming there is nothing to be said
            return [] if self._under_way.has(xid, now) else [Tell(message.node, Slot(me.node, xid, me.norm))]
        return self._promise_never(message.node, xid, me, "it never came")

    def _settle(self, xid: ExchangeId) -> None:
        self.answers.pop(xid, None)
        self._ask_again.pop(xid, None)
        self._under_way.forget(xid)

    # The side that asks

    def _answered(self, message: Slot | Busy | Swapped | Never, me: Holding, now: float) -> list[Effect]:
        self._reach.answered(message.node)
        match message:
            case Slot():
                return self._slot(message, me, now)
            case Swapped():
                return self._swapped_by(message, me, now)
            case Never() if message.id in self.doubts:
                self._forget(message.id, me, now)
            case Busy() if message.id not in self.doubts:
                self._busy_until[message.node] = now + min(message.wait_s, WAIT_MAX_S)
                self._part(me, now)
        return []

    def _slot(self, message: Slot, me: Holding, now: float) -> list[Effect]:
        """Show our model: now, or again if it got lost on the way."""
        xid = message.id
        if xid not in self.doubts:
            assert self.meeting is not None
            if why := unlike(me.norm, message.norm):
                self._part(me, now)
                return [Tell(message.node, Never(me.node, xid, why))]
            self.doubts[xid] = Doubt(message.node, me.shown(), me.weight, self._steps.cap)
            self.meeting.until, self.meeting.since = now + self._patience.seconds(me.exchange_bytes), now
            self._ask_again[xid] = now + self.policy.patience_s, self.policy.patience_s
            self._tokens -= 1
        elif self._under_way.has(xid, now) or not self._may_repeat(me):
            return []  # it is asked again
        self._under_way.told(xid, now)
        doubt = self.doubts[xid]
        return [Tell(doubt.partner, Swap(me.node, xid, doubt.weight, doubt.cap, doubt.shown, dict(me.seen)))]

    def _swapped_by(self, message: Swapped, me: Holding, now: float) -> list[Effect]:
        """The other side has taken its step, for good: take ours. Twice is once."""
        xid, doubt = message.id, self.doubts[message.id]
        mine, theirs = me.opened(doubt.shown), me.opened(message.body)
        way = norm(sub(theirs, mine))
        if acceptable(message, doubt, way) and norm(theirs) <= NORM_TIMES_MAX * max(me.norm, 1.0):
            self._take(me, message, Step(mine, theirs, doubt.weight, message.share, way))
            me.learn_of(message.seen)
            note: list[Effect] = []
        else:
            self.refused += 1
            note = [Note("refusal", "its model was not mixed: not what was agreed on", me.round, message.node)]
        if self._is_mine(xid) and self.meeting is not None and self.meeting.begun is not None:
            self._patience.learn(me.exchange_bytes, now - self.meeting.begun)
            self._attempts = 0
        self._forget(xid, me, now)
        return [*note, Tell(message.node, Settle(me.node, xid))]

    def _take(self, me: Holding, message: Swap | Swapped, step: Step) -> None:
        self._steps.take(me, message, step)
        if self.policy.delta:
            self._reference = me.model

    def _forget(self, xid: ExchangeId, me: Holding, now: float) -> None:
        del self.doubts[xid]
        self._ask_again.pop(xid, None)
        self._under_way.forget(xid)
        if self._is_mine(xid):
            self._part(me, now)

    # What survives

    def state(self) -> dict[str, Any]:
        return {
            "doubts": [[list(xid), *one.values()] for xid, one in sorted(self.doubts.items())],
            "answers": [[list(xid), *one.values()] for xid, one in sorted(self.answers.items())],
            "over": {node: list(last) for node, last in sorted(self.over.items())},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """What was in flight is in doubt; ask at once."""
        for xid, *values in state["doubts"]:
            self.doubts[(xid[0], xid[1], xid[2])] = Doubt.of(*values)
        for xid, *values in state["answers"]:
            self.answers[(xid[0], xid[1], xid[2])] = Answer.of(*values)
        self.over = {node: (last[0], last[1]) for node, last in state["over"].items()}
        self._ask_again = dict.fromkeys([*self.doubts, *self.answers], (0.0, self.policy.patience_s))
        self.alarm = 0.0

    def names(self) -> list[Ref]:
        return [one.shown for one in self.doubts.values()] + [one.shown for one in self.answers.values()]

    def tallies(self) -> dict[str, int]:
        return {"in_doubt": len(self.doubts), "unsettled": len(self.answers), "refused": self.refused}
