"""The peer as a state machine: it learns by itself, and mixes its model with those of others, with no server.

A peer goes through *local rounds*: the job's algorithm trains on its data as it would for a server, and its own step is
applied to its own model. After each round its *mixer* has a turn (`shoal.mixing`: pairwise exchange by default). What
was learned is a displacement and is added to the model as it is by then, so training and mixing need not wait for each
other, unless the mixer wants that.

    x_k  <-  x_k + d_k                      a local round of peer k
    x_k  <-  x_k + what its mixer decides   at any time

Everything that must not be forgotten is in `state()`, and whenever it has changed a `Save` comes before all other
effects. So a process that dies has either not done an event, or done all of it and perhaps not told; telling again is
harmless, in every mixer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import Any, ClassVar, Protocol

from shoal.core.algorithm import Algorithm, Update, tree_slot
from shoal.core.drain import Drain, Draining
from shoal.core.errors import InvalidPayload
from shoal.core.filter import Filters, pack_tree, packed_layout, unpack, unpack_tree
from shoal.core.machine import Amend, Done, Effect, Note, Result, Save, Standing, Tell, Timer, Wake, Work
from shoal.core.message import Bodies, Metrics, Order, Ref, ref_of, ref_state
from shoal.core.meter import Meter, exchange_bytes
from shoal.core.peer_message import MixingMessage, Seen
from shoal.core.plan import Plan
from shoal.core.plausible import SEEN_MAX, SEEN_SPARE, believable
from shoal.core.sums import Totals
from shoal.core.transfer import Transfer
from shoal.core.tree import Slots, Tree, norm, sub

RETRY_S = (1.0, 60.0)
"""A local round that failed is tried again after so long, doubled each time, up to the second."""

BLUR_KEPT = 0.9
"""Roundings are drawn: one that happens to be small says little about the next."""


@dataclass(frozen=True)
class Live:
    """Who else is believed to be there.

    `away`: who is not, has not said goodbye, and may come back. `beyond`: who is there, but out of this peer's reach.
    """

    nodes: frozenset[str]
    away: frozenset[str] = frozenset()
    beyond: frozenset[str] = frozenset()
    roster: frozenset[str] | None = None
    """Everybody who is admitted, this peer among them; None: as before."""


@dataclass(frozen=True)
class Decline:
    """A peer says this, and its model must not be mixed, for a reason that only the shell can see."""

    message: MixingMessage
    why: str


@dataclass(frozen=True)
class Halt:
    """Begin nothing new: neither a local round nor an exchange. What is under way is brought to its end."""

    why: str


@dataclass(frozen=True)
class Learned:
    """A local round has ended: what the peer measured, to be shown and to be told to a coordinator that returns."""

    round: int
    weight: float
    metrics: Metrics


PeerEvent = MixingMessage | Decline | Timer | Done | Live | Halt | Transfer
PeerEffect = Effect | Learned


@dataclass
class Holding:
    """What a peer holds. Mixers read it, and move `model`; `weight` (examples) is fixed, as conservation needs."""

    node: str
    boot: int
    weight: float
    slots: Slots
    bodies: Bodies
    rng: Random
    round: int = 0
    seen: Seen = field(default_factory=dict)
    live: frozenset[str] = frozenset()
    away: frozenset[str] = frozenset()
    beyond: frozenset[str] = frozenset()
    roster: frozenset[str] | None = None
    """Whose rounds are counted; None: everybody's."""
    seen_most: int = SEEN_MAX
    resting: bool = False
    """Whether all local rounds have been made: models only draw together from here on."""
    rounds: int = 0
    """How many local rounds each peer makes; 0: any number."""
    told: Seen = field(default_factory=dict)
    """While resting: how many rounds each peer has said that it has made, counted as in `seen`."""
    together: frozenset[str] = frozenset()
    """Whose mean this model is, and theirs too: it has not been moved since."""
    meetings: list[tuple[str, float]] = field(default_factory=list)
    """While resting: whose model was how far from this one, relative to its length, since somebody last looked."""
    meter: Meter = field(default_factory=Meter)
    model_bytes: int = 0
    """Of a model on its way."""
    hindered_until: float = -inf
    """Until then budgets of bytes keep this peer from meeting anybody: that it meets nobody says nothing."""
    filters: Filters = ()
    """What models go through that are shown to others: see `shoal.core.filter.for_models`."""
    blur: float = 0.0
    """How far off the models were, as others saw them, that were shown last: the greatest of late."""
    unreached: frozenset[str] = frozenset()  # who is there, and does not answer this peer's own calls
    _measured: tuple[Tree, float] | None = None

    @property
    def exchange_bytes(self) -> int:
        """What an exchange takes."""
        return exchange_bytes(self.model_bytes)

    def fit(self, model_bytes: int) -> None:
        """A model takes so many bytes on its way."""
        self.model_bytes = model_bytes
        self.meter.fit(self.exchange_bytes)

    @property
    def model(self) -> Tree:
        return tree_slot(self.slots, "model")

    @model.setter
    def model(self, model: Tree) -> None:
        self.slots = {**self.slots, "model": model}

    @property
    def norm(self) -> float:
        """Of the model as it is now."""
        if self._measured is None or self._measured[0] is not self.model:
            self._measured = self.model, norm(self.model)
        return self._measured[1]

    def learn_of(self, seen: Seen) -> None:
        """The model now holds what that one held."""
        most = self.seen_most
        both = sorted({*self.seen, *seen})
        self.seen = {node: min(most, max(self.seen.get(node, 0), seen.get(node, 0))) for node in both}

    def met(self, partner: str, distance: float) -> None:
        """That peer's model was so far from this one, or would have moved it so far. What filters round off counts as
        no distance: models would never be near."""
        if self.resting:
            seen = max(0.0, distance - 2 * self.blur)
            self.meetings.append((partner, seen / (norm(self.model) or 1.0)))

    def shown(self) -> Ref:
        """The model as a body for others."""
        sent = self.model
        if self.filters:
            sent = pack_tree(self.filters, self.model, self.rng.getrandbits(56))
            blur = norm(sub(unpack_tree(self.filters, sent, self.model.layout), self.model))
            self.blur = max(blur, BLUR_KEPT * self.blur) if blur < inf else 0.0
        return self.bodies.put({"model": sent})

    def opened(self, ref: Ref) -> Tree:
        """A body that was shown, by this peer or another: the same numbers for both. Raises `InvalidPayload`."""
        sent = tree_slot(self.bodies.get(ref), "model")
        return unpack_tree(self.filters, sent, self.model.layout) if self.filters else sent

    def seen_by_others(self, shown: Ref) -> Tree:
        """This very model, which was shown just now, as whoever has that body sees it."""
        return self.opened(shown) if self.filters else self.model


class Mixer(Protocol):
    """How the models of peers become one. It may move `me.model` whenever it is called, and at no other time."""

    alarm: float
    """When it wants to be called next."""

    in_step: ClassVar[bool]
    """Whether others wait for this peer's turns."""

    @property
    def waiting(self) -> bool:
        """Whether the next local round has to wait for the others."""
        ...

    @property
    def busy(self) -> bool:
        """Whether something is under way that needs this process."""
        ...

    def turn(self, me: Holding, now: float) -> Sequence[Effect]:
        """A local round has ended."""
        ...

    def halt(self) -> None:
        """Enter into nothing new."""
        ...

    def resume(self) -> None:
        """Enter into new things again."""
        ...

    def on(self, message: MixingMessage, me: Holding, now: float) -> Sequence[Effect]:
        """A peer says something. Its membership, and the form of its body, have been checked."""
        ...

    def decline(self, message: MixingMessage, why: str, me: Holding, now: float) -> Sequence[Effect]:
        """The same, but nothing new is entered into with that peer, and its model is not mixed if that can be."""
        ...

    def moves(self, transfer: Transfer, me: Holding, now: float) -> Sequence[Effect]:
        """A model is on its way: it must not be sent again now, and whoever waits for it has reason to."""
        ...

    def ring(self, me: Holding, now: float) -> Sequence[Effect]:
        """`alarm` may have come."""
        ...

    @property
    def moving_until(self) -> float:
        """Until when a model is believed to be on its way, to this peer or from it."""
        ...

    def state(self) -> dict[str, Any]:
        """What must survive, as JSON values."""
        ...

    def restore(self, state: dict[str, Any]) -> None: ...

    def names(self) -> list[Ref]:
        """The bodies that it still needs."""
        ...

    def tallies(self) -> dict[str, int]:
        """How it stands, for people."""
        ...


class Mixing(ABC):
    """How peers mix, as a job says it: a frozen dataclass whose fields are its configuration, as in `Algorithm`."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    asks: ClassVar[bool] = False
    """Whether a model is sent only to who has said that it may come, so that a budget of bytes can be kept."""
    filtered: ClassVar[bool] = False
    """Whether what it promises holds as well for models that others see only as a job's filters let them."""

    @abstractmethod
    def mixer(self) -> Mixer:
        """One peer's side of it, from the beginning."""


class Gossip:
    """One peer's part in one job, until `drained`, if there is a `drain`; else as many local rounds as come."""

    def __init__(
        self, plan: Plan, algorithm: Algorithm, me: Holding, mixer: Mixer, *, drain: Drain | None = None
    ) -> None:
        self.plan, self.algorithm, self.me, self.mixer = plan, algorithm, me, mixer
        self.rounds = drain.rounds if drain is not None else 0
        self.drained = False
        """Whether all have learned all, and models have drawn near: this peer may go."""
        self._draining = Draining(drain, in_step=mixer.in_step) if drain is not None else None
        me.seen_most = drain.rounds + SEEN_SPARE if drain is not None else SEEN_MAX
        me.rounds = self.rounds
        self._turned_at, self._turn_at = -inf, inf
        self.memory: Ref | None = None
        self.order: Order | None = None
        self.halted, self._adopted = "", False
        self._begun, self._failures, self._retry_at = 0, 0, inf
        self.settings: Metrics = {}  # those that the hub has changed, for every local round
        self._kept: tuple[Slots, Ref] | None = None
        self._saved: dict[str, Any] | None = None

    @classmethod
    def restore(
        cls,
        plan: Plan,
        algorithm: Algorithm,
        me: Holding,
        mixer: Mixer,
        state: dict[str, Any],
        *,
        drain: Drain | None = None,
    ) -> Gossip:
        """A new process over what an earlier one has saved; `me` carries the new boot."""
        gossip = cls(plan, algorithm, me, mixer, drain=drain)
        ref = Ref(*state["slots"])
        me.slots, me.weight, me.round, me.seen = me.bodies.get(ref), state["weight"], state["round"], state["seen"]
        gossip._kept = me.slots, ref
        gossip.memory, gossip.settings = ref_of(state["memory"]), state.get("settings", {})
        mixer.restore(state["mixer"])
        gossip._fit()
        me.meter.restore(state.get("budget"))
        return gossip

    def state(self) -> dict[str, Any]:
        """All that must not be forgotten, as JSON values."""
        me = self.me
        return {
            "boot": me.boot,
            "weight": me.weight,
            "round": me.round,
            "seen": me.seen,
            "slots": ref_state(self._ref()),
            "memory": ref_state(self.memory),
            "mixer": self.mixer.state(),
            "budget": me.meter.state(),
            "settings": self.settings,
        }

    def names(self) -> list[Ref]:
        """The bodies that this peer still needs."""
        own = [self._ref(), self.memory, self.order.body if self.order else None]
        return [*(ref for ref in own if ref is not None), *self.mixer.names()]

    @property
    def idle(self) -> bool:
        """Whether nothing is under way: no local round, and nothing that another peer may ask about."""
        return self.order is None and not self.mixer.busy

    @property
    def finished(self) -> bool:
        """Whether all local rounds have been made."""
        return 0 < self.rounds <= self.me.round

    def start(self, now: float) -> list[PeerEffect]:
        """Begin."""
        self._fit()
        self.me.meter.see(now)
        return self._wrapped([*self.mixer.ring(self.me, now), *self._go_on(), *self._rest(now)])

    def resume(self) -> list[PeerEffect]:
        """Go on after a `Halt`."""
        self.halted = ""
        self.mixer.resume()
        return self._wrapped([*self._go_on()])

    def adopt(self, order: Order) -> list[Effect]:
        """Let work that was begun for a hub, from the very version that this peer starts from, be the first round."""
        self.order, self._adopted = order, True
        return [Amend(replace(order, rev=order.rev + 1, recall=True))] if self.algorithm.based else []

    @property
    def alarm(self) -> float:
        """When it wants a `Timer`."""
        return min(self.mixer.alarm, self._retry_at, self._turn_at)

    def on(self, event: PeerEvent, now: float) -> list[PeerEffect]:
        """Take one event and say what follows from it."""
        effects: list[PeerEffect] = []
        self.me.meter.see(now)
        match event:
            case Timer():
                effects += self.mixer.ring(self.me, now)
                if now >= self._retry_at:
                    self._retry_at = inf
            case Done():
                effects += self._worked(event, now)
            case Live():
                self.me.live = event.nodes - {self.me.node}
                self.me.away, self.me.beyond = event.away - {self.me.node}, event.beyond
                if event.roster:  # names that were heard before it was known are dropped
                    self.me.roster = event.roster
                    self.me.seen = {one: n for one, n in self.me.seen.items() if one in {*event.roster, self.me.node}}
                effects += self.mixer.ring(self.me, now)
            case Halt():
                self.halted = event.why
                self.mixer.halt()
                effects += self.mixer.ring(self.me, now)
            case Decline():
                message, lies = believable(event.message, self.me.roster, self.me.seen_most)
                effects += [*lies, *self.mixer.decline(message, event.why, self.me, now)]
            case Transfer():
                effects += self.mixer.moves(event, self.me, now)
            case _:
                effects += self._heard(event, now)
        return self._wrapped([*effects, *self._go_on(), *self._rest(now)])

    def _heard(self, message: MixingMessage, now: float) -> Sequence[Effect]:
        message, lies = believable(message, self.me.roster, self.me.seen_most)
        try:
            return [*lies, *self.mixer.on(message, self.me, now)]
        except InvalidPayload as error:
            return [Note("refusal", error.message, self.me.round, message.node)]

    def _go_on(self) -> list[Effect]:
        """The next local round, if one may begin. It is of kind "gossip": no filter is at work on what stays here."""
        if self.order is not None or self.halted or self.finished or self.mixer.waiting or self._retry_at < inf:
            return []
        me = self.me
        self._begun += 1
        seed = self.plan.seed_of(me.round + 1, me.node)
        body = me.bodies.put(self.algorithm.order(me.slots, me.node, "train"))
        once = self.algorithm.based  # who would go on until somebody asks is asked after one piece
        number, told = (me.boot, self._begun), self.settings
        self.order = Order(number, me.node, "gossip", me.round, seed, body, numbers=told, recall=once)
        return [Work(self.order, self.memory)]

    def _worked(self, done: Done, now: float) -> list[PeerEffect]:
        if self.order is None or done.order != self.order.id:
            return []
        self.order = None
        try:
            result = self._applied(done)
        except InvalidPayload as error:
            self._failures += 1
            pause = min(RETRY_S[1], RETRY_S[0] * 2 ** (self._failures - 1))
            self._retry_at = now + pause
            return [Note("warning", f"local round failed, again in {pause:g} s: {error.message}", self.me.round)]
        self._failures = 0
        me = self.me
        me.round += 1
        me.learn_of({me.node: me.round})
        told: list[PeerEffect] = [Learned(me.round, result.weight, result.metrics)]
        resting = self.finished and self._draining is not None
        return told if self.halted or resting else [*told, *self.mixer.turn(me, now)]

    def _applied(self, done: Done) -> Result:
        """Take the algorithm's own step with the one update that there is."""
        result, me = done.result, self.me
        if result is None:
            raise InvalidPayload(done.error)
        if result.body is not None:
            slots = me.bodies.get(result.body)
            if self._adopted:
                slots = unpack(self.plan.filters, slots, self.algorithm.reply(me.slots))
            length = max((norm(value) for value in slots.values() if isinstance(value, Tree)), default=0.0)
            if not length < inf:
                raise InvalidPayload("the update is not finite: the training has diverged", hint="lower the lr")
            totals = self.algorithm.fold(Totals(), Update(me.node, me.round, 1.0, slots, length), 1.0)
            me.slots = self.algorithm.step(me.slots, totals)
        self._adopted = False
        self.memory = result.memory or self.memory
        return result

    # When all is learned

    @property
    def one(self) -> bool:
        """Whether models were one, as far as this peer could see, when it last met any."""
        return self._draining is not None and self._draining.one

    def _rest(self, now: float) -> Sequence[Effect]:
        """Take a turn at mixing, if one is due and the last one's has come to its end."""
        draining, me = self._draining, self.me
        self._turn_at = inf
        if draining is None or not self.finished or self.halted:
            return []
        if not me.resting:
            me.resting = True
        self.drained = draining.over(me, now)
        if self.mixer.waiting or self.drained:
            return []
        self._turn_at = max(self._turned_at + draining.pause_s(), me.hindered_until)
        if now < self._turn_at:
            return []
        self._turned_at = now
        draining.turned()
        effects = self.mixer.turn(me, now)
        self._turn_at = max(now + draining.policy.rest_s, me.hindered_until)
        return effects

    # Around every event

    def _fit(self) -> None:
        """Know what a model takes on its way."""
        me = self.me
        saved = me.model.layout.nbytes - packed_layout(me.filters, me.model.layout).nbytes
        me.fit(self._ref().nbytes - saved)

    def _ref(self) -> Ref:
        if self._kept is None or self._kept[0] is not self.me.slots:
            self._kept = self.me.slots, self.me.bodies.put(self.me.slots)
        return self._kept[1]

    def _wrapped(self, effects: list[PeerEffect]) -> list[PeerEffect]:
        """What has changed is saved first, and the alarm is set last."""
        for effect in effects:
            if isinstance(effect, Tell) and (body := getattr(effect.body, "body", None)) is not None:
                self.me.meter.told(body.nbytes)
        state = self.state()
        if state != self._saved:
            self._saved = state
            effects.insert(0, Save(Standing(state)))
        return [*effects, Wake(self.alarm)] if self.alarm < inf else effects
