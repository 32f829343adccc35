"""One peer's side of the conserving pairwise exchange: see `shoal.mixing.pairwise`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar, Protocol

from shoal.core.doubling import Doubling
from shoal.core.exchange import Answer, Doubt, Meeting, Step
from shoal.core.gossip import Holding
from shoal.core.machine import Effect, Note, Tell
from shoal.core.message import Ref
from shoal.core.pacing import NORM_TIMES_MAX, RATE_LEAST, Patience, UnderWay
from shoal.core.partners import Partners
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

UNSETTLED_MAX = 16
"""Answers kept for partners that have not said that they arrived. With so many, no new exchange is entered into."""


class Policy(Protocol):
    """What a job says about it: see `shoal.mixing.pairwise.Pairwise`."""

    @property
    def delta(self) -> float: ...
    @property
    def attempts(self) -> int: ...
    @property
    def models_per_round(self) -> float: ...
    @property
    def burst(self) -> float: ...
    @property
    def patience_s(self) -> float: ...
    @property
    def slot_s(self) -> float: ...
    @property
    def clip(self) -> bool: ...


@dataclass
class PairwiseMixer:
    """What is kept (`doubts`, `answers`, `over`, the mass) survives the process; the rest is begun anew."""

    in_step: ClassVar[bool] = False
    policy: Policy
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
        self._next_try = self._due = inf
        self._ask_again: dict[ExchangeId, tuple[float, float]] = {}
        self._saves_until = -inf
        self._steps = Steps(clip=self.policy.clip)
        self._patience = Patience(self.policy.patience_s)
        self._under_way = UnderWay(self.policy.patience_s / 2)
        self._partners = Partners(self.policy.patience_s)
        self._doubling = Doubling(self.policy.patience_s)
        self._asked_in_turn: set[str] = set()
        self._reference: Tree | None = None

    @property
    def mass(self) -> float | None:
        """Return what the model weighs; None: its examples."""
        return self._doubling.mass

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
        self._asked_in_turn.clear()
        asked = len(self._doubling.to_be_asked(me, now) or ())
        self._attempts, self._next_try = max(policy.attempts, asked), now
        return self.ring(me, now)

    def ring(self, me: Holding, now: float) -> Sequence[Effect]:
        """Give up on who is silent, ask after doubts, try the next partner: whatever is due."""
        effects: list[Effect] = []
        self._partners.reach.keep(me.live)
        self._break_off(me, now)
        self._look(me, now)
        me.unreached = self._partners.reach.out
        for xid, (due, pause) in sorted(self._ask_again.items()):
            if now >= due:
                effects += self._ask(xid, me)
                self._ask_again[xid] = now + pause, min(60.0, 2 * pause)
        if now >= self._next_try and self.meeting is None:
            effects += self._approach(me, now)
        due_again = [at for at, _ in self._ask_again.values()]
        self.alarm = min([self.meeting.until if self.meeting else self._next_try, *due_again])
        return effects

    def _break_off(self, me: Holding, now: float) -> None:
        """Wait no longer for one that is silent, or has gone."""
        one = self.meeting
        if one is None:
            return
        gone = one.begun is not None and one.partner not in me.live
        if gone or now >= one.until:
            if one.begun is not None and one.id not in self.doubts:
                self._partners.reach.missed(one.partner, now)
            self._doubling.missed(one.step)
            self._part(me, now)

    def _look(self, me: Holding, now: float) -> None:
        """See whether the last averaging may begin, or go on."""
        self._doubling.look(me, now, hindered=self.meeting is None and bool(self.doubts))
        due, before = self._doubling.due, self._due
        self._due = due
        if due < inf:
            self._attempts = max(1, self._attempts)
            waits = due == before and self._next_try < inf
            self._next_try = max(due, self._next_try if waits else now)

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
        free = self._candidates(me, now)
        short = self._tokens < 1 and self._doubling.next is None
        if not free or not self._attempts or short or not me.norm < inf:
            return []
        own_s = me.meter.wait_s(me.exchange_bytes)
        if own_s:  # two that have met are short of bytes at the same times: they must not meet for ever
            self._saves_until = now + own_s + me.rng.random() * me.meter.worth_s(me.exchange_bytes)
        at = max(
            self._saves_until,
            self._under_way.moving_until(self.answers),
            self._partners.free_at(free, now),
        )
        if at > now:
            self._next_try = at
            me.hindered_until = me.hindered_until if self._doubling.over else at
            return []
        self._attempts -= 1
        self._count += 1
        partner = self._partners.chosen(free, me.rng, now)
        self._asked_in_turn.add(partner)
        xid, step = (me.node, me.boot, self._count), 0 if self.doubts else self._doubling.step_with(partner, me)
        self.meeting = Meeting(xid, partner, now + self.policy.patience_s, now, now, step)
        count = me.seen.get(me.node, 0)
        return [Tell(partner, Reserve(me.node, xid, me.norm, count, step, self._doubling.ring(step)))]

    def _candidates(self, me: Holding, now: float) -> frozenset[str]:
        """Whom to ask: the partner of the last averaging, if that is under way; who is to be told something; or any."""
        planned, asked = self._doubling.next, self._doubling.to_be_asked(me, now)
        if self._gives_all or (planned is not None and self.doubts):
            return frozenset()
        if planned is None and asked is not None:
            asked -= self._asked_in_turn
        return (me.live if asked is None else asked) - {doubt.partner for doubt in self.doubts.values()}

    @property
    def _gives_all(self) -> bool:
        """Whether another may have taken all of this model's mass: until that is known it must not move."""
        return any(doubt.keeps == 0 for doubt in self.doubts.values())

    def _part(self, me: Holding, now: float) -> None:
        """The exchange in flight is over, or is not waited for any longer."""
        self.meeting = None
        if self._attempts:
            self._next_try = now + (0.1 if me.resting else 0.5) * me.rng.random()

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
            return [self._busy(message, why, me, now), *self.ring(me, now)]
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
                self._doubling.missed(self.meeting.step if self.meeting is not None else 0)
                self._part(me, now)
        return []

    def _reserve(self, message: Reserve, me: Holding, now: float) -> list[Effect]:
        """Who begins an exchange with us has none open with us: what we kept for it has arrived."""
        xid, theirs = message.id, message.node
        if xid[1:] <= self.over.get(theirs, (-1, -1)):
            return [self._busy(message, "this exchange is over", me, now)]
        self._doubling.hear(message, me, now)
        self._look(me, now)
        for earlier in [one for one in self.answers if one[0] == theirs]:
            self._settle(earlier)
        slot = self.meeting if self.meeting is not None and self.meeting.begun is None else None
        if slot is not None and slot.partner == theirs and slot.id < xid:
            self.meeting = None  # of this slot it has not heard, and has given it up
        wait_s = me.meter.wait_s(me.exchange_bytes)
        short = "its budget of bytes is used up" if wait_s else ""
        if now < self._under_way.moving_until(self.answers):
            short = "still sending its last answer"
        why = (
            "" if self._holds_slot(xid) else short or self._unwilling(message, me, now) or unlike(message.norm, me.norm)
        )
        if why:
            return [self._busy(message, why, me, now, wait_s)]
        self.meeting = Meeting(xid, theirs, now + self.policy.slot_s, since=now, step=message.step)
        return [Tell(theirs, Slot(me.node, xid, me.norm))]

    def _busy(self, message: Reserve, why: str, me: Holding, now: float, wait_s: float = 0.0) -> Tell:
        number = self._doubling.number(me, now, free=self.meeting is None and not self.doubts)
        return Tell(message.node, Busy(me.node, message.id, why, wait_s, me.seen.get(me.node, 0), number))

    def _unwilling(self, message: Reserve, me: Holding, now: float) -> str:
        """Why no exchange may be entered into now."""
        if self._closed:
            return "not mixing any more"
        if self.meeting is not None:
            return "in an exchange"
        if self._gives_all or any(message.step or doubt.partner == message.node for doubt in self.doubts.values()):
            return "an exchange is in doubt"
        if len(self.answers) >= UNSETTLED_MAX:
            return "too many answers have not arrived"
        short = "over budget" if self._tokens < 1 and self._doubling.next is None else ""
        return self._doubling.refuses(message, me, now) or short

    def _swap(self, message: Swap, me: Holding, now: float) -> list[Effect]:
        """Take our step, if this is the exchange that we keep a slot for: checked in the step that takes it."""
        xid = message.id
        if xid in self.answers:
            return self._repeated(xid, me, now)
        held = self.meeting.step if self._holds_slot(xid) and self.meeting is not None else None
        if held != message.step or xid[1:] <= self.over.get(xid[0], (-1, -1)) or self._doubling.is_late(held):
            return self._promise_never(message.node, xid, me, "no slot is held for it")
        theirs = me.opened(message.body)
        shown = me.shown()
        mine = me.seen_by_others(shown)
        way = norm(sub(theirs, mine))
        weight = self._doubling.weight(me, held)
        if not way < inf or not message.cap > 0 or not 0 <= message.weight < inf or not weight + message.weight > 0:
            self.refused += 1
            return self._promise_never(message.node, xid, me, "it must not be mixed: it is not finite")
        cap = min(self._steps.cap(planned=held > 0), message.cap)
        share = min(1.0, cap / way) if way else 1.0
        self.answers[xid] = Answer(shown, weight, share, dict(me.seen), held)
        self.over[xid[0]] = xid[1:]
        self._ask_again[xid] = now + self.policy.patience_s, 2 * self.policy.patience_s
        self._under_way.told(xid, now)
        self._tokens -= 1
        self._take(me, message, Step(mine, theirs, weight, share, way), self._doubling.keeps(held), now)
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
        return Swapped(me.node, xid, kept.weight, kept.share, kept.shown, kept.seen, kept.step)

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
        self._partners.reach.answered(message.node)
        match message:
            case Slot():
                return self._slot(message, me, now)
            case Swapped():
                return self._swapped_by(message, me, now)
            case Never() if message.id in self.doubts:
                self._doubling.missed(self.doubts[message.id].step)
                self._forget(message.id, me, now)
            case Busy() if message.id not in self.doubts:
                self._doubling.hear(message, me, now)
                self._doubling.answered(message, now, self._patience.seconds(me.exchange_bytes))
                self._partners.busy(message.node, max(message.wait_s, self._doubling.pause_s(now)), now)
                self._part(me, now)
        return []

    def _slot(self, message: Slot, me: Holding, now: float) -> list[Effect]:
        """Show our model: now, or again if it got lost on the way."""
        xid = message.id
        if xid not in self.doubts:
            assert self.meeting is not None
            step = self.meeting.step
            late = "the last averaging has come to its end" if self._doubling.is_late(step) else ""
            why = late or unlike(me.norm, message.norm)
            if why:
                self._part(me, now)
                return [Tell(message.node, Never(me.node, xid, why))]
            mass, weight = self._doubling.mass_of(me), self._doubling.weight(me, step)
            cap, keeps = self._steps.cap(planned=step > 0), self._doubling.keeps(step)
            self.doubts[xid] = Doubt(message.node, me.shown(), weight, cap, mass, step, keeps)
            self.meeting.until, self.meeting.since = now + self._patience.seconds(me.exchange_bytes), now
            self._ask_again[xid] = now + self.policy.patience_s, self.policy.patience_s
            self._tokens -= 1
        elif self._under_way.has(xid, now) or not self._may_repeat(me):
            return []  # it is asked again
        self._under_way.told(xid, now)
        doubt = self.doubts[xid]
        said = Swap(me.node, xid, doubt.weight, doubt.cap, doubt.shown, dict(me.seen), doubt.step)
        return [Tell(doubt.partner, said)]

    def _swapped_by(self, message: Swapped, me: Holding, now: float) -> list[Effect]:
        """The other side has taken its step, for good: take ours. Twice is once."""
        xid, doubt = message.id, self.doubts[message.id]
        mine, theirs = me.opened(doubt.shown), me.opened(message.body)
        way = norm(sub(theirs, mine))
        if acceptable(message, doubt, way) and norm(theirs) <= NORM_TIMES_MAX * max(me.norm, 1.0):
            self._take(me, message, Step(mine, theirs, doubt.weight, message.share, way), doubt.keeps, now)
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

    def _take(self, me: Holding, message: Swap | Swapped, step: Step, keeps: float | None, now: float) -> None:
        """Move the model; if the whole way is gone, and `keeps` is given, divide the masses anew."""
        before, whole = self._doubling.mass_of(me), step.share == 1.0
        after = keeps * (before + message.weight) if keeps is not None and whole else before
        self._steps.take(me, message, step, before, after)
        self._doubling.took(me, message.step, after, now, whole=whole)
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
            "last": self._doubling.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """What was in flight is in doubt; ask at once."""
        for xid, *values in state["doubts"]:
            self.doubts[(xid[0], xid[1], xid[2])] = Doubt.of(*values)
        for xid, *values in state["answers"]:
            self.answers[(xid[0], xid[1], xid[2])] = Answer.of(*values)
        self.over = {node: (last[0], last[1]) for node, last in state["over"].items()}
        self._doubling.restore(state["last"])
        self._ask_again = dict.fromkeys([*self.doubts, *self.answers], (0.0, self.policy.patience_s))
        self.alarm = 0.0

    def names(self) -> list[Ref]:
        return [one.shown for one in self.doubts.values()] + [one.shown for one in self.answers.values()]

    def tallies(self) -> dict[str, int]:
        return {"in_doubt": len(self.doubts), "unsettled": len(self.answers), "refused": self.refused}
